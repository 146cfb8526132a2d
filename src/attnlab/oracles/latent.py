"""How little can be remembered of a token?"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from attnlab.oracles.attention import Parts, attend
from attnlab.oracles.normalizers import softmax
from attnlab.oracles.positions import rotary as turned
from attnlab.oracles.projections import Asked, affine, cut
from attnlab.oracles.scores import scaled_dot
from attnlab.oracles.tokens import Answer, Parameters, Run, Vector
from attnlab.oracles.visibility import Rule


def latent(x: Tensor, runs: Sequence[Run], *, p: Parameters, visible: Rule, n_heads: int, rotary: int) -> Answer:
    """k_jh = [B_h c_j ; R_j r_j], v_jh = C_h c_j, c_j = D x_j, r_j = E x_j; q_ih = [A_h x_i ; R_i F_h x_i]"""

    def asked(x: Vector) -> Asked:
        c = affine(p, "projection.latent", x)
        q, q_placed = (cut(affine(p, f"projection.{name}", x), n_heads) for name in ("query", "query_place"))
        k, v = (cut(affine(p, f"projection.{name}", c), n_heads) for name in ("key", "value"))
        r = affine(p, "projection.key_place", x)
        return Asked(
            [torch.cat([plain, placed]) for plain, placed in zip(q, q_placed, strict=True)],
            [torch.cat([plain, r]) for plain in k],
            v,
        )

    def turn(t: Vector, at: int) -> Vector:
        return torch.cat([t[:-rotary], turned(t[-rotary:], at)])

    parts = Parts(
        projection=asked,
        turn=turn,
        visible=visible,
        score=partial(scaled_dot, terms=1),
        normalizer=partial(softmax, temperature=1.0),
    )
    return attend(x, runs, parts, p=p)
