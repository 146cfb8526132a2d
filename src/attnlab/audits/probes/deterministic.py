"""Does it give the same answer twice, and does the same seed build the same module?"""

import warnings

import torch
from torch import Tensor, nn

from attnlab.audits.measure import Setting, as_built, dtype_of, gap, number, rounding_of, size_of
from attnlab.audits.probe import Broke, Held, Outcome, Probe
from attnlab.subjects.subject import Subject, answer_of

SETTINGS = (
    Setting(length=1, batch=1),
    Setting(length=3),
    Setting(length=5, batch=1),
    Setting(length=7, draw=1),
    Setting(length=9, batch=3, draw=2),
)


def look(subject: Subject) -> Outcome:
    differs = _two_builds(subject)
    if differs is not None:
        return differs
    tried = []
    for at, module in as_built(subject, (*SETTINGS, Setting(length=subject.sizes.length))):
        x = subject.give(at.length, batch=at.batch, dtype=dtype_of(module))
        once, again = raw(subject, module, x), raw(subject, module, x)
        moved = moves(once, again)
        if moved > rounding_of(module):
            alike = moves(subject.ask(module, x), subject.ask(module, x)) <= rounding_of(module)
            why = "it draws chance in eval mode" if alike else "it keeps something between calls, or has its own chance"
            return Broke(
                f"the same input gives another answer ({at.words()}, in eval mode): {why}",
                {"moved": number(moved), "alike_when_seeded": alike, "setting": at._asdict()},
            )
        tried.append(at.length)
    return Held(
        "it gives the same answer twice in eval mode, and the same seed builds the same module", {"lengths": tried}
    )


def _two_builds(subject: Subject) -> Broke | None:
    one, other = subject.build(0), subject.build(0)
    numbers = dict(other.named_parameters()) | dict(other.named_buffers())
    for name, value in [*one.named_parameters(), *one.named_buffers()]:
        if name not in numbers or not same_bits(value, numbers[name]):
            return Broke(
                f"two modules built from the same seed differ in {name}, so that no run can be repeated: it is not"
                " drawn from torch's, numpy's or Python's global generator, or never drawn at all (torch.empty)",
                {"parameter": name, "shape": list(value.shape)},
            )
    return None


def raw(subject: Subject, module: nn.Module, x: Tensor) -> Tensor:
    """Its output as anybody would get it: chance goes on from wherever it is."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return answer_of(subject.call(module, x), subject.way, x)


def moves(one: Tensor, other: Tensor) -> float:
    """The largest difference against the size of the output."""
    return float(gap(one, other).amax()) / size_of(one)


def same_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())


PROBE = Probe(
    code="deterministic",
    promise="deterministic",
    family="learning",
    says="In eval mode the same input gives the same answer, and the same seed builds the same module.",
    cause="dropout or a shuffle that does not look at self.training, a state kept between calls, or a generator that is"
    " seeded from the clock",
    example="attnlab audit shuffle says: the same input gives another answer (1 token, batch of 1, in eval mode): it "
    "draws chance in eval mode",
    look=look,
    quick=True,
    taken=True,
)
