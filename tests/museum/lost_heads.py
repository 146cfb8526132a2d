"""The heads are joined by taking the first of them for all: the others reach no output."""

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class LostHeads(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.n_heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.query, self.key, self.value)
        q, k, v = (part(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in parts)
        heads = scaled_dot_product_attention(q, k, v)
        return self.out(heads[:, :1].expand_as(heads).transpose(1, 2).flatten(2))
