"""Is its error at low precision noise, or a bug?"""

import copy
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnlab.audits.measure import dtype_of
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.weights import REFUSALS
from attnlab.randomness import stream
from attnlab.subjects.subject import Subject

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DRAWS = 5
LENGTH = 6
# Sums and norms make several roundings of one; arithmetic at half the digits makes thousands.
BUG = 100.0


class Error(NamedTuple):
    """Of the size of the output: how far off, what rounding the input alone does, and the naive form's."""

    own: float
    conditioned: float
    naive: float | None

    @property
    def times(self) -> float:
        return self.own / max(self.conditioned, self.naive or 0.0, 1e-300)


def look(subject: Subject) -> Outcome:
    said, evidence, bugs = [], {}, []
    for name, dtype in PRECISIONS.items():
        errors = [error for draw in range(DRAWS) if (error := _error(subject, draw, dtype)) is not None]
        if not errors:
            continue
        own, conditioned = median(error.own for error in errors), median(error.conditioned for error in errors)
        times = median(error.times for error in errors)
        naive = [error.naive for error in errors if error.naive is not None]
        words = f"{name} is off by {own:.0e}, and rounding its inputs alone makes {conditioned:.0e}"
        words += f" (written naively: {median(naive):.0e})" if naive else ""
        word = "bug" if times > BUG else "noise"
        if word == "bug":
            bugs.append(name)
        said.append(f"{words}: {word}")
        evidence[name] = {
            "error": own,
            "conditioning": conditioned,
            "naive": median(naive) if naive else None,
            "times": times,
            "word": word,
        }
    if not said:
        return Silent("it could not be run below float64")
    sentence = "; ".join(said)
    return Broke(sentence, evidence) if bugs else Held(sentence, evidence)


def conditioning(
    subject: Subject, module: nn.Module, x: Tensor, *, real: Tensor | None = None, eps: float | None = None
) -> float:
    """How far the output moves when x is rounded in its last place, or by eps; for ids, when the parameters are."""
    before = subject.ask(module, x, real=real).detach()
    with torch.no_grad():
        rounded, x = _rounded(module, x, eps or torch.finfo(dtype_of(module)).eps, seed=0, parameters=subject.way.ids)
    return float((subject.ask(rounded, x, real=real) - before).detach().abs().nan_to_num(0.0, 0.0, 0.0).max())


def _error(subject: Subject, draw: int, dtype: torch.dtype) -> Error | None:
    """The same numbers at both precisions, so that only the arithmetic differs."""
    low = subject.build(draw, dtype=dtype)
    high = copy.deepcopy(low).double()
    x = subject.give(LENGTH, seed=draw)
    x_low = x if subject.way.ids else x.to(dtype)
    x = x if subject.way.ids else x_low.double()
    try:
        with torch.no_grad():
            y, y_low = subject.ask(high, x), subject.ask(low, x_low).double()
            rounded, moved = _rounded(high, x, torch.finfo(dtype).eps / 2, seed=draw, parameters=True)
            y_moved = subject.ask(rounded, moved)
            naive = None
            if subject.twin is not None and dtype is not torch.bfloat16:
                naive = subject.twin(low)(x_low).output.double()
    except REFUSALS:
        return None
    if not all(bool(t.isfinite().all()) for t in (y, y_low, y_moved)):
        return None
    size = float(y.square().mean().sqrt().clamp(min=1e-300))

    def off(t: Tensor) -> float:
        return float((t - y).square().mean().sqrt()) / size

    # No answer is better than the rounding of its own last place.
    least = torch.finfo(dtype).eps / 4
    return Error(off(y_low), max(off(y_moved), least), None if naive is None else off(naive))


def _rounded(module: nn.Module, x: Tensor, eps: float, *, seed: int, parameters: bool) -> tuple[nn.Module, Tensor]:
    """Every number moved by chance within its last place."""
    generator = stream(seed, "rounding")

    def moved(t: Tensor) -> Tensor:
        return t * (1 + eps * (2 * torch.rand(t.shape, generator=generator, dtype=torch.float64) - 1)).to(t)

    if x.is_floating_point():
        x = moved(x)
    if not parameters:
        return module, x
    changed = copy.deepcopy(module)
    for parameter in changed.parameters():
        if parameter.is_floating_point():
            parameter.copy_(moved(parameter))
    return changed, x


PROBE = Probe(
    code="rounding",
    promise="finite",
    family="numbers",
    says="At low precision it errs no more than the rounding of its inputs explains.",
    cause="a step inside is computed at a lower precision than the rest, or two large numbers cancel",
    example="attnlab audit attention says: float32 is off by 1e-07, and rounding its inputs alone makes 7e-08 "
    "(written naively: 1e-07): noise; bfloat16 is off by 3e-03, and rounding its inputs alone makes 5e-03: "
    "noise",
    look=look,
    said=True,
    meant="something inside loses digits",
)
