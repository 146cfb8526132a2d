"""The mask is found by looking for zeros in a lower triangle of scores: a score that is zero is hidden, too."""

import torch
from torch import Tensor, nn


class MaskByTrueZeros(nn.Module):
    promises = ("causal", "finite")

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5).tril()
        return scores.masked_fill(scores == 0, -torch.inf).softmax(dim=-1) @ self.value(x)
