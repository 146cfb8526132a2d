"""Can attention cost no more than its length? Without a softmax all that is behind a token is one sum."""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.projections import separate
from attnlab.mechanisms.scans import only_one_pass, ratio, shown, steppable, wide
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.mechanisms.visibility import Visible
from attnlab.shapes import Allowed, Heads, Key, Memory, Query, Scores, Value, Vectors, Weights

CHUNK = 64


class Features(nn.Module):
    """s_ij = φ(q_i)·φ(k_j) / Σ_d φ(q_i)_d, φ(t) = elu(t) + 1.

    The factor of a query falls out of its weights; it is divided out before it can underflow.
    """

    def as_dot(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        # elu(t) + 1 as it is usually written cancels: below t = -17 nothing is left of it in float32.
        asked = torch.softmax(q.clamp(max=0) + torch.log1p(F.relu(q)), dim=-1)
        return asked, torch.exp(k.clamp(max=0)) + F.relu(k)

    def forward(self, q: Query, k: Key, at: Pairs, /) -> Scores:
        asked, told = self.as_dot(q.to(wide(q)), k.to(wide(k)))
        return (asked @ told.mT).to(q.dtype)


class Shares(nn.Module):
    """w_ij = s_ij / Σ_allowed s_ij', for scores that are never negative"""

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        kept = scores.masked_fill(~allowed, 0.0)
        return ratio(kept, kept.sum(dim=-1, keepdim=True))


class Sums(NamedTuple):
    """S = Σ φ(k_j) [v_j, 1]ᵀ over the tokens behind: its last column is what the formula calls z."""

    sums: Tensor


class LinearAttention(Attention):
    """y_i = W_o [… Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j) …], φ(t) = elu(t) + 1 (arXiv 2006.16236).

    j runs over all keys or, causal, over j ≤ i, without padding. The weights are as of any attention; the output is
    made without them, from sums, at a cost of n and with a state that a step adds to.
    """

    def __init__(self, *, d_model: int, n_heads: int, visibility: Visible) -> None:
        only_one_pass("linear", visibility)
        super().__init__(
            projection=separate(d_model=d_model, n_heads=n_heads),
            out=nn.Linear(d_model, d_model),
            score=Features(),
            normalizer=Shares(),
            visibility=visibility,
        )
        self.n_heads, self.d_head = n_heads, d_model // n_heads

    def forward(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Vectors:
        causal = self.visibility.band.ahead == 0
        if causal and memory is not None:  # a query may stand anywhere among the keys, so no chunk serves it
            return super().forward(x, memory, tokens=tokens, memory_tokens=memory_tokens)
        q, k, v, at = self._ask(x, memory, tokens, memory_tokens)
        heads, _ = through(q, k, v, shown(self.visibility, at), self._nothing(x), causal=causal)
        return self.out(rearrange(heads, "b h i e -> b i (h e)"))

    def start(  # type: ignore[override]
        self,
        like: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Sums:
        steppable("linear", self.visibility, memory)
        return Sums(self._nothing(like))

    def step(  # type: ignore[override]
        self, x: Vectors, state: Sums, *, tokens: Tokens | None = None
    ) -> tuple[Vectors, Sums]:
        q, k, v, at = self._ask(x, None, tokens, None)
        heads, sums = through(q, k, v, shown(self.visibility, at), state.sums, causal=True)
        return self.out(rearrange(heads, "b h i e -> b i (h e)")), Sums(sums)

    def _nothing(self, like: Tensor) -> Tensor:
        shape = (len(like), self.n_heads, self.d_head, self.d_head + 1)
        return torch.zeros(shape, dtype=wide(like), device=like.device)


def linear(*, d_model: int, n_heads: int, visibility: Visible) -> LinearAttention:
    """w_ij = φ(q_i)·φ(k_j) / Σ_allowed φ(q_i)·φ(k_j'), φ(t) = elu(t) + 1"""
    return LinearAttention(d_model=d_model, n_heads=n_heads, visibility=visibility)


def through(
    q: Query, k: Key, v: Value, seen: Bool[Tensor, "#b 1 j 1"], sums: Tensor, *, causal: bool
) -> tuple[Heads, Tensor]:
    """The heads, and the sums after these tokens, which are kept in the type that the sums came in."""
    asked, told = Features().as_dot(q.to(sums.dtype), k.to(sums.dtype))
    told = told.masked_fill(~seen, 0.0)
    carried = F.pad(v.to(sums.dtype), (0, 1), value=1.0)
    if not causal:
        sums = sums + told.mT @ carried
        return ratio_of_last(asked @ sums).to(v.dtype), sums
    n = q.shape[2]
    chunk = min(CHUNK, max(n, 1))
    asked, told, carried = (
        rearrange(F.pad(t, (0, 0, 0, -n % chunk)), "b h (m c) d -> b h m c d", c=chunk) for t in (asked, told, carried)
    )
    # The sum before a chunk never holds the chunk: taking it off again would leave its rounding to those before.
    before = torch.cat([sums[:, :, None], (told.mT @ carried).to(sums.dtype)], dim=2).cumsum(dim=2)
    inside = (asked @ told.mT).tril() @ carried
    heads = rearrange(inside + asked @ before[:, :, :-1], "b h m c e -> b h (m c) e")[:, :, :n]
    return ratio_of_last(heads).to(v.dtype), before[:, :, -1]


def ratio_of_last(t: Tensor) -> Tensor:
    return ratio(t[..., :-1], t[..., -1:])
