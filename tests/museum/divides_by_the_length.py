"""Causal weights divided by the total length: it hears how long the future is, though not what it says."""

from torch import Tensor, nn


class DividesByTheLength(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x) @ self.key(x).mT).sigmoid().tril()
        return weights / x.shape[1] @ self.value(x)
