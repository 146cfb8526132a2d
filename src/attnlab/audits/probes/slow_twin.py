"""Does it say what its formula says, computed by plain loops?"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.probes.rounding import conditioning
from attnlab.audits.weights import number, shown
from attnlab.errors import LabError
from attnlab.randomness import stream
from attnlab.subjects.subject import Subject

# Against the size of the output: loops and products add in another order, in float64.
WITHIN = 1e-12
# How much more than one rounding of the input a long sum of roundings may be.
ROUNDINGS = 32.0


class Case(NamedTuple):
    """One input to compare on."""

    name: str
    length: int
    batch: int = 2
    draw: int = 0
    loud: float = 1.0
    padded: bool = False


CASES = (
    Case("one token", 1),
    Case("two tokens", 2),
    Case("five tokens", 5, draw=1),
    Case("padding in front, within and behind", 5, padded=True),
    Case("loud tokens", 4, batch=1, loud=30.0),
    Case("nine tokens", 9, batch=1, draw=2),
)


def look(subject: Subject) -> Outcome:
    if subject.twin is None:
        return Silent("it is not of the catalog, and only what is has a slow twin")
    furthest = 0.0
    for case, module in _built(subject):
        real = _real(case) if case.padded else None
        x = subject.give(case.length, batch=case.batch, loud=case.loud)
        try:
            slow = subject.twin(module)(x, marks={} if real is None else {"real": real})
        except LabError as error:
            return Silent(f"its slow twin cannot be asked: {error}")
        y = subject.ask(module, x, real=real)
        allowed = WITHIN * _size(slow.output) + ROUNDINGS * conditioning(subject, module, x, real=real)
        broken = _compared(y, slow.output, allowed, case, "output")
        if broken is None and slow.weights is not None and case.loud == 1:
            shows = shown(subject, module, x, real=real)
            if shows is not None and shows.layers[0].shape == slow.weights.shape:
                broken = _compared(shows.layers[0], slow.weights, WITHIN, case, "row of weights", dim=2)
        if broken is not None:
            return broken
        furthest = max(furthest, float((y - slow.output).detach().abs().max()) / _size(slow.output))
    names = [case.name for case in CASES]
    return Held(
        f"it equals its slow twin, plain loops in float64, to {furthest:.0e} of its size",
        {"furthest": furthest, "cases": names},
    )


def _built(subject: Subject) -> Iterator[tuple[Case, nn.Module]]:
    modules: dict[int, nn.Module] = {}
    for case in CASES:
        if case.draw not in modules:
            modules[case.draw] = subject.build(case.draw)
        yield case, modules[case.draw]


def _real(case: Case) -> Tensor:
    real = torch.rand(case.batch, case.length, generator=stream(0, "real")) > 0.4
    real[0, 0], real[0, -1], real[1, 0], real[1, -1] = False, True, True, False
    return real


def _compared(y: Tensor, slow: Tensor, allowed: float, case: Case, what: str, dim: int = 1) -> Broke | None:
    gap = (y - slow).detach().abs().masked_fill(y.isfinite() != slow.isfinite(), torch.inf).nan_to_num(0.0, torch.inf)
    if float(gap.max()) <= allowed:
        return None
    places = [one for one in range(gap.dim()) if one != dim]
    token = int(gap.amax(dim=places).gt(allowed).nonzero()[0])
    apart = number(gap.max() / _size(slow))
    said = "is no number where the other is" if apart is None else f"differs by {apart:.1e} of the whole"
    return Broke(
        f"{what} {token} {said} from its slow twin ({case.name}, {case.length} tokens)",
        {"token": token, "apart": apart, "allowed": allowed, "case": case._asdict()},
    )


def _size(t: Tensor) -> float:
    return float(t.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-300))


PROBE = Probe(
    code="slow-twin",
    promise="agrees-with-twin",
    family="agreement",
    says="It equals the same formula written as plain loops in float64.",
    cause="the fast code computes another formula than the one it is named after",
    example="attnlab audit cosine says: it equals its slow twin, plain loops in float64, to 7e-16 of its size",
    look=look,
    meant="one of the two is wrong",
)
