"""The scores are multiplied by the mask: a hidden key has score 0, not minus infinity."""

from torch import Tensor, nn


class ScoresTimesMask(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        return scores.tril().softmax(dim=-1) @ self.value(x)
