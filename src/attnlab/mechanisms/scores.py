"""How strongly does a query ask for a key?"""

from functools import partial
from math import log

import torch
from einops import einsum, rearrange
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attnlab.errors import BadSetting
from attnlab.mechanisms.tokens import Pairs
from attnlab.randomness import Stream, by_width
from attnlab.shapes import Key, Query, Scores

STORED = 2**25
"""The most numbers that a score may keep for each tensor between q, k and itself."""


class ScaledDot(nn.Module):
    """s_ij = q_i·k_j / √(terms·d)"""

    def __init__(self, *, terms: int = 1) -> None:
        super().__init__()
        if terms < 1:
            raise BadSetting(f"scaled-dot(terms={terms}): at least 1 term")
        self.terms = terms

    def as_dot(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q * (self.terms * q.shape[-1]) ** -0.5, k

    def forward(self, q: Query, k: Key, at: Pairs, /) -> Scores:
        return product(*self.as_dot(q, k))


class Dot(nn.Module):
    """s_ij = q_i·k_j"""

    def as_dot(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def forward(self, q: Query, k: Key, at: Pairs, /) -> Scores:
        return product(q, k)


class Cosine(nn.Module):
    """s_ij = cos(q_i, k_j) / τ: direction alone, never length."""

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = above_zero("cosine", temperature=temperature)

    def as_dot(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(q, dim=-1) / self.temperature, F.normalize(k, dim=-1)

    def forward(self, q: Query, k: Key, at: Pairs, /) -> Scores:
        return product(*self.as_dot(q, k))


class Correlation(nn.Module):
    """s_ij = corr(q_i, k_j) / τ: the cosine after each vector has lost its mean."""

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = above_zero("correlation", temperature=temperature)

    def as_dot(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (t - t.mean(dim=-1, keepdim=True) for t in (q, k))
        return F.normalize(q, dim=-1) / self.temperature, F.normalize(k, dim=-1)

    def forward(self, q: Query, k: Key, at: Pairs, /) -> Scores:
        return product(*self.as_dot(q, k))


class NegativeSquaredDistance(nn.Module):
    """s_ij = -|q_i - k_j|² / √d"""

    def forward(self, q: Query, k: Key, at: Pairs, /) -> Scores:
        return -squared_distance(q, k) * q.shape[-1] ** -0.5


class Gaussian(nn.Module):
    """s_ij = -|q_i - k_j|² / (2σ_h²): after the softmax a Gaussian kernel of learned width for each head."""

    def __init__(self, *, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.begin = 0.25 * log(d_head)  # as sharp as the squared distance over 2√d
        self.log_width = nn.Parameter(torch.full((n_heads,), self.begin))

    def draw(self, stream: Stream) -> None:
        self.log_width.fill_(self.begin)

    def forward(self, q: Query, k: Key, at: Pairs, /) -> Scores:
        sharpness = 0.5 * torch.exp(-2 * self.log_width)
        return -squared_distance(q, k) * sharpness[:, None, None].to(q.dtype)


class Additive(nn.Module):
    """s_ij = u_h·tanh(q_i + k_j)"""

    def __init__(self, *, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.readout = nn.Parameter(torch.empty(n_heads, d_head))
        nn.init.normal_(self.readout)

    def draw(self, stream: Stream) -> None:
        self.readout.normal_(generator=stream("readout"))

    def forward(self, q: Query, k: Key, at: Pairs, /) -> Scores:
        # n² d numbers stand between q, k and the scores: where they are many they go a block of queries at a time,
        # and are computed again on the way back instead of being stored.
        readout = self.readout.to(q.dtype)
        rows = max(1, STORED // (k.numel() or 1))
        if rows >= q.shape[2]:
            return _additive(q, k, readout)
        again = partial(checkpoint, _additive, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([again(part, k, readout) for part in q.split(rows, dim=2)], dim=2)


def _additive(q: Tensor, k: Tensor, readout: Tensor) -> Tensor:
    return (torch.tanh(q[:, :, :, None] + k[:, :, None]) @ readout[:, None, :, None]).squeeze(-1)


class Bilinear(nn.Module):
    """s_ij = q_i·(M_h k_j) / √d"""

    def __init__(self, *, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.between = nn.Parameter(torch.empty(n_heads, d_head, d_head))
        nn.init.normal_(self.between, std=d_head**-0.5)

    def draw(self, stream: Stream) -> None:
        self.between.normal_(0.0, by_width(self.between), generator=stream("between"))

    def as_dot(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        asked = einsum(q, self.between.to(q.dtype), "b h i d, h d c -> b h i c")
        return asked * q.shape[-1] ** -0.5, k

    def forward(self, q: Query, k: Key, at: Pairs, /) -> Scores:
        return product(*self.as_dot(q, k))


def product(q: Tensor, k: Tensor) -> Tensor:
    """Every query with every key."""
    return q @ rearrange(k, "b h j d -> b h d j")


def squared_distance(q: Tensor, k: Tensor) -> Tensor:
    """By differences: written as products it cancels, 7e-2 against 1e-5 in float32 at an offset of 100."""
    if q.dtype in (torch.bfloat16, torch.float16):
        return squared_distance(q.float(), k.float()).to(q.dtype)
    return torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist").square()


def above_zero(part: str, **setting: float) -> float:
    """The one setting, or the sentence that says it must be positive."""
    ((name, value),) = setting.items()
    if not value > 0:
        raise BadSetting(f"{part}({name}={value}): {name} must be above 0")
    return value
