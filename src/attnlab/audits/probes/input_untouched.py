"""Does it leave its input, and what it holds itself, as they were?"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.audits.measure import Setting, as_built, dtype_of, number, rounding_of
from attnlab.audits.probe import Broke, Held, Outcome, Probe
from attnlab.audits.probes.deterministic import moves, raw, same_bits
from attnlab.subjects.subject import Subject

# Small first; one batch and several, since a view of one sentence may be what is written into.
SETTINGS = (
    Setting(length=2, batch=1),
    Setting(length=3),
    Setting(length=5, batch=1, train=True),
    Setting(length=5, train=True),
    Setting(length=8, draw=1, batch=3),
)


def look(subject: Subject) -> Outcome:
    grown: set[str] = set()
    for at, module in as_built(subject, (*SETTINGS, Setting(length=subject.sizes.length))):
        broke = _one(subject, module, at, grown)
        if broke is not None:
            return broke
    sentence = "it leaves its input and its own numbers as they were, and forgets one call before the next"
    if grown:
        sentence += f"; {', '.join(sorted(grown))} is filled or grows as longer input comes, which changes no answer"
    return Held(sentence, {"grown": sorted(grown)})


def _one(subject: Subject, module: nn.Module, at: Setting, grown: set[str]) -> Broke | None:
    x = subject.give(at.length, batch=at.batch, dtype=dtype_of(module))
    real = torch.ones(at.batch, at.length, dtype=torch.bool) if subject.hears_padding else None
    kept, held = x.clone(), _held(module)
    with torch.no_grad():
        subject.call(module, x, real=real)
    setting = {"setting": at._asdict()}
    if not same_bits(x, kept):
        places = sorted({int(token) for token in (x != kept).reshape(at.batch, at.length, -1).any(-1).nonzero()[:, 1]})
        return Broke(f"it writes into its input, at tokens {places} ({at.words()})", {"tokens": places, **setting})
    if real is not None and not bool(real.all()):
        return Broke(f"it writes into the mask it is given ({at.words()})", setting)
    for name, value in _changed(module, held):
        if name in dict(module.named_parameters()):
            return Broke(f"a call alone changes its parameter {name} ({at.words()})", {"parameter": name, **setting})
        if at.train:
            continue  # a running statistic
        if value is None or name not in held or value.shape != held[name].shape:
            grown.add(name)
            continue
        return Broke(f"a call in eval mode changes its buffer {name} ({at.words()})", {"buffer": name, **setting})
    if at.train:
        return None
    held = _held(module)
    broke = _remembers(subject, module, x, at)
    grown |= {name for name, _ in _changed(module, held)} if broke is None else set()
    return broke


def _remembers(subject: Subject, module: nn.Module, x: Tensor, at: Setting) -> Broke | None:
    """Whatever came in between, the same input gives what it gave."""
    first = raw(subject, module, x)
    if moves(first, raw(subject, module, x)) > rounding_of(module) and not _seeded_alike(subject, module, x):
        return Broke(f"asked the same twice it remembers the first time ({at.words()})", {"setting": at._asdict()})
    first = subject.ask(module, x).detach()
    for words, length, batch in _between(at):
        try:
            subject.ask(module, subject.give(length, batch=batch, seed=3, dtype=x.dtype))
        except Exception:  # a length or a batch that it refuses tells nothing here
            continue
        moved = moves(first, subject.ask(module, x))
        if moved > rounding_of(module):
            return Broke(
                f"after {words} the same input gives another answer: it remembers what was asked before ({at.words()})",
                {"moved": number(moved), "between": [batch, length], "setting": at._asdict()},
            )
    return None


def _between(at: Setting) -> Iterator[tuple[str, int, int]]:
    yield "another input", at.length, at.batch
    yield "a longer input", 2 * at.length + 1, at.batch
    yield "a shorter input", 1, at.batch
    yield "a larger batch", at.length, at.batch + 2


def _seeded_alike(subject: Subject, module: nn.Module, x: Tensor) -> bool:
    """Chance, not memory: with the same seed the answers are the same."""
    return moves(subject.ask(module, x), subject.ask(module, x)) <= rounding_of(module)


def _held(module: nn.Module) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in (*module.named_parameters(), *module.named_buffers())}


def _changed(module: nn.Module, held: dict[str, Tensor]) -> Iterator[tuple[str, Tensor | None]]:
    now: dict[str, Tensor] = dict((*module.named_parameters(), *module.named_buffers()))
    for name in {**held, **now}:
        before, value = held.get(name), now.get(name)
        if before is None or value is None or not same_bits(before, value):
            yield name, value


PROBE = Probe(
    code="input-untouched",
    promise="leaves-input",
    family="learning",
    says="A call leaves its input, its parameters and its buffers as they were, and the next call knows nothing of it.",
    cause="an operation in place (x += …, relu_, masked_fill_) on the input or on a view of it, or a cache or a running"
    " statistic that is kept on the module",
    example="attnlab audit tests/museum/norm_in_place.py says: it writes into its input, at tokens [0, 1] (2 tokens, "
    "batch of 1)",
    look=look,
    quick=True,
    taken=True,
)
