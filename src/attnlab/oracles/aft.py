"""What if keys were never compared with a query? Feature by feature, a mean of what may be seen."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnlab.oracles.projections import affine, sigma
from attnlab.oracles.tokens import Answer, Number, Parameters, Run, Vector, stacked
from attnlab.oracles.visibility import Rule


def aft_full(x: Tensor, runs: Sequence[Run], *, p: Parameters, visible: Rule) -> Answer:
    """y_i = W_o (σ(q_i) ⊙ Σ_j exp(k_j + w_ij) ⊙ v_j / Σ_j exp(k_j + w_ij)), w_ij for each pair of positions"""
    return _means(x, runs, p, visible, lambda at_i, at_j: p["position.table"][at_i, at_j])


def aft_simple(x: Tensor, runs: Sequence[Run], *, p: Parameters, visible: Rule) -> Answer:
    """The same, w_ij = 0"""
    return _means(x, runs, p, visible, lambda at_i, at_j: x.new_zeros(()))


def aft_local(x: Tensor, runs: Sequence[Run], *, p: Parameters, visible: Rule, last: int) -> Answer:
    """The same, w_ij for |i - j| < last, else 0: row i of the table runs from i - j = -(last - 1) to last - 1"""

    def near(at_i: int, at_j: int) -> Number:
        return p["position.table"][at_i, at_i - at_j + last - 1] if abs(at_i - at_j) < last else x.new_zeros(())

    return _means(x, runs, p, visible, near)


def _means(x: Tensor, runs: Sequence[Run], p: Parameters, visible: Rule, w: Callable[[int, int], Number]) -> Answer:
    output, weights = [], []
    for tokens, run in zip(x, runs, strict=True):
        k, v = ([affine(p, f"projection.maps.{role}", t) for t in tokens] for role in ("key", "value"))
        ys, rows = [], []
        for i, t in enumerate(tokens):
            at_i, *ats = run.positions[i], *run.positions
            calls = [k_j + w(at_i, at_j) for k_j, at_j in zip(k, ats, strict=True)]
            shares = _shares(calls, [visible(i, j, run.marks) for j in range(len(tokens))])
            mean = torch.stack([share * v_j for share, v_j in zip(shares, v, strict=True)]).sum(dim=0)
            ys.append(affine(p, "out", sigma(affine(p, "merge.gate", t)) * mean))
            rows.append(shares)
        output.append(ys)
        weights.append(rows)
    return Answer(stacked(output), stacked(weights).permute(0, 3, 1, 2))


def _shares(calls: Sequence[Vector], allowed: Sequence[bool]) -> list[Vector]:
    """exp(s_j) / Σ_allowed exp(s_j') for every feature; the largest is taken off first, which changes nothing."""
    seen = [s for s, may in zip(calls, allowed, strict=True) if may]
    if not seen:
        return [torch.zeros_like(s) for s in calls]
    top = torch.stack(seen).amax(dim=0)
    total = torch.stack([torch.exp(s - top) for s in seen]).sum(dim=0)
    return [torch.exp(s - top) / total if may else torch.zeros_like(s) for s, may in zip(calls, allowed, strict=True)]
