"""The padding mask is laid over the queries instead of the keys: real tokens still hear the padding."""

import torch
from torch import Tensor, nn


class PaddingOverQueries(nn.Module):
    promises = ("padding-invariant",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, :, None], torch.finfo(scores.dtype).min)
        return scores.softmax(dim=-1) @ self.value(x)
