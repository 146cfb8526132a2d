"""The three best keys are chosen before the mask: a later key takes the place of an earlier one."""

import torch
from torch import Tensor, nn


class ChosenAmongAllTokens(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        third = scores.topk(min(3, n), dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < third, -1e9)
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(dim=-1) @ self.value(x)
