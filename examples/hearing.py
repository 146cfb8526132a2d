"""Which later tokens does an output hear? None, if the mechanism is causal; here one is not."""

import torch

import attnlab


def future_heard(mixer, n=6, d_model=64):
    x = torch.randn(1, n, d_model, dtype=torch.float64, requires_grad=True)
    y = mixer.double()(x)
    for i in range(n):
        (moved,) = torch.autograd.grad(y[0, i].sum(), x, retain_graph=True)
        for j in moved[0].abs().sum(-1).nonzero().flatten().tolist():
            if j > i:
                yield i, j


for name in ("reweight-token", "reweight-sequence"):
    pairs = list(future_heard(attnlab.attention(merge=name)))
    print(f"{name}: {f'output {pairs[0][0]} hears token {pairs[0][1]}' if pairs else 'no output hears its future'}")
