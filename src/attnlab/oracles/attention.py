"""Attention, one query and one key at a time: what the six answers are when they are asked in order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnlab.oracles.merges import Heads, concatenate
from attnlab.oracles.normalizers import Normalizer, Rows, softmax
from attnlab.oracles.positions import Bias, Turn, none
from attnlab.oracles.projections import Asked, affine, separate
from attnlab.oracles.scores import scaled_dot
from attnlab.oracles.tokens import Answer, Number, Pair, Parameters, Run, Vector, stacked, within
from attnlab.oracles.visibility import Rule

Sided = Sequence[Sequence[Vector]]
"""A vector for each token and head."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The slow twins of the six answers."""

    projection: Callable[[Vector], Asked]
    visible: Rule
    score: Callable[[Vector, Vector, Pair], Number]
    normalizer: Normalizer
    turn: Turn = none
    bias: Bias | None = None
    merge: Callable[[Heads, Tensor], Heads] = concatenate


def attend(x: Tensor, runs: Sequence[Run], parts: Parts, *, p: Parameters) -> Answer:
    """y_i = A [merge(Σ_j w_ij v_j)] + a, w_i = normalizer(score(q_i, k_j) + bias), q and k turned by position"""
    heads, weights = [], []
    for tokens, run in zip(x, runs, strict=True):
        asked = [parts.projection(t) for t in tokens]
        q = [[parts.turn(t, at) for t in one.q] for one, at in zip(asked, run.positions, strict=True)]
        k = [[parts.turn(t, at) for t in one.k] for one, at in zip(asked, run.positions, strict=True)]
        weights.append([weigh(i, q, k, run, parts) for i in range(len(tokens))])
        heads.append(
            [[weighed(row, [one.v[h] for one in asked]) for h, row in enumerate(rows)] for rows in weights[-1]]
        )
    merged = parts.merge(heads, x)
    y = stacked([[affine(p, "out", torch.cat(list(token))) for token in run] for run in merged])
    return Answer(y, stacked(weights).transpose(1, 2))


def weigh(i: int, q: Sided, k: Sided, run: Run, parts: Parts) -> Rows:
    """The weights of one query, head by head and key by key."""
    scores = []
    for h in range(len(q[i])):
        row = []
        for j in range(len(k)):
            pair = Pair(h, i, j, run.positions[i], run.positions[j])
            s = parts.score(q[i][h], k[j][h], pair)
            row.append(s if parts.bias is None else s + parts.bias(q[i][h], k[j][h], pair))
        scores.append(row)
    allowed = [parts.visible(i, j, run.marks) for j in range(len(k))]
    return parts.normalizer(scores, [allowed] * len(scores))


def weighed(weights: Sequence[Number], values: Sequence[Vector]) -> Vector:
    """Σ_j w_j v_j"""
    return torch.stack([w * v for w, v in zip(weights, values, strict=True)]).sum(dim=0)


def plain(x: Tensor, runs: Sequence[Run], *, p: Parameters, n_heads: int, visible: Rule) -> Answer:
    """y = W_o [w¹v¹ … wᴴvᴴ], w_ij = exp(q_i·k_j / √d) / Σ_allowed exp(q_i·k_j' / √d)"""
    parts = Parts(
        projection=partial(separate, p=within(p, "projection."), n_heads=n_heads),
        visible=visible,
        score=partial(scaled_dot, terms=1),
        normalizer=partial(softmax, temperature=1.0),
    )
    return attend(x, runs, parts, p=p)
