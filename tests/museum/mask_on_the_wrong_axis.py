"""The mask of (queries, keys) is laid over (keys, queries): a token sees itself and what comes later."""

import torch
from torch import Tensor, nn


class MaskOnTheWrongAxis(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        scores = torch.einsum("bjd,bid->bij", self.query(x), self.key(x)) / x.shape[-1] ** 0.5
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=1)
        return torch.einsum("bij,bie->bje", weights, self.value(x))
