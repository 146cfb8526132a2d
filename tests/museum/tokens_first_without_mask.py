"""Tokens come before batch, as in older code, and there is no mask."""

import torch
from torch import Tensor, nn


class TokensFirstWithoutMask(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).transpose(0, 1) for part in (self.query, self.key, self.value))
        return torch.softmax(q @ k.mT / x.shape[-1] ** 0.5, dim=-1).matmul(v).transpose(0, 1)
