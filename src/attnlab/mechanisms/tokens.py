"""What is known of the tokens besides their vectors, and of every pair of them?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.shapes import Bias, Mark, Places, Steps


@dataclass(frozen=True)
class Tokens:
    """A run of tokens. Order is not position: order counts, position may restart, shift or jump."""

    order: Places
    position: Places
    marks: Mapping[str, Mark] = field(default_factory=dict)
    """Per token: "real" (False: padding), "document" (which one)."""
    first: int | None = None
    """Where both count up by one from; None where a position was given by hand."""

    @classmethod
    def count(cls, n: int, *, first: int = 0, device: torch.device | str = "cpu", **marks: Tensor) -> "Tokens":
        """n tokens in their natural order."""
        order = torch.arange(first, first + n, device=device)[None]
        return cls(order, order, marks, first)

    @classmethod
    def place(cls, position: Tensor, **marks: Tensor) -> "Tokens":
        """Tokens in their natural order at positions of the caller's choosing."""
        order = torch.arange(position.shape[-1], device=position.device)[None]
        return cls(order, position, marks)

    def __len__(self) -> int:
        return self.order.shape[-1]

    def then(self, more: "Tokens") -> "Tokens":
        """These, and more after them: how a cache grows."""
        if len(self) == 0:
            return more
        if set(self.marks) != set(more.marks):
            raise ValueError(f"tokens marked {sorted(self.marks)} cannot go on with {sorted(more.marks)}")
        counted = self.first is not None and more.first == self.first + len(self)
        return Tokens(
            order=joined(self.order, more.order),
            position=joined(self.position, more.position),
            marks={name: joined(mark, more.marks[name]) for name, mark in self.marks.items()},
            first=self.first if counted else None,
        )

    def last(self, n: int) -> "Tokens":
        """The n last of them."""
        cut = max(len(self) - n, 0)
        first = None if self.first is None else self.first + cut
        return replace(self.each(lambda run: run[:, cut:]), first=first)

    def each(self, change: Callable[[Tensor], Tensor]) -> "Tokens":
        """The same change of every field, as for a slice."""
        marks = {name: change(mark) for name, mark in self.marks.items()}
        return Tokens(change(self.order), change(self.position), marks)


def joined(a: Tensor, b: Tensor) -> Tensor:
    """a then b along the tokens, where either may stand for the whole batch."""
    rows = max(len(a), len(b))
    return torch.cat([a.expand(rows, -1), b.expand(rows, -1)], dim=1)


class Pairs(NamedTuple):
    """Who asks whom. `queries is keys` says: a whole run that attends to itself."""

    queries: Tokens
    keys: Tokens

    def steps(self) -> Steps:
        """How far the key stands behind the query, by order: what visibility reads."""
        return (self.queries.order[:, :, None] - self.keys.order[:, None, :])[:, None]

    def distance(self) -> Steps:
        """The same by position: what biases read."""
        return (self.queries.position[:, :, None] - self.keys.position[:, None, :])[:, None]

    def by_distance(self, values: Callable[[Tensor], Float[Tensor, "h *places"]]) -> Bias:
        """A bias that depends on the distance alone, from values(distances).

        Where both sides count up by one there are only n_queries + n_keys - 1 distances; each value is computed once
        and laid along its diagonal (a gather over all pairs is several times dearer, forwards and backwards).
        """
        q, k = self.queries, self.keys
        if q.first is None or k.first is None:
            return values(self.distance()[:, 0]).transpose(0, 1)
        nearest = q.first - (k.first + len(k) - 1)
        furthest = q.first + len(q) - 1 - k.first
        line = values(torch.arange(furthest, nearest - 1, -1, device=q.order.device))
        return line.unfold(-1, len(k), 1).flip(-2)[None]
