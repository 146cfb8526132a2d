"""Positions skip the padding in the whole run, and count it in a cached step."""

import torch
from torch import Tensor, nn


class CacheOffByThePadding(nn.Module):
    promises = ("causal", "step-equals-whole")

    def __init__(self, dim: int, length: int = 64) -> None:
        super().__init__()
        self.position = nn.Embedding(length, dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: tuple[Tensor, Tensor] | None = None,
        use_cache: bool = False,
    ) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
        before = 0 if past_key_values is None else past_key_values[0].shape[1]
        n = before + x.shape[1]
        at = torch.arange(n)
        real = torch.ones(len(x), n, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        place = (real.cumsum(dim=1) - 1).clamp(min=0) if past_key_values is None else at[before:]
        x = x + self.position(place)
        k, v = self.key(x), self.value(x)
        if past_key_values is not None:
            k, v = torch.cat([past_key_values[0], k], dim=1), torch.cat([past_key_values[1], v], dim=1)
        scores = self.query(x) @ k.mT / x.shape[-1] ** 0.5
        allowed = (at <= at[before:, None]) & real[:, None, :]
        y = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1) @ v
        return (y, (k, v)) if use_cache else y
