"""How strongly does one query ask for one key?"""

from math import sqrt

import torch

from attnlab.oracles.tokens import Number, Pair, Parameters, Vector


def scaled_dot(q: Vector, k: Vector, pair: Pair, *, terms: int) -> Number:
    """q·k / √(terms·d)"""
    return q @ k / sqrt(terms * len(q))


def dot(q: Vector, k: Vector, pair: Pair) -> Number:
    """q·k"""
    return q @ k


def _cos(q: Vector, k: Vector) -> Number:
    """q·k / (|q| |k|); what has no direction points nowhere"""
    lengths = torch.sqrt(q @ q) * torch.sqrt(k @ k)
    return q @ k / lengths if lengths > 0 else q @ k


def cosine(q: Vector, k: Vector, pair: Pair, *, temperature: float) -> Number:
    """cos(q, k) / τ"""
    return _cos(q, k) / temperature


def correlation(q: Vector, k: Vector, pair: Pair, *, temperature: float) -> Number:
    """cos(q - mean(q), k - mean(k)) / τ"""
    return _cos(q - q.sum() / len(q), k - k.sum() / len(k)) / temperature


def negative_squared_distance(q: Vector, k: Vector, pair: Pair) -> Number:
    """-|q - k|² / √d"""
    return -((q - k) @ (q - k)) / sqrt(len(q))


def gaussian(q: Vector, k: Vector, pair: Pair, *, p: Parameters) -> Number:
    """-|q - k|² / (2σ_h²)"""
    width = torch.exp(p["log_width"][pair.head])
    return -((q - k) @ (q - k)) / (2 * width * width)


def additive(q: Vector, k: Vector, pair: Pair, *, p: Parameters) -> Number:
    """u_h·tanh(q + k)"""
    return p["readout"][pair.head] @ torch.tanh(q + k)


def bilinear(q: Vector, k: Vector, pair: Pair, *, p: Parameters) -> Number:
    """q·(M_h k) / √d"""
    return q @ (p["between"][pair.head] @ k) / sqrt(len(q))
