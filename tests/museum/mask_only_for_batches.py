"""A batch of one is squeezed and unsqueezed on a way of its own, without the mask."""

import torch
from torch import Tensor, nn


class MaskOnlyForBatches(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x.squeeze(0)
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        if scores.dim() == 3:
            future = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        y = scores.softmax(dim=-1) @ self.value(x)
        return y if y.dim() == 3 else y[None]
