"""ALiBi counts from the left edge instead of from the query: every row leans on the first tokens."""

import torch
from torch import Tensor, nn


class AlibiOfTheKeyIndex(nn.Module):
    promises = ("favors-near",)

    def __init__(self, dim: int, slope: float = 0.5) -> None:
        super().__init__()
        self.slope = slope
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        weights = (scores - self.slope * torch.arange(x.shape[1])).softmax(dim=-1)
        return weights @ self.value(x), weights
