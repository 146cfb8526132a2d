"""A generator that is seeded from the clock: nobody can build the same module again."""

import torch
from torch import Tensor, nn


class DrawnFromTheClock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        generator = torch.Generator()
        generator.seed()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.sign = nn.Parameter(torch.randn(dim, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5).softmax(dim=-1)
        return weights @ self.value(x) * self.sign
