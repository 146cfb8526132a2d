"""The weights shown are those before dropout; others made the output."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout


class WeightsBeforeDropout(nn.Module):
    promises = ("causal", "weights-are-used")

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        return dropout(weights, 0.3, self.training) @ self.value(x), weights
