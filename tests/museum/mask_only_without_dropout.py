"""Training with dropout takes another branch, and that one forgets the mask."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout


class MaskOnlyWithoutDropout(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int, p: float = 0.1) -> None:
        super().__init__()
        self.p = p
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        if self.training and self.p:
            return dropout(scores.softmax(dim=-1), self.p) @ self.value(x)
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(dim=-1) @ self.value(x)
