"""Does it stay a number where scores are loud, forwards and backwards?"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.weights import REFUSALS, louder, real_of
from attnlab.randomness import stream
from attnlab.subjects.subject import Subject

NAMES = {torch.float64: "float64", torch.float32: "float32"}


class Case(NamedTuple):
    """One way to be loud, or a corner where a ratio may be 0 / 0."""

    length: int
    loud: float = 1.0
    dtype: torch.dtype = torch.float32
    draw: int = 0
    maps: float = 1.0
    """How much louder the query and key maps are: norms before them cannot hush these."""
    train: bool = False
    padded: bool = False

    def words(self) -> str:
        said = [f"{self.length} tokens", NAMES[self.dtype]]
        said += [f"{self.loud:g} times as loud"] if self.loud not in (0.0, 1.0) else []
        said += ["all zeros"] if self.loud == 0 else []
        said += [f"query and key maps {self.maps:g} times as loud"] if self.maps != 1 else []
        said += ["in training mode"] if self.train else []
        said += ["with padding"] if self.padded else []
        return ", ".join(said)


def cases(subject: Subject) -> Iterator[Case]:
    """Scores grow with the square of the input: 100 times as loud gives about 1e4."""
    yield Case(1)
    yield Case(2)
    yield Case(5, loud=0.0)
    for dtype in (torch.float32, torch.float64):
        for loud in (30.0, 100.0, 1e3):
            yield Case(5, loud=loud, dtype=dtype)
        yield Case(5, maps=100.0, dtype=dtype)
    yield Case(7, loud=100.0, draw=1, train=True)
    yield Case(5, loud=100.0, draw=2, dtype=torch.float64)
    yield Case(5, padded=True)
    yield Case(5, loud=100.0, padded=True)
    yield Case(subject.sizes.length, loud=100.0)


def look(subject: Subject) -> Outcome:
    asked, refused = 0, ""
    for case in cases(subject):
        if (case.padded and not subject.hears_padding) or (subject.way.ids and case.loud != 1):
            continue
        module = _built(subject, case)
        if module is None:
            continue
        x = subject.give(case.length, batch=3, loud=case.loud, dtype=case.dtype)
        real = real_of(3, case.length) if case.padded else None
        try:
            broken = _looked(subject, module, x, real, case)
        except REFUSALS as error:
            refused = refused or str(error)
            continue
        if broken is not None:
            return broken
        asked += 1
    if not asked:
        return Silent(f"it could not be asked ({refused})")
    return Held(
        "its output and its gradients stay numbers, with scores of about 1e4 and more, one token, and zeros",
        {"cases": asked},
    )


def _built(subject: Subject, case: Case) -> nn.Module | None:
    module = subject.build(case.draw, dtype=case.dtype, train=case.train)
    return module if case.maps == 1 else louder(module, case.maps)


def _looked(subject: Subject, module: nn.Module, x: Tensor, real: Tensor | None, case: Case) -> Broke | None:
    if x.is_floating_point():
        x = x.requires_grad_()
    y = subject.ask(module, x, real=real)
    wrong = ~y.isfinite().all(dim=-1)
    if real is not None:
        wrong &= real
    evidence = {
        "loud": case.loud,
        "maps": case.maps,
        "length": case.length,
        "dtype": NAMES[case.dtype],
        "train": case.train,
        "padded": case.padded,
    }
    if bool(wrong.any()):
        sentence, token = (int(place) for place in wrong.nonzero()[0])
        kind = "NaN" if bool(y[sentence, token].isnan().any()) else "infinite"
        return Broke(
            f"output {token} is {kind} ({case.words()})",
            {"token": token, "sentence": sentence, "kind": kind, "where": "output", **evidence},
        )
    if not y.requires_grad:
        return None
    direction = torch.randn(y.shape, generator=stream(0, "direction"), dtype=torch.float64).to(y)
    kept = y if real is None else y.masked_fill(~real[:, :, None], 0.0)
    named: list[tuple[str, Tensor]] = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    named += [("the input", x)] if x.requires_grad else []
    slopes = torch.autograd.grad((kept * direction).sum(), [p for _, p in named], allow_unused=True)
    for (name, _), slope in zip(named, slopes, strict=True):
        if slope is not None and not bool(slope.isfinite().all()):
            kind = "NaN" if bool(slope.isnan().any()) else "infinite"
            return Broke(
                f"the output is a number, but the gradient at {name} is {kind} ({case.words()})",
                {"parameter": name, "kind": kind, "where": "gradient", **evidence},
            )
    return None


PROBE = Probe(
    code="loud-scores",
    promise="finite",
    family="numbers",
    says="Loud scores give finite numbers, in the output and in training gradients.",
    cause="an exponential without its largest score taken off, a ratio that becomes 0 / 0, a root or a norm of zero",
    example="attnlab audit tests/museum/no_maximum_taken.py says: output 0 is NaN (5 tokens, float32, 30 times as "
    "loud)",
    look=look,
    quick=True,
    taken=True,
    meant="training stops at the first loud batch",
)
