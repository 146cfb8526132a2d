"""Can noise be taken off attention?"""

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor

from attnlab.oracles.attention import weighed
from attnlab.oracles.normalizers import over_allowed
from attnlab.oracles.positions import Bias, Turn, none
from attnlab.oracles.projections import ROLES, affine, cut
from attnlab.oracles.tokens import Answer, Number, Pair, Parameters, Run, Vector, stacked
from attnlab.oracles.visibility import Rule


def differential(
    x: Tensor,
    runs: Sequence[Run],
    *,
    p: Parameters,
    visible: Rule,
    n_heads: int,
    begin: float,
    turn: Turn | None,
    bias: Bias | None,
) -> Answer:
    """y = W_o [(1 - begin) g ⊙ oʰ / √(mean(oʰ²) + 1e-5)], oʰ = w v, w = softmax(s¹) - λ softmax(s²)

    Each s is q·k / √(d/2) of a half, λ = exp(a·b) - exp(c·d) + begin. A bias goes to both halves.
    """
    (a, c), (b, d) = p["normalizer.lambda_q"], p["normalizer.lambda_k"]
    factor = torch.exp(a @ b) - torch.exp(c @ d) + begin
    turn = turn or none

    def score(half: int, q: Vector, k: Vector, pair: Pair) -> Number:
        q_i, k_j = turn(cut(q, 2)[half], pair.at_i), turn(cut(k, 2)[half], pair.at_j)
        s = q_i @ k_j / sqrt(len(q_i))
        return s if bias is None else s + bias(q, k, pair)

    def subtracted(h: int, i: int, q: Sequence[Vector], k: Sequence[Vector], run: Run) -> list[Number]:
        pairs = [Pair(h, i, j, run.positions[i], at_j) for j, at_j in enumerate(run.positions)]
        allowed = [visible(i, j, run.marks) for j in range(len(k))]
        first, second = (
            over_allowed([score(half, q[i], k[pair.j], pair) for pair in pairs], allowed) for half in (0, 1)
        )
        return [one - factor * other for one, other in zip(first, second, strict=True)]

    output, weights = [], []
    for tokens, run in zip(x, runs, strict=True):
        by_role = [[cut(affine(p, f"projection.maps.{role}", t), n_heads) for t in tokens] for role in ROLES]
        q, k, v = ([[token[h] for token in side] for h in range(n_heads)] for side in by_role)
        w = [[subtracted(h, i, q[h], k[h], run) for i in range(len(tokens))] for h in range(n_heads)]
        heads = [[weighed(row, v[h]) for row in w[h]] for h in range(n_heads)]
        level = [[o / torch.sqrt(o @ o / len(o) + 1e-5) * p["merge.weight"] * (1 - begin) for o in os] for os in heads]
        output.append([affine(p, "out", torch.cat(token)) for token in zip(*level, strict=True)])
        weights.append(w)
    return Answer(stacked(output), stacked(weights))
