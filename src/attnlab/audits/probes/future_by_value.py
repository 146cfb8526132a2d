"""Does an output move when a later token changes?"""

from collections.abc import Iterator

from torch import nn

from attnlab.audits.measure import (
    DRAWN,
    Setting,
    asked,
    crossed,
    future,
    leak,
    place_of,
    reached,
    rounding,
    tried,
)
from attnlab.audits.probe import Broke, Held, Outcome, Probe
from attnlab.audits.reasons import reason_of
from attnlab.errors import listed
from attnlab.subjects.subject import Subject


def settings(full: int) -> Iterator[Setting]:
    """Small lengths first, so that what breaks is the smallest; then what a leak may hide behind."""
    for length in (2, 3, 5, full):
        yield Setting(length=length)
    for loud in (10.0, 30.0, 1e3):
        yield Setting(length=5, loud=loud)
    for whole in (30.0, 300.0, 1e4):  # a finite floor is reached only when every score is loud
        for draw in (0, 1):
            yield Setting(draw=draw, length=3, batch=8, whole=whole)
    for draw in (1, 2):
        yield Setting(draw=draw, length=7, loud=10.0)
    yield Setting(length=6, batch=1)
    yield Setting(length=5, batch=5)
    yield Setting(length=5, tracked=False)
    for draw, length in ((0, 4), (1, 7)):
        yield Setting(draw=draw, length=length, train=True)
        yield Setting(draw=draw, length=length, batch=1, train=True)
    for dropout in (0.3, 0.0):
        yield Setting(length=5, train=True, dropout=dropout)
    for length in (full + 1, 37, 67, 130):
        yield Setting(draw=1, length=length, batch=1, loud=10.0)


def look(subject: Subject) -> Outcome:
    within = rounding(subject)
    heard: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        broke = leaks(subject, module, at, within=within)
        if broke is not None:
            return broke._replace(cause=reason_of(subject, at, within=within))
        heard.append(at)
    lengths = sorted({at.length for at in heard})
    return Held(
        f"no output moves when a later token changes, at {listed(map(str, lengths))} tokens", tried(heard, refused)
    )


def leaks(subject: Subject, module: nn.Module, at: Setting, *, within: float) -> Broke | None:
    tokens = range(1, at.length)
    if at.length > DRAWN:
        cut = crossed(subject, module, at, cuts(at.length), within=within)
        if cut is None:
            return None
        tokens = range(cut, at.length)
    moved = reached(subject, module, at, tokens)
    found = future(moved, within=within)
    if not found:
        if at.length > DRAWN:
            sentence = f"outputs before {tokens[0]} hear the tokens from there on together ({at.words()})"
            return Broke(sentence, {"token": tokens[0], "setting": at._asdict()})
        return None
    worst = found[0]
    place = place_of(subject, module, at, worst.output, worst.token, within=within)
    where = f"; {place.words()}" if place else ""
    return Broke(
        f"output {worst.output} hears token {worst.token}, which comes later ({at.words()}){where}",
        leak(found, reached(subject, module, at) if at.length <= DRAWN else moved, at)
        | ({"part": place.part, "heads": list(place.heads)} if place else {}),
    )


def cuts(length: int) -> list[int]:
    """Every place to cut, or in long inputs those where blocks may end, and the ones after them."""
    if length < 40:
        return list(range(1, length))
    edges = {*range(8, length, 8), *range(10, length, 10)}
    return sorted({cut for edge in edges for cut in (edge, edge + 1) if cut < length} | {1, length - 1})


PROBE = Probe(
    code="future-by-value",
    promise="causal",
    family="sees",
    says="An output does not change when a later token changes.",
    cause="the mask is missing, applied after the softmax, multiplied in, or not low enough; or a statistic runs over"
    " the sequence",
    example="attnlab audit zero-after-softmax --promise causal says: output 0 hears token 1, which comes later (2 "
    "tokens, batch of 2); first seen in normalizer",
    look=look,
    quick=True,
    meant="a leak if this is meant as a decoder",
)
