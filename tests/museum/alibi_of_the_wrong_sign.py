"""ALiBi adds the distance instead of taking it away: the furthest key weighs most."""

import torch
from torch import Tensor, nn


class AlibiOfTheWrongSign(nn.Module):
    promises = ("causal", "favors-near")

    def __init__(self, dim: int, slope: float = 0.5) -> None:
        super().__init__()
        self.slope = slope
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        at = torch.arange(x.shape[1])
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5 + self.slope * (at[:, None] - at)
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        return weights @ self.value(x), weights
