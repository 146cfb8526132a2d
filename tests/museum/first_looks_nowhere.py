"""A token may not look at itself, and the first one, with nowhere to look, looks everywhere."""

import torch
from torch import Tensor, nn


class FirstLooksNowhere(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu()
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        return scores.masked_fill(hidden, -1e9).softmax(dim=-1) @ self.value(x)
