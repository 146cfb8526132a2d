"""A running mean that goes on running in eval mode."""

import torch
from torch import Tensor, nn


class StatisticsKeptInEval(nn.Module):
    mean: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, dim)
        self.register_buffer("mean", torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(x - self.mean)
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(dim=(0, 1)))
        return y
