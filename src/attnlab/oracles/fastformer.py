"""What if all tokens first became one query, then one key?"""

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor

from attnlab.oracles.normalizers import over_allowed
from attnlab.oracles.projections import affine, cut
from attnlab.oracles.tokens import Answer, Parameters, Run, Vector, stacked
from attnlab.oracles.visibility import Rule


def fastformer(x: Tensor, runs: Sequence[Run], *, p: Parameters, visible: Rule, n_heads: int) -> Answer:
    """y_i = q_i + W_o (κ_i ⊙ v_i), κ_i = Σ_j β_j g_j ⊙ k_j, g_i = Σ_j α_j q_j

    α = softmax_j(a·q_j / √d), β = softmax_j(c·(g_j ⊙ k_j) / √d), every sum over what i may see.
    """
    output = []
    for tokens, run in zip(x, runs, strict=True):
        n = range(len(tokens))
        whole = {role: [affine(p, f"projection.maps.{role}", t) for t in tokens] for role in ("query", "key", "value")}
        q, k, v = ([cut(t, n_heads) for t in whole[role]] for role in whole)
        carried: list[list[Vector]] = [[] for _ in n]
        for h in range(n_heads):
            a, c = p["query_readout"][h], p["key_readout"][h]
            allowed = [[visible(i, j, run.marks) for j in n] for i in n]
            g = [_called([q[j][h] for j in n], a, allowed[i]) for i in n]
            met = [g[j] * k[j][h] for j in n]
            for i in n:
                carried[i].append(_called(met, c, allowed[i]) * v[i][h])
        output.append([whole["query"][i] + affine(p, "out", torch.cat(carried[i])) for i in n])
    return Answer(stacked(output))


def _called(ts: Sequence[Vector], readout: Vector, allowed: Sequence[bool]) -> Vector:
    """Σ_j α_j t_j, α = softmax over the allowed of readout·t_j / √d"""
    shares = over_allowed([readout @ t / sqrt(len(t)) for t in ts], allowed)
    return torch.stack([share * t for share, t in zip(shares, ts, strict=True)]).sum(dim=0)
