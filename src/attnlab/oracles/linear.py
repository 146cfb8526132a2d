"""What if likeness needed no softmax?"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from attnlab.oracles.attention import Parts, attend
from attnlab.oracles.normalizers import Masks, Rows
from attnlab.oracles.projections import separate
from attnlab.oracles.tokens import Answer, Number, Pair, Parameters, Run, Vector, within
from attnlab.oracles.visibility import Rule


def linear(x: Tensor, runs: Sequence[Run], *, p: Parameters, visible: Rule, n_heads: int) -> Answer:
    """w_ij = φ(q_i)·φ(k_j) / Σ_allowed φ(q_i)·φ(k_j'), φ(t) = t + 1 above 0, exp(t) below"""
    parts = Parts(
        projection=partial(separate, p=within(p, "projection."), n_heads=n_heads),
        visible=visible,
        score=_likeness,
        normalizer=_shares,
    )
    return attend(x, runs, parts, p=p)


def _likeness(q: Vector, k: Vector, pair: Pair) -> Number:
    """φ(q)·φ(k)"""
    return torch.stack([_phi(t) for t in q]) @ torch.stack([_phi(t) for t in k])


def _phi(t: Number) -> Number:
    return t + 1 if t > 0 else torch.exp(t)


def _shares(scores: Rows, allowed: Masks) -> Rows:
    """s_j / Σ_allowed s_j'"""
    shares = []
    for row, ok in zip(scores, allowed, strict=True):
        seen = [s for s, may in zip(row, ok, strict=True) if may]
        shares.append(
            [s / torch.stack(seen).sum() if may else torch.zeros_like(s) for s, may in zip(row, ok, strict=True)]
        )
    return shares
