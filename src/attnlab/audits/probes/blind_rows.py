"""What does a query do that may look nowhere?"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.audits.measure import Setting
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.weights import Core, Situation, cores, real_of, shown, situations
from attnlab.mechanisms.tokens import Pairs
from attnlab.randomness import stream
from attnlab.records.finding import Finding
from attnlab.subjects.subject import Subject


def look(subject: Subject) -> Outcome:
    """A normalizer of ours by itself, then padding in front and a sentence of padding alone."""
    asked, weighed = 0, False
    for one in situations(subject, _settings(subject.sizes.length)):
        if one.real is not None:
            continue
        for core in cores(subject, one.module, one.x):
            asked += 1
            broken = _by_itself(core, one)
            if broken is not None:
                return broken
        if not subject.hears_padding:
            continue
        for name, real in _paddings(one):
            asked += 1
            broken = _with_padding(subject, one, name, real)
            if broken is not None:
                return broken
        weighed = weighed or shown(subject, one.module, one.x) is not None
    if not asked:
        return Silent("it cannot be told of padding, so no row is blind")
    says = "weighs nothing and gives no NaN" if weighed else "gives no NaN"
    return Held(f"a row that may look nowhere {says}", {"asked": asked})


def _settings(full: int) -> Iterator[Setting]:
    for length in (2, 5, full):
        yield Setting(length=length, batch=3)
    yield Setting(draw=1, length=7, batch=3)


def _paddings(one: Situation) -> Iterator[tuple[str, Tensor]]:
    b, n = one.x.shape[:2]
    yield "padding in front", real_of(b, n, left=True)
    alone = torch.ones(b, n, dtype=torch.bool)
    alone[-1] = False
    yield "a sentence of padding alone", alone


def _by_itself(core: Core, one: Situation) -> Broke | None:
    at, module = Pairs(core.tokens, core.tokens), core.module
    with torch.no_grad():
        q, kept = module.projection(core.x)
        scores = module.score(q, module.projection.open(*kept)[0], at)
    n = core.x.shape[1]
    allowed = module.visibility.given(at)(at).expand(len(core.x), -1, n, n).clone()
    allowed[0, :, -1] = False
    allowed[-1] = False
    drawn = torch.randn(scores.shape, generator=stream(0, "scores"), dtype=scores.dtype).abs().requires_grad_()
    weights = module.normalizer(drawn, allowed)
    blind = ~allowed.any(dim=-1, keepdim=True)
    wrong = ((weights != 0) & blind).any(dim=-1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0][2])
        return _said(weights.detach()[wrong][0], "hidden from all", row, one)
    (heard,) = torch.autograd.grad(weights.sum(), drawn)
    if not bool(heard.isfinite().all()):
        return Broke(
            f"a row that may look nowhere gives a gradient that is no number ({one.words()})",
            {"backwards": True, **one.evidence()},
        )
    return None


def _with_padding(subject: Subject, one: Situation, name: str, real: Tensor) -> Broke | None:
    nowhere = ~_may_look(subject, real).any(dim=-1)
    shows = shown(subject, one.module, one.x, real=real)
    known = one._replace(real=real)
    if shows is not None:
        inside = cores(subject, one.module, one.x, real=real)
        for layer, weights in enumerate(shows.layers):
            blind = nowhere[:, None].expand(weights.shape[:3])
            if inside and len(inside) == len(shows.layers):
                at = Pairs(inside[layer].tokens, inside[layer].tokens)
                allowed = inside[layer].module.visibility.given(at)(at)
                blind = (~allowed.any(dim=-1)).expand(weights.shape[:3])
            wrong = (weights != 0).any(dim=-1) & blind
            if bool(wrong.any()):
                return _said(weights.detach()[wrong][0], name, int(wrong.nonzero()[0][2]), known)
    y = subject.ask(one.module, one.x, real=real)
    unlike = ~y.isfinite().all(dim=-1)
    if bool(unlike.any()):
        token = int(unlike.nonzero()[0][1])
        spread = " and it spreads to real tokens" if bool((unlike & real).any()) else ""
        return Broke(
            f"with {name}, output {token} is NaN{spread} ({one.at.words()})",
            {"padding": name, "token": token, "row": "NaN", **known.evidence()},
        )
    return None


def _may_look(subject: Subject, real: Tensor) -> Tensor:
    seen = real[:, None, :].expand(-1, real.shape[1], -1)
    return seen.tril() if subject.claims("causal") else seen


def _said(row: Tensor, name: str, place: int, one: Situation) -> Broke:
    if not bool(row.isfinite().all()):
        what = "NaN"
    elif float(row.max() - row.min()) < 1e-6:
        what = "uniform"
    else:
        what = "something else"
    says = {"NaN": "is NaN", "uniform": "weighs all keys alike"}.get(what, "weighs keys that are hidden")
    return Broke(
        f"row {place}, which may look nowhere, {says} ({name}, {one.at.words()})",
        {"row": what, "place": place, "padding": name, **one.evidence()},
    )


@dataclass(frozen=True, kw_only=True)
class Zeros(Probe):
    """Only mechanisms of ours promise zeros here; of any other it is stated what it does."""

    def __call__(self, subject: Subject) -> Finding:
        found = super().__call__(subject)
        if found.status != "broken" or subject.way.tokens:
            return found
        return self.finding("unclaimed", f"{found.sentence}: {self.meant}", found.evidence)


PROBE = Zeros(
    code="blind-rows",
    promise="hidden-keys-weigh-nothing",
    family="weights",
    says="A row that may look nowhere weighs nothing: zeros and no NaN, forwards and backwards.",
    cause="a softmax over nothing but -∞ is 0/0, and over nothing but a finite floor it is uniform",
    example="attnlab audit finite-floor says: row 1, which may look nowhere, weighs all keys alike (hidden from all, "
    "2 tokens, batch of 3)",
    look=look,
    meant="no fault in itself, but padding in front or a sentence of padding alone gives such rows",
)
