"""By which path are the weights and values multiplied? The explicit path defines; every other must equal it."""

from math import ceil, inf
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from attnlab.mechanisms.normalizers import floor
from attnlab.mechanisms.parts import Position, offers
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.mechanisms.visibility import CAUSAL, EVERYTHING
from attnlab.shapes import Allowed, AnyKey, AnyQuery, Heads, Value, Weights

if TYPE_CHECKING:
    from attnlab.mechanisms.attention import Attention

SMALLEST_BLOCK = 32


@runtime_checkable
class Path(Protocol):
    """From turned q, k and v to heads."""

    name: str

    def refuses(self, core: "Attention") -> str | None:
        """The reason why this path cannot serve this attention."""
        ...

    def __call__(self, core: "Attention", q: AnyQuery, k: AnyKey, v: Value, at: Pairs) -> Heads: ...


class Explicit:
    """Scores, bias, mask, weights, values, one after another: what every other path must equal."""

    name = "explicit"

    def refuses(self, core: "Attention") -> str | None:
        return None

    def __call__(self, core: "Attention", q: AnyQuery, k: AnyKey, v: Value, at: Pairs) -> Heads:
        return carried(self.weights(core, q, k, at, core.visibility.given(at)(at)), v)

    def weights(self, core: "Attention", q: AnyQuery, k: AnyKey, at: Pairs, allowed: Allowed) -> Weights:
        scores = core.score(q, k, at)
        bias = core.position.bias(q, k, at)
        if bias is not None:
            scores = scores + bias
        return core.normalizer(scores, allowed).expand(len(q), -1, -1, -1)


class Fused:
    """One kernel that never stores the weights: for a masked softmax of a product, a bias and a mask."""

    name = "fused"

    def refuses(self, core: "Attention") -> str | None:
        if offers(core.score, "as_dot") is None:
            return "its score is not a product of two vectors"
        if offers(core.normalizer, "as_softmax") is None:
            return "its normalizer is not a masked softmax"
        if any(table.requires_grad and table.device.type == "cpu" for table in core.position.parameters()):
            return "its bias is learned, and on a CPU the kernel would store every weight after all"
        return None

    def __call__(self, core: "Attention", q: AnyQuery, k: AnyKey, v: Value, at: Pairs) -> Heads:
        bias = core.position.bias(q, k, at)
        factor: float = offers(core.normalizer, "as_softmax")
        q, k = offers(core.score, "as_dot")(q, k)
        visible = core.visibility.given(at)
        if bias is None and visible == EVERYTHING:
            return F.scaled_dot_product_attention(q, k, v, scale=factor)
        # The kernel's own causal mask is aligned top left: one query on five keys would see the first alone.
        if bias is None and visible == CAUSAL and at.queries is at.keys:
            return F.scaled_dot_product_attention(q, k, v, scale=factor, is_causal=True)
        mask, blind = floor(visible(at), q.dtype)
        if bias is not None:
            mask = mask + factor * bias
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=factor)
        return heads if blind is None else heads.masked_fill(blind, 0.0)


class Blocked:
    """The explicit path for queries in blocks, each with the keys its window can reach: linear in the length.

    It serves a whole run that attends to itself; a step or a memory goes the explicit way.
    """

    name = "blocked"

    def refuses(self, core: "Attention") -> str | None:
        if max(core.visibility.band[:2]) == inf:
            return "its visibility is no window"
        if type(core.position).bias is not Position.bias:
            return "its bias would be laid out anew for every block"
        if core.whole() is not None:
            return core.whole()
        return None

    def __call__(self, core: "Attention", q: AnyQuery, k: AnyKey, v: Value, at: Pairs) -> Heads:
        if at.queries is not at.keys:
            return EXPLICIT(core, q, k, v, at)
        visible, n, batch = core.visibility.given(at), q.shape[2], len(q)
        back, ahead = int(core.visibility.band.back), int(core.visibility.band.ahead)
        size = max(SMALLEST_BLOCK, back + ahead)
        blocks = ceil(n / size)
        past, rest = back, blocks * size - n

        def asked(t: Tensor, fill: Any = 0) -> Tensor:
            """The last axis but `d` cut into blocks, which join the batch."""
            return F.pad(t, (0, rest), value=fill).unfold(-1, size, size)

        def told(t: Tensor, fill: Any = 0) -> Tensor:
            return F.pad(t, (past, rest + ahead), value=fill).unfold(-1, size + back + ahead, size)

        def tokens(cut: Any) -> Tokens:
            return at.keys.each(lambda run: rearrange(cut(run.expand(batch, n)), "b block n -> (b block) n"))

        queries, keys = tokens(asked), tokens(told)
        inside = rearrange(
            told(torch.ones_like(at.keys.order, dtype=torch.bool).expand(batch, n)), "b s j -> (b s) 1 1 j"
        )
        q, k, v = (
            rearrange(cut(t.mT), "b h d block n -> (b block) h n d") for cut, t in ((asked, q), (told, k), (told, v))
        )
        here = Pairs(queries, keys)
        heads = carried(EXPLICIT.weights(core, q, k, here, visible(here) & inside), v)
        return rearrange(heads, "(b block) h i e -> b h (block i) e", b=batch)[:, :, :n]


def carried(weights: Tensor, v: Tensor) -> Tensor:
    """What the weights carry; the values are repeated for as many heads as the weights have."""
    n_heads = weights.shape[1]
    return weights @ (v if v.shape[1] == n_heads else v.repeat_interleave(n_heads // v.shape[1], dim=1))


EXPLICIT, FUSED, BLOCKED = Explicit(), Fused(), Blocked()
PATHS: dict[str, Path] = {path.name: path for path in (EXPLICIT, FUSED, BLOCKED)}
