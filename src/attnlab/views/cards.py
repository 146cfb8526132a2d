"""What is this mechanism? All that can be said of a variant before it is trained, on one card."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

import torch
from torch import nn

from attnlab.costs import Costs, mixer_cost
from attnlab.mechanisms.planner import PRECISIONS, Timing, plan
from attnlab.randomness import seeded
from attnlab.subjects import Described, Size, attention, blamed, described, variant_of
from attnlab.subjects.files import in_one_line
from attnlab.views import maps
from attnlab.views.maps import Map


@dataclass(frozen=True, kw_only=True)
class Card:
    """A variant at one size."""

    what: str
    variant: Mapping[str, str]
    parts: tuple[Described, ...]
    size: Size
    batch: int
    costs: Costs
    timings: tuple[Timing, ...]
    """The fastest first; empty where nobody measured."""
    threads: int
    maps: tuple[Map, ...]
    notes: tuple[str, ...]


def card(
    what: str, more: Iterable[str] = (), *, size: Size, batch: int, drawn: int = 12, timed: bool = True, seed: int = 0
) -> Card:
    """The card of WHAT and the further `question=value`s."""
    variant = variant_of(what, more)
    parts = described(variant, size)
    with blamed(variant), seeded(seed, "card"):
        mixer = attention(d_model=size.d_model, n_heads=size.n_heads, length=size.length, seed=seed, **variant).eval()
        costs = mixer_cost(mixer, d_model=size.d_model, length=size.length, batch=batch)
        timings = _timings(mixer, size, batch) if timed else ()
        pictures, notes = _drawn(variant, size, drawn, seed) if drawn else ((), ())
    return Card(
        what=what,
        variant=variant,
        parts=parts,
        size=size,
        batch=batch,
        costs=costs,
        timings=timings,
        threads=torch.get_num_threads(),
        maps=pictures,
        notes=notes,
    )


def _drawn(variant: Mapping[str, str], size: Size, n: int, seed: int) -> tuple[tuple[Map, ...], tuple[str, ...]]:
    """Who may look and who moves whom, by a double that is long enough, and what nobody should overlook in it."""
    length = max(n, size.length)
    mixer = attention(d_model=size.d_model, n_heads=size.n_heads, length=length, seed=seed, **variant).double().eval()
    may = maps.visibility(mixer, n)
    moves = maps.influence(mixer, maps.random_tokens(n, d_model=size.d_model, seed=seed))
    pictures = (moves,) if may is None else (may, moves)
    return pictures, tuple(_notes(moves, may is not None, maps.reach(mixer)))


def _notes(moves: Map, ruled: bool, reach: float) -> Iterator[str]:
    """With the smallest example of each."""
    n = len(moves.rows)
    ahead = [(i, j) for i in range(n) for j in range(i + 1, n) if moves.values[i][j]]
    if moves.leaks:
        i, j = min(moves.leaks, key=lambda leak: (leak[1] < leak[0], abs(leak[0] - leak[1]), leak))
        yield f"token {i} hears token {j}, which its own rule hides from it"
    elif ahead and not ruled:
        i, j = min(ahead, key=lambda cell: (cell[1] - cell[0], cell))
        yield f"token {i} hears token {j}, which comes later: this is not causal"
    if any(None in row for row in moves.values):
        yield "some of what moves whom is not a number"
    if n <= reach < inf:
        yield f"it reaches {reach:.0f} tokens back and no further, which takes a drawing of more tokens to show"


def _timings(mixer: nn.Module, size: Size, batch: int) -> tuple[Timing, ...]:
    """Every path in every precision; where a reader's own code does not go through one, the other or neither."""

    def measured(*precisions: str) -> tuple[Timing, ...]:
        measures = plan(mixer, batch=batch, length=size.length, d_model=size.d_model, precisions=precisions)
        return measures.timings

    try:
        return measured(*PRECISIONS)
    except Exception:
        timings: list[Timing] = []
        for precision in PRECISIONS:
            try:
                timings += measured(precision)
            except Exception as error:
                timings.append(Timing("any", precision, None, in_one_line(error)))
        return tuple(sorted(timings, key=lambda timing: timing.milliseconds is None))
