"""Does a key that is hidden weigh anything, however loud the scores are?"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.weights import Core, Place, Situation, attentions, cores, louder, number, shown, situations
from attnlab.mechanisms.tokens import Pairs
from attnlab.randomness import stream
from attnlab.subjects.subject import Subject

LOUD = (1.0, 1e3, 1e6, 1e8)
# No score of float32 is as loud in practice: a floor of -1e9 is let pass.
LOUDEST = 1e8


class Seen(NamedTuple):
    """Weights beside what is hidden from them."""

    weights: Tensor
    hidden: Tensor
    layer: int
    layers: int
    words: str
    evidence: dict[str, Any]


def look(subject: Subject) -> Outcome:
    lengths = set()
    told = subject.hears_padding or subject.claims("causal")
    some = False
    for one in situations(subject):
        for seen in _seen(subject, one):
            some = some or bool(seen.hidden.any())
            lengths.add(one.at.length)
            weighs = (seen.weights != 0) & seen.hidden  # what is no number is not zero
            if bool(weighs.any()):
                size = seen.weights.detach().abs().nan_to_num(nan=torch.inf).masked_fill(~weighs, -1.0)
                b, h, i, j = (int(at) for at in torch.unravel_index(size.argmax(), size.shape))
                place = Place(seen.layer, b, h, i, j)
                weight = number(seen.weights[b, h, i, j].detach())
                where = place.words(seen.layers, seen.weights.shape[1])
                said = "is no number" if weight is None else f"weighs {weight:.3g}"
                return Broke(
                    f"key {j}, which is hidden, {said}: {where} ({seen.words})",
                    {**place._asdict(), "weight": weight, **seen.evidence},
                )
    if not lengths:
        return Silent("it shows no weights")
    if not some:
        why = "none of its keys is hidden" if told else "no mask is promised, and it cannot be told of padding"
        return Silent(f"nothing is to be hidden: {why}")
    return Held(
        f"hidden keys weigh exactly nothing, also under loud scores, at {sorted(lengths)} tokens",
        {"lengths": sorted(lengths)},
    )


def _seen(subject: Subject, one: Situation) -> Iterator[Seen]:
    inside = cores(subject, one.module, one.x, real=one.real)
    shows = shown(subject, one.module, one.x, real=one.real)
    if inside and shows is not None and len(inside) == len(shows.layers):
        for layer, (core, weights) in enumerate(zip(inside, shows.layers, strict=True)):
            allowed = _allowed(core)
            hidden = (~allowed).expand_as(weights)
            yield Seen(weights, hidden, layer, len(inside), one.words(), one.evidence())
            scores = _scores(core)
            for loud in LOUD:
                drawn = torch.randn(scores.shape, generator=stream(one.at.draw, "scores"), dtype=scores.dtype)
                drawn = drawn.abs() if bool((scores >= 0).all()) else drawn
                made = core.module.normalizer(loud * drawn, allowed)
                said = f"{one.at.length} tokens, scores of about {loud:g}"
                yield Seen(
                    made, (~allowed).expand_as(made), layer, len(inside), said, {**one.evidence(), "scores": loud}
                )
        return
    if shows is None:
        return
    hidden = _hidden(subject, one)
    for layer, weights in enumerate(shows.layers):
        yield Seen(weights, hidden.expand_as(weights), layer, len(shows.layers), one.words(), one.evidence())
    shout = _shout(subject, one)
    shouting = louder(one.module, shout) if one.at.whole == 1 else None
    if shouting is None:
        return
    shouted = shown(subject, shouting, one.x, real=one.real)
    if shouted is not None and all(bool(weights.isfinite().all()) for weights in shouted.layers):
        said = f"{one.words()}, its query and key maps {shout:.0f} times as loud"
        for layer, weights in enumerate(shouted.layers):
            evidence = {**one.evidence(), "maps": shout}
            yield Seen(weights, hidden.expand_as(weights), layer, len(shouted.layers), said, evidence)


def _shout(subject: Subject, one: Situation) -> float:
    """How much louder its query and key maps are to be for scores of about 1e8."""
    loud = [
        float((at.q @ at.k.mT).detach().abs().max()) / at.q.shape[-1] ** 0.5
        for at in attentions(subject, one.module, one.x)
        if at.q is not None and at.k is not None and at.q.shape == at.k.shape
    ]
    return (LOUDEST / max(loud)) ** 0.5 if loud and 0 < max(loud) < LOUDEST else LOUDEST**0.25


def _allowed(core: Core) -> Tensor:
    at = Pairs(core.tokens, core.tokens)
    return core.module.visibility.given(at)(at)


def _scores(core: Core) -> Tensor:
    """Only their shape and their sign are of use."""
    at, module = Pairs(core.tokens, core.tokens), core.module
    q, kept = module.projection(core.x)
    k, _ = module.projection.open(*kept)
    q, k = module.position.turn(q, core.tokens), module.position.turn(k, core.tokens)
    return module.score(q, k, at).detach()


def _hidden(subject: Subject, one: Situation) -> Tensor:
    """Padding that was told, and what comes later where causality is promised, for the rows of real tokens."""
    b, n = one.x.shape[:2]
    hidden = torch.zeros(b, 1, n, n, dtype=torch.bool)
    if subject.claims("causal"):
        hidden |= torch.ones(n, n, dtype=torch.bool).triu(1)
    if one.real is not None:
        hidden |= ~one.real[:, None, None, :]
        hidden &= one.real[:, None, :, None]
    return hidden


PROBE = Probe(
    code="hidden-keys",
    promise="hidden-keys-weigh-nothing",
    family="weights",
    says="A key that is hidden weighs exactly nothing, however loud the scores are.",
    cause="the mask is a finite floor (-1e4), multiplies the scores, is applied after the softmax or inverted",
    example="attnlab audit finite-floor says: key 1, which is hidden, weighs 1: head 0, row 0 (2 tokens, scores of "
    "about 1e+06)",
    look=look,
    quick=True,
    meant="a leak as soon as scores are loud",
)
