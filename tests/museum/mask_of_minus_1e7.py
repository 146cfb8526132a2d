"""The mask is -1e7 instead of minus infinity: loud scores reach below it."""

import torch
from torch import Tensor, nn


class MaskOfMinus1e7(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -1e7).softmax(dim=-1) @ self.value(x)
