"""Where do the q, k and v of one token come from?"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from attnlab.oracles.tokens import Number, Parameters, Vector

ROLES = ("query", "key", "value")


class Asked(NamedTuple):
    """A vector for each head; nothing (of no features) where nothing is compared."""

    q: Sequence[Vector]
    k: Sequence[Vector]
    v: Sequence[Vector]


def affine(p: Parameters, name: str, x: Vector) -> Vector:
    """A x + a"""
    return p[f"{name}.weight"] @ x + p[f"{name}.bias"]


def cut(t: Vector, n_heads: int) -> list[Vector]:
    """Head h has the features h·d … h·d + d - 1."""
    d = len(t) // n_heads
    return [t[h * d : (h + 1) * d] for h in range(n_heads)]


def _linear(x: Vector, p: Parameters, n_heads: int, q: str, k: str, v: str) -> Asked:
    return Asked(*(cut(affine(p, f"maps.{name}", x), n_heads) for name in (q, k, v)))


def separate(x: Vector, *, p: Parameters, n_heads: int) -> Asked:
    """q, k, v = A x, B x, C x"""
    return _linear(x, p, n_heads, "query", "key", "value")


def shared_qk(x: Vector, *, p: Parameters, n_heads: int) -> Asked:
    """q = k = A x, v = C x"""
    return _linear(x, p, n_heads, "query_key", "query_key", "value")


def shared_qv(x: Vector, *, p: Parameters, n_heads: int) -> Asked:
    """q = v = A x, k = B x"""
    return _linear(x, p, n_heads, "query_value", "key", "query_value")


def shared_kv(x: Vector, *, p: Parameters, n_heads: int) -> Asked:
    """q = A x, k = v = B x"""
    return _linear(x, p, n_heads, "query", "key_value", "key_value")


def shared_qkv(x: Vector, *, p: Parameters, n_heads: int) -> Asked:
    """q = k = v = A x"""
    return _linear(x, p, n_heads, *["query_key_value"] * 3)


def _bent(x: Vector, p: Parameters, n_heads: int, on: str, bend: Callable[[str, Vector], Vector]) -> Asked:
    """The roles that are in `on` are bent, the others are A x."""
    made = (bend(f"maps.{role}", x) if role[0] in on else affine(p, f"maps.{role}", x) for role in ROLES)
    return Asked(*(cut(t, n_heads) for t in made))


def gelu(t: Number) -> Number:
    """t·Φ(t), Φ the normal distribution"""
    return t * (1 + torch.erf(t / sqrt(2))) / 2


def sigma(t: Tensor) -> Tensor:
    """1 / (1 + exp(-t))"""
    return 1 / (1 + torch.exp(-t))


def mlp(x: Vector, *, p: Parameters, n_heads: int, on: str) -> Asked:
    """A₂ gelu(A₁ x + a₁) + a₂ for each role in `on`"""
    return _bent(x, p, n_heads, on, lambda role, x: affine(p, f"{role}.2", gelu(affine(p, f"{role}.0", x))))


def tanh(x: Vector, *, p: Parameters, n_heads: int, on: str) -> Asked:
    """tanh(A x) for each role in `on`"""
    return _bent(x, p, n_heads, on, lambda role, x: torch.tanh(affine(p, f"{role}.0", x)))


def relu(x: Vector, *, p: Parameters, n_heads: int, on: str) -> Asked:
    """max(A x, 0) for each role in `on`"""
    return _bent(x, p, n_heads, on, lambda role, x: affine(p, f"{role}.0", x).clamp(min=0))


def sigmoid(x: Vector, *, p: Parameters, n_heads: int, on: str) -> Asked:
    """σ(A x) for each role in `on`"""
    return _bent(x, p, n_heads, on, lambda role, x: sigma(affine(p, f"{role}.0", x)))


def grouped(x: Vector, *, p: Parameters, n_heads: int, n_kv_heads: int) -> Asked:
    """q_h = A_h x; k_h, v_h = B_g x, C_g x with g = ⌊h·n_kv_heads / n_heads⌋"""
    q = cut(affine(p, "maps.query", x), n_heads)
    k = cut(affine(p, "maps.key", x), n_kv_heads)
    v = cut(affine(p, "maps.value", x), n_kv_heads)
    group = [h * n_kv_heads // n_heads for h in range(n_heads)]
    return Asked(q, [k[g] for g in group], [v[g] for g in group])


def multi_query(x: Vector, *, p: Parameters, n_heads: int) -> Asked:
    """q_h = A_h x; k, v = B x, C x for every head"""
    k, v = affine(p, "maps.key", x), affine(p, "maps.value", x)
    return Asked(cut(affine(p, "maps.query", x), n_heads), [k] * n_heads, [v] * n_heads)


def keyless(x: Vector, *, p: Parameters, n_heads: int) -> Asked:
    """q = A x, v = C x, no k"""
    q, v = (cut(affine(p, f"maps.{role}", x), n_heads) for role in ("query", "value"))
    return Asked(q, [x[:0]] * n_heads, v)


def value_only(x: Vector, *, p: Parameters, n_heads: int) -> Asked:
    """v = C x, no q and no k"""
    return Asked([x[:0]] * n_heads, [x[:0]] * n_heads, cut(affine(p, "maps.value", x), n_heads))
