"""Does a fast way to compute say the same as the plain one?"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from attnlab.audits.measure import Setting, asked, dtype_of, rounding_of
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.probes.rounding import conditioning
from attnlab.audits.weights import REFUSALS, Told, explicit, input_of, number, real_of
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.planner import paths, taking
from attnlab.randomness import stream
from attnlab.subjects.subject import Subject

# Ours add the same numbers in another order; others may take their softmax in float32.
WITHIN, WITHIN_THEIRS = 1e-12, 1e-5
ROUNDINGS = 32.0
FLAG = re.compile(r"^(use_)?(flash|fused|sdpa|fast|fast_path)(_attn|_attention)?$")


class Two(NamedTuple):
    """Two ways to compute the same, each a context, and what more is told."""

    name: str
    fast: Callable[[nn.Module], AbstractContextManager[Any]]
    slow: Callable[[nn.Module], AbstractContextManager[Any]]
    told_fast: Mapping[str, Any] = MappingProxyType({})
    told_slow: Mapping[str, Any] = MappingProxyType({})


def look(subject: Subject) -> Outcome:
    module = subject.build()
    if any(isinstance(part, Attention) for part in module.modules()):
        reasons = paths(module)
        ways = [_path(name) for name, reason in reasons.items() if reason is None and name != "explicit"]
        if not ways:
            why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason is not None)
            return Silent(f"no fast path serves it ({why})")
        return _compared(subject, ways, WITHIN, _settings())
    ways = list(_theirs(subject, module))
    if not ways:
        return Silent("it has one way to compute, as far as can be seen")
    return _compared(subject, ways, WITHIN_THEIRS, _settings(subject.sizes.length))


def _settings(longest: int = 37) -> Iterator[Setting]:
    """A length beyond the smallest block and no multiple of it."""
    for length in (1, 2, 5, longest):
        yield Setting(length=length, batch=3)
    yield Setting(draw=1, length=7, batch=3, whole=30.0)


def _compared(subject: Subject, ways: list[Two], within: float, settings: Iterator[Setting]) -> Outcome:
    eps = None if within == WITHIN else torch.finfo(torch.float32).eps
    furthest, lengths, names = 0.0, set(), dict[str, None]()
    for at, module in asked(subject, settings):
        x, precise = input_of(subject, module, at), max(within, rounding_of(module) if within > WITHIN else 0.0)
        x = x if subject.way.ids else x.requires_grad_()
        masks: list[Tensor | None] = [None]
        if subject.hears_padding and at.length > 1:
            masks.append(real_of(at.batch, at.length))
        for real in masks:
            noise = ROUNDINGS * conditioning(subject, module, x.detach(), real=real, eps=eps)
            for two in ways:
                expected = _asked(subject, module, x, real, two.slow, two.told_slow)
                if expected is None:
                    continue
                y = _asked(subject, module, x, real, two.fast, two.told_fast)
                where = f"{at.words()}{', with padding' if real is not None else ''}"
                evidence = {"path": two.name, "setting": at._asdict()}
                if y is None:
                    if within == WITHIN:
                        return Broke(f"the {two.name} path fails where the plain one does not ({where})", evidence)
                    continue  # what we switched on may need more than a switch
                apart, size, token = _apart(y, expected, real)
                if apart > precise * size + noise:
                    far = number(apart / size)
                    said = "is a number in one alone" if far is None else f"differs by {far:.1e} of the whole"
                    return Broke(
                        f"on the {two.name} path output {token} {said} ({where})",
                        {**evidence, "token": token, "apart": far},
                    )
                furthest = max(furthest, apart / size)
                if at.length == 5 and x.requires_grad and y.requires_grad and expected.requires_grad:
                    apart, size, token = _apart(_slope(y, x, real), _slope(expected, x, real), None)
                    if apart > 10 * precise * size + 10 * noise:
                        return Broke(
                            f"on the {two.name} path the gradient at token {token} differs ({where})",
                            {**evidence, "token": token, "apart": number(apart / size), "gradient": True},
                        )
                names[two.name] = None
        lengths.add(at.length)
    if not names:
        return Silent("it has one way to compute, as far as can be seen")
    return Held(
        f"{' and '.join(names)} and the plain path say the same, to {furthest:.0e} of it, at {sorted(lengths)} tokens",
        {"paths": list(names), "furthest": furthest, "lengths": sorted(lengths)},
    )


def _asked(
    subject: Subject,
    module: nn.Module,
    x: Tensor,
    real: Tensor | None,
    way: Callable[[nn.Module], AbstractContextManager[Any]],
    told: Mapping[str, Any],
) -> Tensor | None:
    try:
        with way(module):
            return subject.ask(Told(module, told) if told else module, x, real=real)
    except REFUSALS:
        return None


def _slope(y: Tensor, x: Tensor, real: Tensor | None) -> Tensor:
    direction = torch.randn(y.shape, generator=stream(0, "direction"), dtype=torch.float64).to(y)
    if real is not None:
        direction = direction * real[:, :, None]
    (slope,) = torch.autograd.grad((y * direction).sum(), x)
    return slope


def _apart(y: Tensor, expected: Tensor, real: Tensor | None) -> tuple[float, float, int]:
    gap = (y - expected).detach().abs().masked_fill(y.isfinite() != expected.isfinite(), torch.inf)
    gap = gap.nan_to_num(0.0, torch.inf)
    if real is not None:
        gap = gap.masked_fill(~real[:, :, None], 0.0)
    size = float(expected.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-300))
    return float(gap.max()), size, int(gap.amax(dim=(0, 2)).argmax())


def _path(name: str) -> Two:
    return Two(name, lambda module: taking(module, name), lambda module: taking(module, "explicit"))


def _theirs(subject: Subject, module: nn.Module) -> Iterator[Two]:
    """What can be switched from outside: kernels of torch, implementations of Hugging Face, telling flags."""
    at, ready = next(asked(subject, (Setting(length=n, batch=3) for n in (5, subject.sizes.length))))
    x = subject.give(at.length, batch=3, dtype=dtype_of(ready))
    with explicit(module) as has_eager:
        pass
    with explicit(module, "sdpa") as has_sdpa:
        pass
    if has_eager and has_sdpa:
        yield Two("sdpa", lambda m: explicit(m, "sdpa"), lambda m: explicit(m, "eager"))
    with _Calls() as calls:
        subject.ask(ready, x)
    if calls.fused:
        yield Two("fused kernel", lambda m: nullcontext(), lambda m: sdpa_kernel(SDPBackend.MATH))
    try:
        wanted = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        wanted = {}  # type: ignore[assignment]
    if "need_weights" in wanted:
        told = ({"need_weights": False}, {"need_weights": True})
        yield Two("need_weights=False", lambda m: nullcontext(), lambda m: nullcontext(), *told)
    if any(type(part).__module__.startswith("torch.nn.modules.") and _native(part) for part in module.modules()):
        yield Two("inference", lambda m: torch.no_grad(), lambda m: nullcontext())
    for flag in sorted({name for part in module.modules() for name in vars(part) if _is_flag(part, name)}):
        yield Two(flag, partial(_flagged, flag=flag, value=True), partial(_flagged, flag=flag, value=False))


def _native(part: nn.Module) -> bool:
    return isinstance(part, nn.MultiheadAttention | nn.TransformerEncoderLayer)


def _is_flag(part: nn.Module, name: str) -> bool:
    return bool(FLAG.search(name)) and isinstance(vars(part)[name], bool) and not name.startswith("_")


@contextmanager
def _flagged(module: nn.Module, flag: str, value: bool) -> Iterator[None]:
    before = [(part, getattr(part, flag)) for part in module.modules() if flag in vars(part)]
    try:
        for part, _ in before:
            setattr(part, flag, value)
        yield
    finally:
        for part, old in before:
            setattr(part, flag, old)


class _Calls(TorchFunctionMode):
    """Notes whether torch's fused attention is asked."""

    fused = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "scaled_dot_product_attention":
            self.fused = True
        return function(*args, **(kwargs or {}))


PROBE = Probe(
    code="fast-path",
    promise="fast-equals-explicit",
    family="agreement",
    says="Every fast way to compute it gives what the plain way gives.",
    cause="the kernel is given another mask, scale or bias than the plain path, or treats blind rows otherwise",
    example="attnlab audit alibi says: fused and the plain path say the same, to 3e-16 of it, at [1, 2, 5, 7, 37] "
    "tokens",
    look=look,
    meant="what is measured on one path does not hold on the other",
)
