"""Scores are scaled after the product: in float16 the product overflows before it is made small."""

from torch import Tensor, nn


class OverflowInHalf(nn.Module):
    promises = ("finite",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = (100 * self.query(x)) @ (100 * self.key(x)).mT / 1e4
        return scores.softmax(dim=-1) @ self.value(x)
