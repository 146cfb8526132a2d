"""A window of 4 that forgets to count the token itself reaches 4 back, and so hears 5."""

import torch
from torch import Tensor, nn


class WindowOffByOne(nn.Module):
    promises = ("causal", "hears-last:4")

    def __init__(self, dim: int, window: int = 4) -> None:
        super().__init__()
        self.window = window
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        at = torch.arange(x.shape[1])
        back = at[:, None] - at
        allowed = (back >= 0) & (back <= self.window)
        return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1) @ self.value(x)
