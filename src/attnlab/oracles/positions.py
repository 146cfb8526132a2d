"""Where is one token? What comes first says how a twin answers: x + a vector, t turned, or q and k and a bias."""

from collections.abc import Callable
from math import cos, sin, sqrt

import torch

from attnlab.oracles.projections import cut
from attnlab.oracles.tokens import Number, Pair, Parameters, Vector

Turn = Callable[[Vector, int], Vector]
Bias = Callable[[Vector, Vector, Pair], Number]


def none(t: Vector, at: int) -> Vector:
    """t"""
    return t


def learned(x: Vector, at: int, *, p: Parameters) -> Vector:
    """x + P[i]"""
    return x + p["table.weight"][at]


def _waves(x: Vector, at: int, scale: float, exponents: list[float]) -> Vector:
    """scale · sin and cos in turns, of i / 10000^exponent"""
    angles = [at / 10000.0**exponent for exponent in exponents]
    waves = [sin(angle) if c % 2 == 0 else cos(angle) for c, angle in enumerate(angles)]
    return x + x.new_tensor([scale * wave for wave in waves])


def sinusoidal(x: Vector, at: int) -> Vector:
    """x + P[i], P[i, 2c] = sin(i / 10000^(2c/d)), P[i, 2c+1] = cos(i / 10000^(2c/d))"""
    return sinusoidal_scaled(x, at, scale=1.0)


def sinusoidal_source(x: Vector, at: int) -> Vector:
    """x + P[i], P[i, c] = sin(i / 10000^(c/d)) for even c, cos(i / 10000^(c/d)) for odd c"""
    return _waves(x, at, 1.0, [c / len(x) for c in range(len(x))])


def sinusoidal_scaled(x: Vector, at: int, *, scale: float) -> Vector:
    """x + scale · P[i]"""
    return _waves(x, at, scale, [2 * (c // 2) / len(x) for c in range(len(x))])


def rotary(t: Vector, at: int) -> Vector:
    """The point (t_2c, t_2c+1) turned by the angle i / 10000^(2c/d)"""
    turned = []
    for c in range(len(t) // 2):
        angle = at / 10000.0 ** (2 * c / len(t))
        a, b = t[2 * c], t[2 * c + 1]
        turned += [a * cos(angle) - b * sin(angle), a * sin(angle) + b * cos(angle)]
    return torch.stack(turned) if turned else t


def _slope(head: int, n_heads: int) -> float:
    """2^(-8h/H) for the h-th head, counted from one"""
    return 2.0 ** (-8 * (head + 1) / n_heads)


def alibi(q: Vector, k: Vector, pair: Pair, *, n_heads: int) -> Number:
    """-m_h·(i - j), m_h = 2^(-8h/H)"""
    return q.new_tensor(-_slope(pair.head, n_heads) * pair.distance)


def alibi_symmetric(q: Vector, k: Vector, pair: Pair, *, n_heads: int) -> Number:
    """-m_h·|i - j|"""
    return q.new_tensor(-_slope(pair.head, n_heads) * abs(pair.distance))


def bucket(distance: int, buckets: int, furthest: int, *, both_ways: bool) -> int:
    """n = i - j while n < exact, then exact + ⌊(buckets - exact)·log(n / exact) / log(furthest / exact)⌋.

    Never more than the last. Both ways, keys ahead (n = j - i) have the upper half. In whole numbers: the floor is
    the largest f with (furthest / exact)^f ≤ (n / exact)^(buckets - exact).

    >>> [bucket(n, 8, 16, both_ways=False) for n in (-1, 0, 3, 4, 5, 6, 8, 12, 16, 100)]
    [0, 0, 3, 4, 4, 5, 6, 7, 7, 7]
    >>> [bucket(n, 8, 16, both_ways=True) for n in (-3, -1, 0, 1, 3)]
    [6, 5, 0, 1, 2]
    """
    if both_ways:
        half = buckets // 2
        ahead = half if distance < 0 else 0
        return ahead + bucket(abs(distance), half, furthest, both_ways=False)
    n, exact = max(distance, 0), buckets // 2
    if n < exact:
        return n
    wide, f = buckets - exact, 0
    while f < wide - 1 and furthest ** (f + 1) * exact ** (wide - f - 1) <= n**wide:
        f += 1
    return exact + f


def t5(q: Vector, k: Vector, pair: Pair, *, p: Parameters, buckets: int, furthest: int, looks_ahead: bool) -> Number:
    """B_h[bucket(i - j)]"""
    return p["table"][pair.head, bucket(pair.distance, buckets, furthest, both_ways=looks_ahead)]


def relative(q: Vector, k: Vector, pair: Pair, *, p: Parameters, length: int) -> Number:
    """p_h[i - j], the table running from -(length - 1) to length - 1"""
    return p["table"][pair.head, pair.distance + length - 1]


def deberta(q: Vector, k: Vector, pair: Pair, *, p: Parameters, n_heads: int, reach: int) -> Number:
    """(q_i·K_r[δ(i,j)] + k_j·Q_r[δ(j,i)]) / √(3d), δ(i,j) = i - j held between -reach and reach - 1"""

    def row(name: str, distance: int) -> Vector:
        far = max(-reach, min(reach - 1, distance))
        return cut(p[f"{name}.weight"] @ p["table"][far + reach], n_heads)[pair.head]

    return (q @ row("key", pair.distance) + k @ row("query", -pair.distance)) / sqrt(3 * len(q))
