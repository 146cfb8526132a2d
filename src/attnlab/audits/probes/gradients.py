"""Is the gradient the derivative, and a number?"""

import warnings

import torch
from torch import Tensor, nn

from attnlab.audits.measure import Setting, as_built, dtype_of, rounding
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.probes.deterministic import moves
from attnlab.randomness import stream
from attnlab.subjects.subject import Subject

# Steps of the difference: what a float32 inside needs, and what float64 allows.
STEPS = (1e-4, 1e-6, 1e-3, 1e-2)
# Relative to the gradient: far above what a step leaves behind, far below what a forgotten term does; a float32 inside
# leaves more, and anything below it too much to tell.
WITHIN = {1e-11: 1e-3, 1e-5: 2e-2}


def look(subject: Subject) -> Outcome:
    settings = [Setting(length=3, batch=1), Setting(draw=1, length=3)]
    settings += [Setting(draw=2, length=subject.sizes.length, batch=1)]
    looked: list[str] = []
    off: list[float] = []
    rounds = rounding(subject)
    noise, within = 100 * rounds, WITHIN.get(rounds)
    for at, module in as_built(subject, settings):
        x = subject.give(at.length, batch=at.batch, dtype=dtype_of(module))
        once, again = (_plain(subject, module, x) for _ in range(2))
        if moves(once, again) > rounds:
            return Silent("it answers the same input differently, so that no difference can be taken")
        given: list[tuple[str, Tensor]] = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
        if not subject.way.ids:
            given.insert(0, ("its input", x.requires_grad_()))
        if not given:
            return Silent("nothing of it can have a gradient")
        weight = torch.randn(once.shape, generator=stream(0, "gradients"), dtype=torch.float64)
        try:
            found = _gradients(subject, module, x, weight, [one for _, one in given])
        except RuntimeError as error:
            line = str(error).strip().splitlines()[0][:200]
            return Broke(f"its backward pass fails: {line} ({at.words()})", {"error": line, "setting": at._asdict()})
        loudest = max((float(one.norm().nan_to_num()) for one in found if one is not None), default=0.0)
        for (name, one), gradient in zip(given, found, strict=True):
            if gradient is None:
                continue
            if not bool(gradient.isfinite().all()):
                return Broke(
                    f"the gradient of {name} is not finite ({at.words()})", {"of": name, "setting": at._asdict()}
                )
            # Of what has no gradient but rounding, another probe speaks.
            if within is not None and dtype_of(module) == torch.float64 and float(gradient.norm()) > noise * loudest:
                gap = _gap(subject, module, x, weight, one, gradient, name, within)
                off.append(gap)
                if gap > within:
                    return Broke(
                        f"the gradient of {name} is not its derivative, and off by {gap:.1%} of it ({at.words()})",
                        {"of": name, "off": gap, "setting": at._asdict()},
                    )
            looked.append(name)
    silent = _blank(subject)
    if silent is not None:
        return silent
    if not off:
        return Held("its gradients are finite; whether they are its derivatives cannot be told below float64")
    return Held(
        f"its gradients are its derivatives, of {len(set(looked))} tensors, and finite on a blank input, too",
        {"tensors": len(set(looked)), "off_at_most": max(off)},
    )


def _gradients(
    subject: Subject, module: nn.Module, x: Tensor, weight: Tensor, of: list[Tensor]
) -> tuple[Tensor | None, ...]:
    with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A module that writes into its input may not be handed a leaf.
        total = (subject.ask(module, x.clone()) * weight.to(dtype_of(module))).sum()
        if not total.requires_grad:
            return tuple(None for _ in of)
        return torch.autograd.grad(total, of, allow_unused=True)


def _plain(subject: Subject, module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return subject.ask(module, x.detach().clone())


def _gap(
    subject: Subject,
    module: nn.Module,
    x: Tensor,
    weight: Tensor,
    one: Tensor,
    gradient: Tensor,
    name: str,
    within: float,
) -> float:
    """The derivative along a random direction, by differences; the step that fits best counts."""
    size = float(gradient.norm())
    direction = torch.randn(one.shape, generator=stream(0, f"direction.{name}"), dtype=torch.float64)
    direction = direction / direction.norm() + gradient / size
    kept, expected, best = one.detach().clone(), float((gradient * direction).sum()), float("inf")

    def at(step: float) -> float:
        with torch.no_grad():
            one.copy_(kept + step * direction)
            try:
                return float((subject.ask(module, x.detach().clone()) * weight).sum())
            finally:
                one.copy_(kept)

    floor = float((_plain(subject, module, x) * weight).abs().sum()) * 1e-16
    for step in STEPS:
        difference = (at(step) - at(-step)) / (2 * step)
        best = min(best, max(abs(difference - expected) - floor / step, 0.0) / max(size, abs(difference)))
        if best <= within / 10:
            break
    return best


def _blank(subject: Subject) -> Broke | None:
    """Tokens of zeros, as a table gives for padding: a root or a quotient may have no derivative there."""
    if subject.way.ids:
        return None
    module = subject.build(0)
    try:
        x = subject.give(4, dtype=dtype_of(module))
        x[:, 2:] = 0
        x.requires_grad_()
        y = subject.ask(module, x.clone())
    except Exception:  # a length that it refuses tells nothing here
        return None
    if not y.requires_grad or not bool(y.isfinite().all()):
        return None
    of = [("its input", x), *((name, one) for name, one in module.named_parameters() if one.requires_grad)]
    found = torch.autograd.grad(y.sum(), [one for _, one in of], allow_unused=True)
    for (name, _), gradient in zip(of, found, strict=True):
        if gradient is not None and not bool(gradient.isfinite().all()):
            return Broke(
                f"where tokens are zero vectors, as padding often is, the gradient of {name} is not a number",
                {"of": name, "blank_tokens": [2, 3], "length": 4},
            )
    return None


PROBE = Probe(
    code="gradients",
    promise="trainable",
    family="learning",
    says="The gradient of everything that learns is its derivative, and a number.",
    cause="a backward of one's own that forgets a term, a detach on one of several ways, an operation in place on what"
    " the backward pass still needs, or a root or a quotient at zero",
    example="attnlab audit tests/museum/wrong_backward.py says: the gradient of its input is not its derivative, and "
    "off by 2.4% of it (3 tokens, batch of 1)",
    look=look,
    taken=True,
)
