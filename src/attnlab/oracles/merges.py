"""How do the heads come together? heads[b][i][h] is the vector of one head of one token."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from attnlab.oracles.projections import affine, cut, sigma
from attnlab.oracles.tokens import Number, Parameters, Vector

Heads = Sequence[Sequence[Sequence[Vector]]]


def _each(heads: Heads, change: Callable[[int, int, int], Vector]) -> Heads:
    """change(b, i, h) in the place of every vector."""
    return [
        [[change(b, i, h) for h in range(len(token))] for i, token in enumerate(run)] for b, run in enumerate(heads)
    ]


def concatenate(heads: Heads, x: Tensor) -> Heads:
    """[o¹ … oᴴ]"""
    return heads


def shuffle(heads: Heads, x: Tensor, *, p: Parameters, n_heads: int) -> Heads:
    """[oˢ⁽¹⁾ … oˢ⁽ᴴ⁾], s the next order that the generator draws"""
    generator = torch.Generator()
    generator.set_state(p["_extra_state"])
    order = torch.randperm(n_heads, generator=generator).tolist()
    return _each(heads, lambda b, i, h: heads[b][i][order[h]])


def shuffle_fixed(heads: Heads, x: Tensor, *, p: Parameters) -> Heads:
    """[oˢ⁽¹⁾ … oˢ⁽ᴴ⁾], s the order that was drawn once"""
    return _each(heads, lambda b, i, h: heads[b][i][int(p["order"][h])])


def shift(heads: Heads, x: Tensor) -> Heads:
    """[o² … oᴴ o¹]"""
    return _each(heads, lambda b, i, h: heads[b][i][(h + 1) % len(heads[b][i])])


def _norm(vectors: Iterable[Vector]) -> Number:
    """√Σ of all squares"""
    return torch.sqrt(torch.stack([t @ t for t in vectors]).sum())


def reweight_token(heads: Heads, x: Tensor) -> Heads:
    """o·‖o‖, the norm of this head of this token"""
    return _each(heads, lambda b, i, h: heads[b][i][h] * _norm([heads[b][i][h]]))


def reweight_sequence(heads: Heads, x: Tensor) -> Heads:
    """oʰ·‖Oʰ‖, the norm of this head over all tokens of the sequence"""
    return _each(heads, lambda b, i, h: heads[b][i][h] * _norm(token[h] for token in heads[b]))


def reweight_batch(heads: Heads, x: Tensor) -> Heads:
    """oʰ·‖Oʰ‖, the norm of this head over all tokens of the batch"""
    return _each(heads, lambda b, i, h: heads[b][i][h] * _norm(token[h] for run in heads for token in run))


def gated(heads: Heads, x: Tensor, *, p: Parameters) -> Heads:
    """oʰ·σ(Gʰ x)"""
    return _each(heads, lambda b, i, h: heads[b][i][h] * cut(sigma(affine(p, "gate", x[b, i])), len(heads[b][i]))[h])
