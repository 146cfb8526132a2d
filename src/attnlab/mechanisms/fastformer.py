"""What if all tokens first became one query, then one key? Additive attention, twice."""

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from attnlab.errors import Refused
from attnlab.mechanisms.projections import separate
from attnlab.mechanisms.scans import (
    Mean,
    both,
    each_alone,
    nothing,
    only_one_pass,
    over_all,
    shown,
    so_far,
    steppable,
)
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.mechanisms.visibility import Visible
from attnlab.randomness import Stream
from attnlab.shapes import Heads, Memory, Vectors


class Behind(NamedTuple):
    """The global query and the global key of the tokens so far, as means under way."""

    query: Mean
    key: Mean


class Fastformer(nn.Module):
    """y_i = q_i + W_o (κ_i ⊙ v_i), by head (arXiv 2108.09084):

    g_i = Σ_j α_j q_j, α = softmax_j(a·q_j / √d), the global query;
    p_j = g_j ⊙ k_j;
    κ_i = Σ_j β_j p_j, β = softmax_j(c·p_j / √d), the global key.

    With everything visible, both sums run over all j, so that g and κ are the same for all: as published. Causal, every
    sum and softmax runs over j ≤ i, and p_j is made with the global query of position j, not of i: a step then never
    looks back, and equals the whole. Padding weighs nothing in either sum.
    """

    def __init__(self, *, d_model: int, n_heads: int, visibility: Visible) -> None:
        super().__init__()
        only_one_pass("fastformer", visibility)
        self.visibility, self.n_heads, self.d_head = visibility, n_heads, d_model // n_heads
        self.projection = separate(d_model=d_model, n_heads=n_heads)
        self.query_readout, self.key_readout = (
            nn.Parameter(torch.empty(n_heads, self.d_head).normal_()) for _ in range(2)
        )
        self.out = nn.Linear(d_model, d_model)

    def draw(self, stream: Stream) -> None:
        self.query_readout.normal_(generator=stream("query_readout"))
        self.key_readout.normal_(generator=stream("key_readout"))

    def forward(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Vectors:
        if memory is not None:
            raise Refused("fastformer makes queries and keys of one run, so it cannot attend to a memory")
        if self.visibility.band.ahead == 0:
            return self.step(x, self.start(x), tokens=tokens)[0]
        q, k, v, seen = self._ask(x, tokens)
        p = over_all(score(q, self.query_readout), q, seen) * k
        return self._answer(over_all(score(p, self.key_readout), p, seen) * v, q)

    def start(
        self,
        like: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Behind:
        steppable("fastformer", self.visibility, memory)
        none = nothing(like, self.n_heads, self.d_head)
        return Behind(none, none)

    def step(self, x: Vectors, state: Behind, *, tokens: Tokens | None = None) -> tuple[Vectors, Behind]:
        q, k, v, seen = self._ask(x, tokens)
        queries = both(state.query, so_far(each_alone(score(q, self.query_readout), q, seen)))
        p = queries().to(k.dtype) * k
        keys = both(state.key, so_far(each_alone(score(p, self.key_readout), p, seen)))
        n = x.shape[1]
        return self._answer(keys().to(v.dtype) * v, q), Behind(queries.rows(n - 1, n), keys.rows(n - 1, n))

    def _ask(self, x: Tensor, tokens: Tokens | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        run = Tokens.count(x.shape[1], device=x.device) if tokens is None else tokens
        q, kept = self.projection(x)
        return q, *self.projection.open(*kept), shown(self.visibility, Pairs(run, run))

    def _answer(self, carried: Heads, q: Heads) -> Vectors:
        u, q = (rearrange(t, "b h n d -> b n (h d)") for t in (carried, q))
        return self.out(u) + q


def fastformer(*, d_model: int, n_heads: int, visibility: Visible) -> Fastformer:
    """y_i = q_i + W_o (global key ⊙ v_i)"""
    return Fastformer(d_model=d_model, n_heads=n_heads, visibility=visibility)


def score(t: Tensor, readout: Tensor) -> Tensor:
    """a·t_j / √d, as (b h j 1)."""
    return t @ (readout * readout.shape[-1] ** -0.5).to(t.dtype)[..., None]
