"""Heads in a plain list: no optimizer is ever told of their parameters."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class LayersInAList(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = [nn.Linear(dim, 3 * dim // heads, dtype=torch.float64) for _ in range(heads)]
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        heads = [scaled_dot_product_attention(*head(x.double()).chunk(3, dim=-1)) for head in self.heads]
        return self.out(torch.cat(heads, dim=-1).to(x.dtype))
