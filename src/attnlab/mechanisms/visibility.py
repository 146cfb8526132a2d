"""Who may look at whom? Rules that combine with & and |, each with the band it keeps to."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from attnlab.errors import BadSetting
from attnlab.mechanisms.tokens import Pairs
from attnlab.shapes import Allowed


class Band(NamedTuple):
    """Nothing further back or ahead is visible; `exact`: and nothing else is hidden."""

    back: float = inf
    ahead: float = inf
    exact: bool = False

    def __and__(self, other: "Band") -> "Band":
        exact = self.exact and other.exact
        return Band(min(self.back, other.back), min(self.ahead, other.ahead), exact)

    def __or__(self, other: "Band") -> "Band":
        widest = Band(max(self.back, other.back), max(self.ahead, other.ahead))
        return widest._replace(exact=any(side.exact and side[:2] == widest[:2] for side in (self, other)))


@runtime_checkable
class Rule(Protocol):
    """What a reader may write: any function from pairs to a mask, True where the query may look at the key."""

    def __call__(self, at: Pairs, /) -> Allowed: ...


class Visible:
    """A rule that knows its band. Rules are frozen data, so that they travel between processes."""

    band: Band = Band()
    itself: bool = False
    """Every token sees at least itself, so no row of a run's own attention is blind."""

    def __call__(self, at: Pairs, /) -> Allowed:
        raise NotImplementedError

    def given(self, at: Pairs) -> "Visible":
        """The same rule for these pairs: what nobody marked cannot hide anything."""
        return self

    def __and__(self, other: "Visible") -> "Visible":
        return self if other == EVERYTHING else other if self == EVERYTHING else And(self, other)

    def __or__(self, other: "Visible") -> "Visible":
        return EVERYTHING if EVERYTHING in (self, other) else Or(self, other)


@dataclass(frozen=True)
class And(Visible):
    """Both let it."""

    one: Visible
    other: Visible

    @property
    def band(self) -> Band:  # type: ignore[override]
        return self.one.band & self.other.band

    @property
    def itself(self) -> bool:  # type: ignore[override]
        return self.one.itself and self.other.itself

    def __call__(self, at: Pairs, /) -> Allowed:
        return self.one(at) & self.other(at)

    def given(self, at: Pairs) -> Visible:
        return self.one.given(at) & self.other.given(at)


@dataclass(frozen=True)
class Or(Visible):
    """Either lets it."""

    one: Visible
    other: Visible

    @property
    def band(self) -> Band:  # type: ignore[override]
        return self.one.band | self.other.band

    @property
    def itself(self) -> bool:  # type: ignore[override]
        return self.one.itself or self.other.itself

    def __call__(self, at: Pairs, /) -> Allowed:
        return self.one(at) | self.other(at)

    def given(self, at: Pairs) -> Visible:
        return self.one.given(at) | self.other.given(at)


@dataclass(frozen=True)
class Within(Visible):
    """-ahead ≤ i - j ≤ back: everything, causal and windows are bands."""

    back: float = inf
    ahead: float = inf
    itself = True

    @property
    def band(self) -> Band:  # type: ignore[override]
        return Band(self.back, self.ahead, exact=True)

    def __call__(self, at: Pairs, /) -> Allowed:
        steps = at.steps()
        behind = steps <= self.back if self.back < inf else None
        before = steps >= -self.ahead if self.ahead < inf else None
        if behind is not None and before is not None:
            return behind & before
        seen = behind if behind is not None else before
        return seen if seen is not None else torch.ones_like(steps, dtype=torch.bool)


EVERYTHING: Visible = Within()
CAUSAL: Visible = Within(ahead=0)


def everything() -> Visible:
    """i may look at every j"""
    return EVERYTHING


def causal() -> Visible:
    """j ≤ i"""
    return CAUSAL


def window(*, last: int = 4, ahead: int = 0) -> Visible:
    """-ahead ≤ i - j < last: the last few tokens, itself among them"""
    if last < 1 or ahead < 0:
        raise BadSetting(
            f"window(last={last}, ahead={ahead}): last counts the token itself, so at least 1; ahead at least 0"
        )
    return Within(back=last - 1, ahead=ahead)


@dataclass(frozen=True)
class First(Visible):
    """j < length: the keys that open the run, by their order."""

    length: int

    @property
    def band(self) -> Band:  # type: ignore[override]
        return Band(ahead=self.length - 1)

    def __call__(self, at: Pairs, /) -> Allowed:
        return (at.keys.order < self.length)[:, None, None, :].expand(-1, -1, len(at.queries), -1)


def prefix(*, length: int = 8) -> Visible:
    """j < length; alone it stands for a prefix language model, j < length or j ≤ i"""
    if length < 1:
        raise BadSetting(f"prefix({length}) shows nothing; length must be at least 1")
    return First(length)


@dataclass(frozen=True)
class Strided(Visible):
    """0 ≤ i - j < stride, or i - j a multiple of it: the fixed reach of a sparse transformer."""

    stride: int
    itself = True

    def __call__(self, at: Pairs, /) -> Allowed:
        steps = at.steps()
        return (steps % self.stride == 0) | ((steps >= 0) & (steps < self.stride))


def strided(*, stride: int = 4) -> Visible:
    """0 ≤ i - j < stride, or i - j a multiple of it"""
    if stride < 1:
        raise BadSetting(f"strided({stride}): the stride must be at least 1")
    return Strided(stride)


@dataclass(frozen=True)
class Blockwise(Visible):
    """⌊i/size⌋ = ⌊j/size⌋: tokens of the same block."""

    size: int
    itself = True

    @property
    def band(self) -> Band:  # type: ignore[override]
        return Band(self.size - 1, self.size - 1)

    def __call__(self, at: Pairs, /) -> Allowed:
        block = (at.queries.order // self.size)[:, :, None] == (at.keys.order // self.size)[:, None, :]
        return block[:, None]


def blockwise(*, size: int = 4) -> Visible:
    """⌊i/size⌋ = ⌊j/size⌋"""
    if size < 1:
        raise BadSetting(f"blockwise({size}): a block holds at least 1 token")
    return Blockwise(size)


@dataclass(frozen=True)
class Same(Visible):
    """mark_i = mark_j: tokens of one document do not see another's."""

    mark: str
    itself = True

    def __call__(self, at: Pairs, /) -> Allowed:
        asks, told = at.queries.marks[self.mark], at.keys.marks[self.mark]
        return (asks[:, :, None] == told[:, None, :])[:, None]

    def given(self, at: Pairs) -> Visible:
        marked = self.mark in at.queries.marks and self.mark in at.keys.marks
        return self if marked else EVERYTHING


@dataclass(frozen=True)
class KeysAre(Visible):
    """mark_j: keys without the mark are hidden, as padding is."""

    mark: str

    def __call__(self, at: Pairs, /) -> Allowed:
        return at.keys.marks[self.mark].bool()[:, None, None, :].expand(-1, -1, len(at.queries), -1)

    def given(self, at: Pairs) -> Visible:
        return self if self.mark in at.keys.marks else EVERYTHING


def documents() -> Visible:
    """document_i = document_j: packed texts do not see each other"""
    return Same("document")


def padding() -> Visible:
    """real_j: padding is not looked at"""
    return KeysAre("real")


@dataclass(frozen=True)
class PerHead(Visible):
    """A rule for each head."""

    rules: tuple[Visible, ...]

    @property
    def band(self) -> Band:  # type: ignore[override]
        widest = self.rules[0].band
        for rule in self.rules[1:]:
            widest |= rule.band
        return widest if len(set(self.rules)) == 1 else widest._replace(exact=False)

    @property
    def itself(self) -> bool:  # type: ignore[override]
        return all(rule.itself for rule in self.rules)

    def __call__(self, at: Pairs, /) -> Allowed:
        masks = torch.broadcast_tensors(*(rule(at) for rule in self.rules))
        return torch.cat(masks, dim=1)

    def given(self, at: Pairs) -> Visible:
        return PerHead(tuple(rule.given(at) for rule in self.rules))


def per_head(*rules: Visible) -> Visible:
    """Heads that see differently."""
    return PerHead(rules)


@dataclass(frozen=True)
class Written(Visible):
    """A reader's own rule; nothing is known of its band."""

    rule: Rule

    def __call__(self, at: Pairs, /) -> Allowed:
        return self.rule(at)
