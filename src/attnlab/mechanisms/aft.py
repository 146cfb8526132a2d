"""What if keys were never compared with a query? Each feature is a mean of its own; the query opens or shuts it.

The Attention Free Transformer (arXiv 2105.14103), said as an attention.
"""

from dataclasses import replace

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnlab.errors import BadSetting
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.merges import Gated
from attnlab.mechanisms.parts import Position
from attnlab.mechanisms.positions import within
from attnlab.mechanisms.scans import Mean, both, each_alone, nothing, one_pass, over_all, shown, so_far, steppable, wide
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.mechanisms.visibility import CAUSAL, Visible
from attnlab.randomness import Stream
from attnlab.shapes import AnyKey, AnyQuery, Bias, Heads, Key, Memory, Query, Scores, Value, Vectors

BLOCK = 16


class Unasked(nn.Module):
    """k, v = B x, C x, every feature a head of its own; no query is compared."""

    def __init__(self, *, d_model: int) -> None:
        super().__init__()
        self.maps = nn.ModuleDict({role: nn.Linear(d_model, d_model) for role in ("key", "value")})

    def forward(self, x: Vectors, memory: Memory | None = None, /) -> tuple[Query, tuple[Tensor, ...]]:
        source = x if memory is None else memory
        kept = tuple(rearrange(part(source), "b n h -> b h n 1") for part in self.maps.values())
        return rearrange(x, "b n h -> b h n 1")[..., :0], kept

    def open(self, *kept: Tensor) -> tuple[Key, Value]:
        return kept[0], kept[1]


class KeyAlone(nn.Module):
    """s_ij = k_j"""

    def forward(self, q: AnyQuery, k: AnyKey, at: Pairs, /) -> Scores:
        return rearrange(k, "b h j 1 -> b h 1 j").expand(-1, -1, q.shape[2], -1)


class Table(Position):
    """s_ij + w_ij, a learned number for each pair of places."""

    def __init__(self, *, length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(length, length))

    def draw(self, stream: Stream) -> None:
        self.table.normal_(0.0, 0.02, generator=stream("table"))

    def bias(self, q: Tensor, k: Tensor, at: Pairs) -> Bias:
        for tokens in at:
            within("aft-full", tokens, len(self.table))
        rows = at_places(self.table, at.queries)
        if at.keys.first is not None:
            columns = rows[..., at.keys.first : at.keys.first + len(at.keys)]
        else:
            columns = torch.take_along_dim(rows, at.keys.position[:, None], dim=-1)
        return columns[:, None].to(k.dtype)


class Near(Position):
    """s_ij + w_ij where |i - j| < last, a learned number for each such pair of places; 0 beyond, not hidden."""

    def __init__(self, *, length: int, last: int) -> None:
        super().__init__()
        if last < 1:
            raise BadSetting(f"aft-local(last={last}): a token is near itself, so at least 1")
        self.last = last
        self.table = nn.Parameter(torch.zeros(length, 2 * last - 1))

    def draw(self, stream: Stream) -> None:
        self.table.normal_(0.0, 0.02, generator=stream("table"))

    def bias(self, q: Tensor, k: Tensor, at: Pairs) -> Bias:
        within("aft-local", at.queries, len(self.table))
        distance = at.distance()
        column = (distance + self.last - 1).clamp(0, 2 * self.last - 2)
        near = torch.take_along_dim(at_places(self.table, at.queries)[:, None], column, dim=-1)
        return near.masked_fill(distance.abs() >= self.last, 0.0).to(k.dtype)


def at_places(table: Tensor, tokens: Tokens) -> Tensor:
    """The rows of the table at which the tokens stand, as (#b n columns)."""
    if tokens.first is not None:
        return table[None, tokens.first : tokens.first + len(tokens)]
    return table[tokens.position]


class AttentionFree(Attention):
    """Attention whose every feature is a head of width 1 and whose query is the gate of its merge.

    n² d weights are never stored. Causal, the keys before a block of queries are carried by one product for all
    features, and only those within the block one by one. Under any other rule all keys are taken one by one, a block
    of queries at a time, and again on the way back.
    """

    def __init__(self, *, d_model: int, visibility: Visible, position: Position | None = None) -> None:
        super().__init__(
            projection=Unasked(d_model=d_model),
            out=nn.Linear(d_model, d_model),
            position=position,
            score=KeyAlone(),
            visibility=visibility,
            merge=Gated(d_model=d_model, n_heads=d_model, d_head=1),
        )

    def forward(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Vectors:
        q, k, v, at = self._ask(x, memory, tokens, memory_tokens)
        if x.shape[1] <= BLOCK:
            return self._answer(q, k, v, at, x)
        if at.queries is at.keys and at.keys.first is not None and self.visibility.given(at) == CAUSAL:
            return self._out(self._behind(q, k, v, at), x, at)
        blocks = []
        for start in range(0, x.shape[1], BLOCK):
            rows = slice(start, start + BLOCK)
            block = (q[:, :, rows], k, v, Pairs(some_of(at.queries, rows), at.keys), x[:, rows])
            blocks.append(checkpoint(self._answer, *block, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(blocks, dim=1)

    def _behind(self, q: AnyQuery, k: Key, v: Value, at: Pairs) -> Heads:
        """Σ_{j≤i} exp(k_j + w_ij) v_j / Σ_{j≤i} exp(k_j + w_ij), for blocks of i."""
        n = k.shape[2]
        bias = self.position.bias(q, k, at)
        bias = torch.zeros(1, 1, n, n, dtype=k.dtype, device=k.device) if bias is None else bias
        key, carried, bias = k.mT.to(wide(k)), v.to(wide(v)), bias.to(wide(k))
        means = []
        for start in range(0, n, BLOCK):
            rows = slice(start, start + BLOCK)
            mean = one_by_one(key[..., rows] + bias[..., rows, rows], carried[:, :, rows])
            if start:
                mean = both(by_product(key[..., :start], bias[..., rows, :start], carried[:, :, :start]), mean)
            means.append(mean())
        return torch.cat(means, dim=2).to(v.dtype)

    def _out(self, heads: Heads, x: Vectors, at: Pairs) -> Vectors:
        return self.out(rearrange(self.merge(heads, x, at.queries), "b h i 1 -> b i h"))


def one_by_one(scores: Scores, v: Value) -> Mean:
    """The means of a block's own keys: row i those up to its own place."""
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    scores = scores.masked_fill(hidden, -torch.inf)
    top = scores.detach().amax(dim=-1, keepdim=True)  # it cancels, so it has no gradient
    weight = torch.exp(scores - top)
    return Mean(top, weight @ v, weight.sum(dim=-1, keepdim=True))


def by_product(key: Float[Tensor, "b h 1 j"], bias: Float[Tensor, "1 1 i j"], v: Value) -> Mean:
    """The means of keys that all rows see: exp(k_j + w_ij) is a product, each factor below its own top.

    One matrix serves every sentence and feature, so that they are carried by a single product.
    """
    key_top, bias_top = (t.detach().amax(dim=-1, keepdim=True) for t in (key, bias))
    loud, near = torch.exp(key - key_top), torch.exp(bias - bias_top)
    total, weight = (torch.cat([loud * v.mT, loud]).flatten(0, 2) @ near[0, 0].mT).chunk(2)
    return Mean(key_top + bias_top, *(t.reshape(*key.shape[:2], -1, 1) for t in (total, weight)))


def some_of(tokens: Tokens, rows: slice) -> Tokens:
    first = None if tokens.first is None else tokens.first + rows.start
    return replace(tokens.each(lambda run: run[:, rows]), first=first)


class Simple(AttentionFree):
    """The same where one mean serves all queries: at a cost of n, with a state that a step adds to."""

    def forward(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Vectors:
        causal = self.visibility.band.ahead == 0
        if causal and memory is not None:
            return super().forward(x, memory, tokens=tokens, memory_tokens=memory_tokens)
        if causal:
            return self.step(x, self.start(x), tokens=tokens)[0]
        _, k, v, at = self._ask(x, memory, tokens, memory_tokens)
        mean = over_all(k, v, shown(self.visibility, at))
        return self._out(mean.expand(-1, -1, x.shape[1], -1), x, at)

    def start(  # type: ignore[override]
        self,
        like: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Mean:
        steppable("aft-simple", self.visibility, memory)
        return nothing(like, like.shape[-1], 1)

    def step(  # type: ignore[override]
        self, x: Vectors, state: Mean, *, tokens: Tokens | None = None
    ) -> tuple[Vectors, Mean]:
        _, k, v, at = self._ask(x, None, tokens, None)
        means = both(state, so_far(each_alone(k, v, shown(self.visibility, at))))
        return self._out(means().to(v.dtype), x, at), means.rows(x.shape[1] - 1, x.shape[1])


def aft_full(*, d_model: int, length: int, visibility: Visible) -> AttentionFree:
    """y_i = W_o (σ(q_i) ⊙ Σ_j exp(k_j + w_ij) ⊙ v_j / Σ_j exp(k_j + w_ij)), w_ij learned"""
    return AttentionFree(d_model=d_model, visibility=visibility, position=Table(length=length))


def aft_local(*, d_model: int, length: int, visibility: Visible, last: int = 4) -> AttentionFree:
    """y_i = W_o (σ(q_i) ⊙ Σ_j exp(k_j + w_ij) ⊙ v_j / Σ_j exp(k_j + w_ij)), w_ij = 0 where |i - j| ≥ last"""
    return AttentionFree(d_model=d_model, visibility=visibility, position=Near(length=length, last=last))


def aft_simple(*, d_model: int, visibility: Visible) -> AttentionFree:
    """y_i = W_o (σ(q_i) ⊙ Σ_j exp(k_j) ⊙ v_j / Σ_j exp(k_j))"""
    form = Simple if one_pass(visibility) else AttentionFree
    return form(d_model=d_model, visibility=visibility)
