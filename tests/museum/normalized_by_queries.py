"""The softmax runs over the queries: columns sum to one instead of rows, and the future is in every sum."""

import torch
from torch import Tensor, nn


class NormalizedByQueries(nn.Module):
    promises = ("causal", "rows-sum-to-one")

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-2)
        return weights @ self.value(x), weights
