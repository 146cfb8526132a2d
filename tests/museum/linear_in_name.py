"""Linear attention multiplied in the wrong order: it makes all pairs after all."""

from torch import Tensor, nn
from torch.nn.functional import elu


class LinearInName(nn.Module):
    promises = ("causal", "cost:n^1")

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = elu(self.query(x)) + 1, elu(self.key(x)) + 1
        pairs = (q @ k.mT).tril()
        return pairs / pairs.sum(dim=-1, keepdim=True) @ self.value(x)
