"""What can one pass over the tokens say? Running means whose numbers no later token touches."""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab.errors import Refused
from attnlab.mechanisms.normalizers import masked_softmax
from attnlab.mechanisms.tokens import Pairs
from attnlab.mechanisms.visibility import CAUSAL, EVERYTHING, And, KeysAre, Visible
from attnlab.shapes import Value

Loudness = Float[Tensor, "b h j 1"]
Seen = Bool[Tensor, "#b 1 j 1"]


def one_pass(visibility: Visible) -> bool:
    """Everything, or j ≤ i, and keys hidden from all alike: what one running sum can say."""
    if isinstance(visibility, And):
        return one_pass(visibility.one) and one_pass(visibility.other)
    return visibility in (EVERYTHING, CAUSAL) or isinstance(visibility, KeysAre)


def only_one_pass(name: str, visibility: Visible) -> None:
    if not (isinstance(visibility, Visible) and one_pass(visibility)):
        raise Refused(f"{name} keeps one running sum; it can be causal or see everything, & padding, and nothing else")


def steppable(name: str, visibility: Visible, memory: Tensor | None) -> None:
    if memory is not None:
        raise Refused(f"{name} cannot go token by token through a memory")
    if visibility.band.ahead > 0:
        raise Refused(f"{name} cannot go token by token: it looks ahead; a causal one can")


def shown(visibility: Visible, at: Pairs) -> Bool[Tensor, "#b 1 j 1"]:
    """The keys that are not padding: those that the last of the queries may look at."""
    rule, keys = visibility.given(at), at.keys
    if rule.band.ahead == 0 and keys.first is None and bool((keys.order.diff(dim=-1) <= 0).any()):
        raise Refused("a running sum takes tokens as they stand, and their order here does not rise")
    return rearrange(rule(Pairs(at.queries.last(1), keys)), "b 1 1 j -> b 1 j 1")


class Mean(NamedTuple):
    """Weighted means under way: Σ exp(s_j - top) v_j and Σ exp(s_j - top), top the largest s_j so far.

    Every row has a top of its own, so that no token hears, not even by rounding, how loud a later one is.
    """

    top: Tensor
    total: Tensor
    weight: Tensor

    def __call__(self) -> Tensor:
        return ratio(self.total, self.weight)

    def rows(self, start: int, end: int, stride: int = 1) -> "Mean":
        return Mean(*(t[..., start:end:stride, :] for t in self))


def nothing(like: Tensor, n_heads: int, d_head: int) -> Mean:
    """The mean of no token."""
    zero = torch.zeros(len(like), n_heads, 1, d_head, dtype=wide(like), device=like.device)
    return Mean(torch.full_like(zero[..., :1], torch.finfo(zero.dtype).min), zero, zero[..., :1])


def each_alone(scores: Loudness, v: Value, seen: Seen) -> Mean:
    """Every token a mean of its own; one that is not seen weighs nothing."""
    scores = scores.to(wide(scores)).masked_fill(~seen, torch.finfo(wide(scores)).min)
    # The top cancels, so it has no gradient; the weight is 1 and has one.
    weight = torch.exp(scores - scores.detach()).masked_fill(~seen, 0.0)
    return Mean(scores.detach(), weight * v, weight)


def both(one: Mean, other: Mean) -> Mean:
    top = torch.maximum(one.top, other.top)
    left, right = torch.exp(one.top - top), torch.exp(other.top - top)
    return Mean(top, left * one.total + right * other.total, left * one.weight + right * other.weight)


def so_far(means: Mean) -> Mean:
    """Row i: the tokens up to i. Pairs of neighbors run through, and the rows between filled in: 2n sums."""
    n = means.top.shape[-2]
    if n <= 1:
        return means
    odd = so_far(both(means.rows(0, n - 1, 2), means.rows(1, n, 2)))
    even = both(odd.rows(0, (n - 1) // 2), means.rows(2, n, 2))
    first = means.rows(0, 1)
    return Mean(*(zipped(torch.cat([f, e], dim=-2), o) for f, e, o in zip(first, even, odd, strict=True)))


def zipped(even: Tensor, odd: Tensor) -> Tensor:
    n = odd.shape[-2]
    pairs = torch.stack([even[..., :n, :], odd], dim=-2).flatten(-3, -2)
    return torch.cat([pairs, even[..., n:, :]], dim=-2)


def over_all(scores: Loudness, v: Value, seen: Seen) -> Float[Tensor, "b h 1 e"]:
    """Σ_j exp(s_j) v_j / Σ_j exp(s_j), one row for all."""
    return masked_softmax(scores.mT, seen.mT) @ v


def ratio(total: Tensor, weight: Tensor) -> Tensor:
    """total / weight, and 0 where nothing weighs.

    Nor where next to nothing does: the gradient divides by the weight again, and would be no number.
    """
    least = torch.finfo(weight.dtype).tiny ** 0.8
    faint = weight < least
    return (total / weight.masked_fill(faint, 1.0)).masked_fill(faint, 0.0)


def wide(t: Tensor) -> torch.dtype:
    """The type that a long sum of these is kept in: at least float32."""
    return torch.promote_types(t.dtype, torch.float32)
