"""How far back does an output hear?"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnlab.audits.measure import (
    DRAWN,
    GRADIENT,
    Setting,
    asked,
    dtype_of,
    following,
    pulled,
    reached,
    rounding,
    tried,
)
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.errors import BadSetting
from attnlab.subjects.subject import Subject

# A longer reach costs too much to show; in an input longer than the other, only the rows at the edge are read.
LONGEST, EVERY_ROW = 512, 40


class Heard(NamedTuple):
    """Some outputs, and which token each of them hears: (outputs, tokens)."""

    outputs: tuple[int, ...]
    tokens: Tensor

    def band(self, last: int) -> Tensor:
        """What they would hear if each heard exactly its last tokens."""
        steps = torch.tensor(self.outputs)[:, None] - torch.arange(self.tokens.shape[1])[None]
        return (steps >= 0) & (steps < last)

    def last(self) -> int | None:
        """The n where every output hears exactly its last n tokens, if that is fewer than all."""
        n = int(self.tokens[-1].sum())
        return n if n < self.tokens.shape[1] and torch.equal(self.tokens, self.band(n)) else None


def settings(full: int, last: int | None) -> Iterator[Setting]:
    """The smallest inputs that show the edge, then others; a weight may be zero by chance, so several draws."""
    lengths = (full, 37) if last is None else (last + 2, max(full, last + 9))
    for length in lengths:
        for draw in (0, 1) if last is None else (0, 1, 2):
            yield Setting(draw=draw, length=length)
    if last is not None:
        yield Setting(draw=1, length=lengths[-1], batch=1, whole=10.0)
    yield Setting(length=5)


def look(subject: Subject) -> Outcome:
    last = meant(subject)
    if last is not None and last > LONGEST:
        return Silent(f"to show a reach of {last} takes more than {LONGEST} tokens")
    heard: dict[int, Heard] = {}
    done: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    within = rounding(subject)
    for at, module in asked(subject, settings(subject.sizes.length, last), refused=refused):
        one = hears(subject, module, at, outputs_of(at.length, last), within=within)
        known = heard.get(at.length)
        heard[at.length] = one if known is None else known._replace(tokens=known.tokens | one.tokens)
        done.append(at)
    evidence = tried(done, refused)
    if last is None:
        return stated(heard, evidence)
    if max(heard) <= last:
        return Silent(f"it takes no more than {max(heard)} tokens, too few to show a reach of {last}")
    for length, one in sorted(heard.items()):
        wrong = one.tokens != one.band(last)
        if length > last and bool(wrong.any()):
            row, j = (int(place) for place in wrong.nonzero()[0])
            i = one.outputs[row]
            back = f"{i - j} back" if i > j else f"{j - i} ahead" if j > i else "itself"
            what = "hears" if one.tokens[row, j] else "does not hear"
            really = f"; it hears exactly its last {one.last()}" if one.last() else ""
            return Broke(
                f"output {i} {what} token {j}, {back}, where its last {last} are meant ({length} tokens){really}",
                evidence | {"output": i, "token": j, "length": length, "last": last, "measured": one.last()},
            )
    return Held(f"every output hears exactly its last {last} tokens", evidence | {"last": last, "measured": last})


def outputs_of(length: int, last: int | None) -> tuple[int, ...]:
    """All of them, or in a long input those where the edge shows."""
    if last is None or length <= EVERY_ROW:
        return tuple(range(length))
    return tuple(sorted({0, 1, last - 2, last - 1, last, last + 1, length - 1} & set(range(length))))


def meant(subject: Subject) -> int | None:
    """The n of a claimed hears-last:n."""
    if not subject.claims("hears-last"):
        return None
    said = subject.value_of("hears-last")
    if not said.isdigit() or int(said) < 1:
        raise BadSetting(f"hears-last:{said} says no number of tokens; write hears-last:4")
    return int(said)


def hears(subject: Subject, module: nn.Module, at: Setting, outputs: tuple[int, ...], *, within: float) -> Heard:
    """By its gradient, and in short inputs also by its value: either may be zero where the other is not."""
    x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
    with following(subject, module, x) as (given, starts):
        y = subject.ask(module, given)
    heard = torch.zeros(len(outputs), at.length, dtype=torch.bool)
    followed = bool(starts) and y.requires_grad
    if followed:
        rows = torch.stack([pulled(y, starts, (slice(None), i)).amax(dim=0) for i in outputs])
        heard = rows > GRADIENT * within * rows.amax(dim=1, keepdim=True)
    if at.length <= DRAWN or not followed:
        heard |= reached(subject, module, at)[list(outputs)] > within
    return Heard(outputs, heard)


def stated(heard: dict[int, Heard], evidence: dict[str, Any]) -> Outcome:
    """What nobody claimed: the finite reach, where the longest input shows one."""
    longest = max(heard)
    last = heard[longest].last()
    if last is None:
        return Silent(f"what an output hears is no fixed number of last tokens, of {longest}")
    return Held(f"every output hears exactly its last {last} tokens, itself among them", evidence | {"measured": last})


PROBE = Probe(
    code="hears-last",
    promise="hears-last:n",
    family="order",
    says="An output hears exactly its last n tokens, itself among them.",
    cause="the edge of the window is off by one: it counts the token itself, so it reaches n - 1 back",
    example="attnlab audit tests/museum/window_off_by_one.py says: output 4 hears token 0, 4 back, where its last 4 "
    "are meant (5 tokens)",
    look=look,
)
