"""Does a mechanism say what its slow twin says? The largest difference in float64, with a picture."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from attnlab.subjects import Size, attention, described
from attnlab.subjects.twin import twin
from attnlab.views import maps
from attnlab.views.maps import Map

WITHIN = 1e-12  # rounding in float64 stays far below, and no fault of a formula does


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A variant against a twin."""

    name: str
    formula: str
    twin: str
    gap: float
    agrees: bool
    maps: tuple[Map, ...]


def compared(
    variant: Mapping[str, str], *, against: Mapping[str, str] | None = None, n: int = 8, seed: int = 0
) -> Compared:
    """The variant against its own twin, or against that of another, which is then asked with the same parameters."""
    size = Size(d_model=32, n_heads=8, length=n)
    mixer = attention(d_model=size.d_model, n_heads=size.n_heads, length=n, seed=seed, **variant).double()
    x = maps.random_tokens(n, d_model=size.d_model, seed=seed)
    with torch.no_grad():
        gap = (mixer(x) - twin(against or variant, size, mixer)(x).output).abs().max().item()
    (name,), (part,) = variant.values(), described(variant, size)
    return Compared(
        name=name,
        formula=part.formula,
        twin=" and ".join((against or variant).values()),
        gap=gap,
        agrees=gap <= WITHIN,
        maps=(maps.weights(mixer, x, title=name), maps.influence(mixer, x)),
    )
