"""Does going token by token give what the whole gives?"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audits.measure import Setting, asked, rounding_of
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.probes.rounding import conditioning
from attnlab.audits.weights import REFUSALS, Told, input_of, number, real_of
from attnlab.errors import Refused
from attnlab.mechanisms.tokens import Tokens
from attnlab.randomness import seeded
from attnlab.subjects.files import in_one_line
from attnlab.subjects.subject import Subject

WITHIN, WITHIN_THEIRS = 1e-11, 1e-5
ROUNDINGS = 32.0
CACHES = (
    "past_key_values",
    "past_key_value",
    "layer_past",
    "past",
    "past_kv",
    "kv_cache",
    "cache",
    "state",
    "hidden",
)
ASKS = re.compile(r"^(use|return|with)_(cache|kv|past|present|state)")
RETURNED = re.compile(r"cache|past|present|state")


class _NoCache(Exception):
    """It takes what it never gives."""


def look(subject: Subject) -> Outcome:
    module = subject.build()
    steps = all(inspect.ismethod(getattr(module, name, None)) for name in ("start", "step"))
    wanted = inspect.signature(module.forward).parameters
    word = next((name for name in CACHES if name in wanted), None)
    if not steps and word is None:
        return Silent("it has no step and takes no cache")
    if steps and not subject.way.tokens and "state" not in _parameters(module, "step"):
        return Silent("its start and step are none that can be asked")
    within = WITHIN if steps and subject.way.tokens else WITHIN_THEIRS
    eps = None if within == WITHIN else torch.finfo(torch.float32).eps
    lengths, furthest = set(), 0.0
    for at, module in asked(subject, _settings(subject.sizes.length)):
        x = input_of(subject, module, at)
        for name, real in _masks(subject, module, at, steps):
            whole = subject.ask(module, x, real=real)
            noise = ROUNDINGS * conditioning(subject, module, x, real=real, eps=eps)
            for cuts in _cuts(at.length):
                where = f"steps of {cuts}, {at.words()}{name}"
                evidence = {"cuts": cuts, "padding": name.strip(", ") or None, "setting": at._asdict()}
                try:
                    if steps:
                        y = _by_steps(subject, module, x, real, cuts)
                    else:
                        y = _by_cache(subject, module, x, real, cuts, str(word))
                except Refused as error:
                    return Silent(f"it says itself that it cannot: {error}")
                except _NoCache:
                    return Silent(f"it takes {word} and returned none")
                except REFUSALS as error:
                    return Broke(f"it fails on the way: {in_one_line(error)} ({where})", evidence)
                token, apart = _apart(y, whole, real, max(within, rounding_of(module)), noise)
                if token is not None:
                    said = "is no number" if apart is None else f"differs by {apart:.1e} of the whole"
                    return Broke(
                        f"output {token} {said} when it is made step by step ({where})",
                        {**evidence, "token": token, "apart": apart},
                    )
                furthest = max(furthest, apart or 0.0)
        lengths.add(at.length)
    return Held(
        f"step by step it gives what the whole gives, to {furthest:.0e} of its size, at {sorted(lengths)} tokens",
        {"lengths": sorted(lengths), "furthest": furthest},
    )


def _parameters(module: nn.Module, method: str) -> Any:
    return inspect.signature(getattr(module, method)).parameters


def _settings(full: int) -> Iterator[Setting]:
    for length in (1, 2, 5):
        yield Setting(length=length, batch=3)
    yield Setting(draw=1, length=full, batch=2)
    yield Setting(draw=2, length=7, batch=3, whole=30.0)


def _cuts(n: int) -> list[list[int]]:
    """One at a time, several at once, the prompt and then one at a time, all at once."""
    several = [part for part in (n // 2, 1, n - n // 2 - 1) if part > 0]
    prompt = [part for part in (n - 2, 1, 1) if part > 0]
    every = [[1] * n, several, prompt, [n]]
    return [cuts for place, cuts in enumerate(every) if sum(cuts) == n and cuts not in every[:place]]


def _masks(subject: Subject, module: nn.Module, at: Setting, steps: bool) -> Iterator[tuple[str, Tensor | None]]:
    yield "", None
    told = not steps or "tokens" in _parameters(module, "start")
    if subject.hears_padding and told and at.batch > 1 and 1 < at.length <= 7:
        yield ", padding behind", real_of(at.batch, at.length)
        yield ", padding in front", real_of(at.batch, at.length, left=True)


def _by_steps(subject: Subject, module: nn.Module, x: Tensor, real: Tensor | None, cuts: list[int]) -> Tensor:
    start: Any = module.start
    step: Any = module.step
    with seeded(0, "ask"), torch.no_grad():
        state = start(x) if real is None else start(x, tokens=Tokens.count(x.shape[1], real=real))
        outputs, begun = [], 0
        for part in x.split(cuts, dim=1):
            told: dict[str, Any] = {}
            if real is not None:
                here = real[:, begun : begun + part.shape[1]]
                told["tokens"] = Tokens.count(part.shape[1], first=begun, real=here)
            y, state = step(part, state, **told)
            outputs.append(y)
            begun += part.shape[1]
    return torch.cat(outputs, dim=1)


def _by_cache(
    subject: Subject, module: nn.Module, x: Tensor, real: Tensor | None, cuts: list[int], word: str
) -> Tensor:
    wanted = inspect.signature(module.forward).parameters
    asks: dict[str, Any] = {name: True for name in wanted if ASKS.match(name)}
    outputs: list[Tensor] = []
    cache: Any = None
    begun = 0
    for place, part in enumerate(x.split(cuts, dim=1)):
        told = Told(module, {**asks, **({word: cache} if place else {})})
        begun += part.shape[1]
        with torch.no_grad():
            outputs.append(_told_padding(subject, told, part, None if real is None else real[:, :begun]))
        cache = _cache_in(told.returned, outputs[-1], word)
        if cache is None and place + 1 < len(cuts):
            raise _NoCache
    return torch.cat(outputs, dim=1)


def _told_padding(subject: Subject, told: Told, part: Tensor, real: Tensor | None) -> Tensor:
    """Of all keys so far, as Hugging Face wants it, or else of the new tokens alone."""
    try:
        return subject.ask(told, part, real=real)
    except REFUSALS:
        if real is None or real.shape[1] == part.shape[1]:
            raise
        return subject.ask(told, part, real=real[:, -part.shape[1] :])


def _cache_in(returned: Any, output: Tensor, word: str) -> Any:
    named = [name for name in dir(returned) if RETURNED.search(name) and "hidden" not in name]
    for name in (word, "past_key_values", *named):
        value = returned.get(name) if isinstance(returned, dict) else getattr(returned, name, None)
        if value is not None and not callable(value):
            return value
    if isinstance(returned, tuple):
        rest = [one for one in returned[1:] if one is not None]
        return rest[-1] if rest else None
    return None


def _apart(
    y: Tensor, whole: Tensor, real: Tensor | None, within: float, noise: float
) -> tuple[int | None, float | None]:
    """The first output that differs, and by how much of the whole; padding is nobody's concern."""
    gap = (y - whole).detach().abs().masked_fill(y.isfinite() != whole.isfinite(), torch.inf)
    gap = gap.nan_to_num(0.0, torch.inf)
    if real is not None:
        gap = gap.masked_fill(~real[:, :, None], 0.0)
    size = float(whole.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-300))
    wrong = (gap.amax(dim=(0, 2)) > within * size + noise).nonzero()
    return (int(wrong[0]) if len(wrong) else None), number(float(gap.max()) / size)


PROBE = Probe(
    code="cached-step",
    promise="step-equals-whole",
    family="agreement",
    says="Going token by token with a cache gives what the whole run gives.",
    cause="positions in the cache are off (by the padding, or by one), or a statistic needs tokens yet to come",
    example="attnlab audit tests/museum/cache_off_by_the_padding.py says: output 1 differs by 7.3e-01 of the whole "
    "when it is made step by step (steps of [1, 1], 2 tokens, batch of 3, padding in front)",
    look=look,
    meant="what it generates is not what it was trained for",
)
