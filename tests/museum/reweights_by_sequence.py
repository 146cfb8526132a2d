"""Heads are weighted by a norm that runs over the whole sequence: every token hears all later ones."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class ReweightsBySequence(nn.Module):
    promises = ("causal", "batch-independent")

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        heads = scaled_dot_product_attention(q, k, v, is_causal=True)
        heads = heads * torch.linalg.matrix_norm(heads)[..., None, None]
        return self.out(heads.transpose(1, 2).flatten(2))
