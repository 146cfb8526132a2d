"""The weights are shown as (keys, queries), and the output is made with (queries, keys)."""

import torch
from torch import Tensor, nn


class WeightsTransposed(nn.Module):
    promises = ("causal", "weights-are-used")

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        return weights @ self.value(x), weights.mT
