"""Dropout that was not told about eval mode."""

from torch import Tensor, nn
from torch.nn.functional import dropout


class DropoutAlways(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5).softmax(dim=-1)
        return dropout(weights, 0.1) @ self.value(x)
