"""Does it agree with another module, or with a loop that its author wrote?"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.audits.measure import Setting, asked, dtype_of, rounding_of
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.probes.rounding import conditioning
from attnlab.audits.weights import input_of, number, real_of
from attnlab.errors import LabError
from attnlab.subjects.found import subject_of
from attnlab.subjects.subject import Subject

# A loop that fills a float32 tensor is off by 1e-7 and agrees.
WITHIN = 1e-6
ROUNDINGS = 32.0


def look(subject: Subject) -> Outcome:
    what = subject.others.get("agrees-with") or subject.value_of("agrees-with")
    if not what:
        return Silent("nobody said what it should agree with; agrees-with:WHAT does")
    promises = [said for said in subject.promises if said.partition(":")[0] != "agrees-with"]
    try:
        other = subject_of(what, promises=promises, size=subject.sizes)
    except LabError as error:
        return Broke(f"{what} cannot be asked: {error}", {"other": str(what)})
    if (other.way.ids, other.sizes.d_model) != (subject.way.ids, subject.sizes.d_model) and not subject.way.ids:
        return Broke(
            f"{other.name} {_takes(other)}, and {subject.name} {_takes(subject)}", {"other": other.name, "same": False}
        )
    how, furthest, lengths = "", 0.0, set()
    for at, module in asked(subject, _settings(subject.sizes.length)):
        twin = other.build(at.draw, dtype=dtype_of(module))
        how = _copied(module, twin)
        x = input_of(subject, module, at)
        masks: list[Tensor | None] = [None]
        if subject.hears_padding and other.hears_padding and at.batch > 1:
            masks.append(real_of(at.batch, at.length))
        for real in masks:
            y, expected = subject.ask(module, x, real=real), other.ask(twin, x, real=real)
            found = _compared(subject, at, module, x, real, y, expected, other.name, how)
            if isinstance(found, Broke):
                return found
            furthest = max(furthest, found)
        lengths.add(at.length)
    return Held(
        f"it agrees with {other.name} to {furthest:.0e} of its size, {how}, at {sorted(lengths)} tokens",
        {"other": other.name, "furthest": furthest, "parameters": how, "lengths": sorted(lengths)},
    )


def _settings(full: int) -> Iterator[Setting]:
    for length in (1, 2, 5, full):
        yield Setting(length=length, batch=3)
    yield Setting(length=5, batch=3, whole=10.0)
    for draw in (1, 2):
        yield Setting(draw=draw, length=7, batch=3, whole=3.0)


def _copied(module: nn.Module, other: nn.Module) -> str:
    """One set of parameters for both, where their names and shapes allow it."""
    ours, theirs = dict(module.named_parameters()), dict(other.named_parameters())
    if not ours and not theirs:
        return "neither having parameters"
    if {name: p.shape for name, p in ours.items()} != {name: p.shape for name, p in theirs.items()}:
        return "each with the parameters that the same draw gives it"
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(ours[name])
        for name, buffer in other.named_buffers():
            mine = dict(module.named_buffers()).get(name)
            if mine is not None and mine.shape == buffer.shape:
                buffer.copy_(mine)
    return "with the same parameters"


def _compared(
    subject: Subject,
    at: Setting,
    module: nn.Module,
    x: Tensor,
    real: Tensor | None,
    y: Tensor,
    expected: Tensor,
    name: str,
    how: str,
) -> Broke | float:
    if y.shape != expected.shape:
        return Broke(
            f"for {tuple(x.shape)} it returns {tuple(y.shape)}, and {name} {tuple(expected.shape)}",
            {"shape": list(y.shape), "expected": list(expected.shape)},
        )
    size = expected.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-300)
    gap = (y - expected).detach().abs().masked_fill(y.isfinite() != expected.isfinite(), torch.inf)
    gap = gap.nan_to_num(0.0, torch.inf) / size
    if real is not None:
        gap = gap.masked_fill(~real[:, :, None], 0.0)
    apart, within = float(gap.max()), max(WITHIN, 10 * rounding_of(module))
    if apart <= within or apart <= _noise(subject, module, x, real) / float(size):
        return apart
    token = int(gap.amax(dim=(0, 2)).gt(within).nonzero()[0])
    far = number(apart)
    said = "is a number in one alone" if far is None else f"differs by {far:.1e} of the whole"
    padded = ", with padding" if real is not None else ""
    return Broke(
        f"output {token} {said} from that of {name}, {how} ({at.words()}{padded})",
        {"token": token, "apart": far, "parameters": how, "setting": at._asdict()},
    )


def _noise(subject: Subject, module: nn.Module, x: Tensor, real: Tensor | None) -> float:
    """What a loop in float32 may be off by."""
    return ROUNDINGS * conditioning(subject, module, x, real=real, eps=torch.finfo(torch.float32).eps)


def _takes(subject: Subject) -> str:
    return "takes ids" if subject.way.ids else f"takes vectors of {subject.sizes.d_model}"


PROBE = Probe(
    code="other-module",
    promise="agrees-with:WHAT",
    family="agreement",
    says="It gives the same output as the module or loop that it is to agree with.",
    cause="one of the two computes something else; the smallest input on which they differ shows where",
    example="attnlab audit cosine --promise agrees-with:scaled-dot says: output 1 differs by 2.6e-01 of the whole "
    "from that of scaled-dot, with the same parameters (2 tokens, batch of 3)",
    look=look,
    meant="one of the two computes something else",
)
