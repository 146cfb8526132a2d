"""The mask comes after the softmax: the denominator has already counted the future."""

from torch import Tensor, nn


class MaskAfterSoftmax(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        weights = scores.softmax(dim=-1).tril()
        return weights @ self.value(x)
