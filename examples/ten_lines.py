import torch

import attnlab


def nearness(q, k, at):
    """s_ij = q_i·k_j / √d - |i - j|: what is near counts for more."""
    return q @ k.mT / q.shape[-1] ** 0.5 - at.distance().abs()


idea = attnlab.attention(score=nearness, d_model=64, n_heads=4)  # causal, multi-head; every other part as usual
print(idea.weights(torch.randn(1, 6, 64))[0, 0].detach().round(decimals=2))  # who looks where, in the first head
model = attnlab.decoder(score=nearness, position="none", size="nano", vocab=256)  # a small language model of it
print(model(torch.randint(256, (1, 20))).shape)
