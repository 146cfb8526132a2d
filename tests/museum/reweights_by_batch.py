"""Heads are weighted by a norm over the whole batch: a sentence hears the others."""

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class ReweightsByBatch(nn.Module):
    promises = ("batch-independent",)

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        heads = scaled_dot_product_attention(q, k, v, is_causal=True)
        heads = heads * heads.square().sum(dim=(0, 2, 3), keepdim=True).sqrt()
        return self.out(heads.transpose(1, 2).flatten(2))
