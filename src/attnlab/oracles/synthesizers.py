"""How strongly, if nothing is compared?"""

from attnlab.oracles.tokens import Number, Pair, Parameters, Vector


def dense(q: Vector, k: Vector, pair: Pair, *, p: Parameters) -> Number:
    """max(q, 0)·B[:, j] + c_j"""
    return q.clamp(min=0) @ p["second"][0, :, pair.j] + p["offset"][0, 0, pair.j]


def dense_per_head(q: Vector, k: Vector, pair: Pair, *, p: Parameters) -> Number:
    """max(q, 0)·B_h[:, j] + c_hj"""
    return q.clamp(min=0) @ p["second"][pair.head, :, pair.j] + p["offset"][pair.head, 0, pair.j]


def random(q: Vector, k: Vector, pair: Pair, *, p: Parameters) -> Number:
    """R_h[i, j]"""
    return p["table"][pair.head, pair.i, pair.j]
