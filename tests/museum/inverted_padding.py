"""A padding mask of the other polarity: the real tokens are hidden, and the padding is heard."""

import torch
from torch import Tensor, nn


class InvertedPadding(nn.Module):
    promises = ("padding-invariant",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None, :].bool(), torch.finfo(scores.dtype).min)
        return scores.softmax(dim=-1) @ self.value(x)
