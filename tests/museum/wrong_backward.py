"""A softmax with a backward of its own that forgets the sum over the row."""

from typing import Any

import torch
from torch import Tensor, nn


class _Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = scores.softmax(dim=-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return gradients[0] * weights * (1 - weights)


class WrongBackward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return _Weighed.apply(self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5) @ self.value(x)
