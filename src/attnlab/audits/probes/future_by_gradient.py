"""Does the gradient of an output reach a later token?"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.audits.measure import (
    DRAWN,
    GRADIENT,
    Setting,
    asked,
    dtype_of,
    felt,
    following,
    future,
    leak,
    pulled,
    rounding,
    tried,
)
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.probes.future_by_value import cuts
from attnlab.audits.reasons import reason_of
from attnlab.errors import listed
from attnlab.subjects.subject import Subject


def settings(full: int) -> Iterator[Setting]:
    for length in (2, 3, 5, full):
        yield Setting(length=length)
    for whole in (30.0, 300.0):
        yield Setting(length=3, batch=8, whole=whole)
    for draw in (1, 2):
        yield Setting(draw=draw, length=7)
    yield Setting(length=6, batch=1)
    yield Setting(length=5, batch=5)
    yield Setting(length=5, train=True)
    yield Setting(length=5, batch=1, train=True, dropout=0.3)
    for length in (37, 67):
        yield Setting(draw=1, length=length, batch=1)


def look(subject: Subject) -> Outcome:
    within = GRADIENT * rounding(subject)
    heard: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        pull = felt(subject, module, at) if at.length <= DRAWN else across(subject, module, at, within=within)
        if pull is None:
            return Silent("no gradient can be followed from its output to its tokens")
        found = future(pull, within=within)
        if found:
            worst = found[0]
            return Broke(
                f"the gradient of output {worst.output} reaches token {worst.token}, which comes later ({at.words()})",
                leak(found, pull, at),
                reason_of(subject, at, within=rounding(subject)),
            )
        heard.append(at)
    lengths = listed(map(str, sorted({at.length for at in heard})))
    return Held(f"no output's gradient reaches a later token, at {lengths} tokens", tried(heard, refused))


def across(subject: Subject, module: nn.Module, at: Setting, *, within: float) -> Tensor | None:
    """For long inputs: all outputs before a cut at once, and single ones only where something crosses it."""
    x = subject.give(at.length, batch=at.batch, dtype=dtype_of(module))
    with following(subject, module, x) as (given, starts):
        y = subject.ask(module, given)
    if not starts or not y.requires_grad:
        return None
    for cut in cuts(at.length):
        pull = pulled(y, starts, (slice(None), slice(None, cut))).amax(dim=0)
        if bool((pull[cut:] > within * pull.amax()).any()):
            return felt(subject, module, at, range(cut))
    return torch.zeros(at.length, at.length)


PROBE = Probe(
    code="future-by-gradient",
    promise="causal",
    family="sees",
    says="The gradient of an output is zero at every later token.",
    cause="a hidden key still carries weight, if too little to see in the output; or a statistic runs over the"
    " sequence",
    example="attnlab audit tests/museum/mask_after_softmax.py says: the gradient of output 0 reaches token 1, which "
    "comes later (2 tokens, batch of 2)",
    look=look,
    meant="a leak if this is meant as a decoder",
)
