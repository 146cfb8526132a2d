"""A mask in which True blocks is handed to a function in which True keeps: only the future is seen."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class InvertedPolarity(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        blocked = torch.ones(n, n, dtype=torch.bool).triu(1)
        return scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), attn_mask=blocked)
