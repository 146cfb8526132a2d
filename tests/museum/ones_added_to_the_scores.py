"""A mask of zeros and ones is added to the scores, as if it were one of minus infinity and zeros."""

import torch
from torch import Tensor, nn


class OnesAddedToTheScores(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        visible = torch.ones(x.shape[1], x.shape[1]).tril()
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5 + visible.to(x)
        return scores.softmax(dim=-1) @ self.value(x)
