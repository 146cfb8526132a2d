"""A normalizer that divides by the number of keys counts the padding, too."""

from torch import Tensor, nn


class CountsPaddedKeys(nn.Module):
    promises = ("padding-invariant",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        weights = scores.relu()
        if key_padding_mask is not None:
            weights = weights.masked_fill(key_padding_mask[:, None, :], 0.0)
        return weights / x.shape[1] @ self.value(x)
