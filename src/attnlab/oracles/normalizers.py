"""How much? The scores of one query, head by head and key by key, and where it may look."""

from collections.abc import Callable, Sequence
from math import log

import torch

from attnlab.oracles.projections import sigma
from attnlab.oracles.tokens import Number, Parameters

Rows = Sequence[Sequence[Number]]
Masks = Sequence[Sequence[bool]]
Normalizer = Callable[[Rows, Masks], Rows]


def _shares(scores: Sequence[Number], *others: Number) -> list[Number]:
    """exp(s_j) / Σ exp(s_j'), the sum also over the others; the largest is taken off first, which changes nothing."""
    top = max(*scores, *others, key=float) if len(scores) + len(others) > 1 else scores[0]
    parts = [torch.exp(s - top) for s in (*scores, *others)]
    total = torch.stack(parts).sum()
    return [part / total for part in parts[: len(scores)]]


def over_allowed(scores: Sequence[Number], allowed: Sequence[bool], *others: Number) -> list[Number]:
    """The shares of the allowed keys among themselves; 0 for the hidden ones."""
    seen = [s for s, ok in zip(scores, allowed, strict=True) if ok]
    shares = iter(_shares(seen, *others) if seen else [])
    return [next(shares) if ok else torch.zeros_like(s) for s, ok in zip(scores, allowed, strict=True)]


def softmax(scores: Rows, allowed: Masks, *, temperature: float) -> Rows:
    """exp(s_j / τ) / Σ_allowed exp(s_j' / τ)"""
    return [over_allowed([s / temperature for s in row], ok) for row, ok in zip(scores, allowed, strict=True)]


def temperature(scores: Rows, allowed: Masks, *, t: float) -> Rows:
    """softmax(s / t)"""
    return softmax(scores, allowed, temperature=t)


def sink(scores: Rows, allowed: Masks, *, p: Parameters) -> Rows:
    """exp(s_j) / (exp(c_h) + Σ_allowed exp(s_j'))"""
    rows = zip(scores, allowed, p["logit"], strict=True)
    return [over_allowed(row, ok, logit) for row, ok, logit in rows]


def sigmoid_weights(scores: Rows, allowed: Masks) -> Rows:
    """σ(s_j - ln n), n the number of allowed keys"""
    return [
        [sigma(s - log(sum(ok))) if may else torch.zeros_like(s) for s, may in zip(row, ok, strict=True)]
        for row, ok in zip(scores, allowed, strict=True)
    ]


def relu_weights(scores: Rows, allowed: Masks) -> Rows:
    """max(s_j, 0) / n, n the number of allowed keys"""
    return [
        [s.clamp(min=0) / sum(ok) if may else torch.zeros_like(s) for s, may in zip(row, ok, strict=True)]
        for row, ok in zip(scores, allowed, strict=True)
    ]


def sparsemax(scores: Rows, allowed: Masks) -> Rows:
    """max(s_j - θ, 0), θ so that Σ_allowed = 1"""
    return [_nearest(row, ok) for row, ok in zip(scores, allowed, strict=True)]


def _nearest(scores: Sequence[Number], allowed: Sequence[bool]) -> list[Number]:
    """θ = (Σ s - 1) / n over the keys above θ, found by leaving out those below until none is.

    The largest is taken off first, which changes nothing.
    """
    seen = [s for s, may in zip(scores, allowed, strict=True) if may]
    if not seen:
        return [torch.zeros_like(s) for s in scores]
    top = max(seen, key=float)
    above, left_out = [s - top for s in seen], 1
    while left_out:
        theta = (torch.stack(above).sum() - 1) / len(above)
        still = [s for s in above if s > theta]
        above, left_out = still, len(above) - len(still)
    return [
        (s - top - theta).clamp(min=0) if may else torch.zeros_like(s) for s, may in zip(scores, allowed, strict=True)
    ]


def talking_heads(scores: Rows, allowed: Masks, *, p: Parameters, normalizer: Normalizer) -> Rows:
    """A·norm(B·s): head g hears Σ_h B_gh s_h before, and Σ_h A_gh w_h after."""
    return _mixed(p["after"], normalizer(_mixed(p["before"], scores), allowed))


def _mixed(table: torch.Tensor, rows: Rows) -> Rows:
    return [[by_head @ torch.stack(column) for column in zip(*rows, strict=True)] for by_head in table]


def zero_after_softmax(scores: Rows, allowed: Masks) -> Rows:
    """softmax(s)·allowed"""
    return [
        [w * int(may) for w, may in zip(_shares(row), ok, strict=True)] for row, ok in zip(scores, allowed, strict=True)
    ]


def zero_after_softmax_renormalized(scores: Rows, allowed: Masks) -> Rows:
    """softmax(s)·allowed / Σ_j softmax(s)_j·allowed_j"""
    rows = zero_after_softmax(scores, allowed)
    return [[w / torch.stack(list(row)).sum() for w in row] for row in rows]


def scores_times_mask(scores: Rows, allowed: Masks) -> Rows:
    """softmax(s·allowed)"""
    return [
        _shares([s * int(may) for s, may in zip(row, ok, strict=True)]) for row, ok in zip(scores, allowed, strict=True)
    ]


def finite_floor(scores: Rows, allowed: Masks, *, floor: float) -> Rows:
    """softmax(s where allowed, else floor)"""
    return [
        _shares([s if may else torch.full_like(s, floor) for s, may in zip(row, ok, strict=True)])
        for row, ok in zip(scores, allowed, strict=True)
    ]
