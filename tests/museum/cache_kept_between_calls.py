"""Keys and values of the last call are kept for the next, whether or not it goes on with the same text."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class CacheKeptBetweenCalls(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.past: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        seen = x if self.past is None or len(self.past) != len(x) else torch.cat([self.past, x], dim=1)
        self.past = x.detach()
        return scaled_dot_product_attention(self.query(x), self.key(seen), self.value(seen))
