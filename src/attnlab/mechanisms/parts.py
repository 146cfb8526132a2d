"""What must a part be able to do? The protocols that every mechanism is composed of."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.shapes import Allowed, Bias, Heads, Key, Memory, Query, Scores, Value, Vectors, Weights


@runtime_checkable
class Projection(Protocol):
    """Where do q, k and v come from?"""

    def __call__(self, x: Vectors, memory: Memory | None = None, /) -> tuple[Query, tuple[Tensor, ...]]:
        """q, and what is worth keeping: (k, v), one shared tensor, v alone, or a latent. Its last two axes are
        tokens and features, so that a cache can grow it."""
        ...

    def open(self, *kept: Tensor) -> tuple[Key, Value]:
        """k and v from what was kept. No key (or no query) is zero features wide, never None."""
        ...


class Position(nn.Module):
    """Where are the tokens? Turned before scoring, or added to the scores; neutral unless written."""

    def turn(self, t: Tensor, tokens: Tokens) -> Tensor:
        return t

    def bias(self, q: Tensor, k: Tensor, at: Pairs) -> Bias | None:
        return None


@runtime_checkable
class Score(Protocol):
    """How strongly? A score may also offer `as_dot(q, k)`: two tensors whose product is the score."""

    def __call__(self, q: Query, k: Key, at: Pairs, /) -> Scores: ...


@runtime_checkable
class Normalizer(Protocol):
    """How much? It is given the scores *and* the mask, and may change the number of heads.

    It may also offer `as_softmax`, a factor: it then is a masked softmax of factor · scores; or `whole`, the reason
    why hidden scores still matter, so that a step cannot equal the whole.
    """

    def __call__(self, scores: Scores, allowed: Allowed, /) -> Weights: ...


@runtime_checkable
class Merge(Protocol):
    """How do the heads come together? It may offer `whole`: the reason why a step cannot equal the whole."""

    def __call__(self, heads: Heads, x: Vectors, tokens: Tokens, /) -> Heads: ...


@runtime_checkable
class Mixer(Protocol):
    """Any module from tokens to tokens: all that audits, training and views need."""

    def __call__(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Vectors: ...


@runtime_checkable
class Weighs(Protocol):
    """Discovered: a mixer that can show its weights (the same arguments as the call)."""

    def weights(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Weights: ...


@runtime_checkable
class StepsThrough(Protocol):
    """Discovered: a mixer that goes token by token. `start` raises Refused where it cannot."""

    def start(
        self,
        like: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Any: ...

    def step(self, x: Vectors, state: Any, *, tokens: Tokens | None = None) -> tuple[Vectors, Any]: ...


class Cache(NamedTuple):
    """What attention keeps of the tokens behind: the kept tensors, before any turn, and the tokens themselves."""

    kept: tuple[Tensor, ...]
    tokens: Tokens


def offers(part: object, name: str) -> Any:
    """What a part offers under this name, or None.

    A claim counts only where it is made at or below the method it speaks of: a subclass that overrides the call but
    inherits `as_softmax` would otherwise lie.
    """
    for home in type(part).__mro__:
        if name in vars(home):
            return getattr(part, name)
        if "__call__" in vars(home) or "forward" in vars(home):
            return getattr(part, name) if name in vars(part) else None
    return getattr(part, name, None)
