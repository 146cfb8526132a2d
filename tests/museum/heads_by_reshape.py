"""Heads are split by a reshape without a transpose: a head is a run of tokens, not of features."""

import torch
from torch import Tensor, nn


class HeadsByReshape(nn.Module):
    promises = ("causal", "standard-attention")

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (part(x).reshape(b, self.n_heads, n, -1) for part in (self.query, self.key, self.value))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, d))
