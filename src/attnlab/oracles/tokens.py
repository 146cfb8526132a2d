"""What does a slow twin know of tokens? Plain whole numbers, one sequence at a time."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Number = Tensor
"""A tensor without axes."""
Vector = Tensor
"""A tensor of one axis."""
Parameters = Mapping[str, Tensor]
Marks = Mapping[str, Sequence[bool | int]]


class Run(NamedTuple):
    """One sequence: the position of each token (its order is its index), and what it is marked with."""

    positions: Sequence[int]
    marks: Marks


class Pair(NamedTuple):
    """A query and a key of one head: i and j by order, and their positions."""

    head: int
    i: int
    j: int
    at_i: int
    at_j: int

    @property
    def distance(self) -> int:
        return self.at_i - self.at_j


class Answer(NamedTuple):
    """What a slow twin says: the output, and the weights (b h i j) it was made with, if there are any."""

    output: Tensor
    weights: Tensor | None = None


def within(p: Parameters, prefix: str) -> Parameters:
    """The parameters of one part, by the names it gives them."""
    return {name.removeprefix(prefix): t for name, t in p.items() if name.startswith(prefix)}


def stacked(tensors: Any) -> Tensor:
    """Tensors in lists in lists, as one tensor."""
    return tensors if isinstance(tensors, Tensor) else torch.stack([stacked(one) for one in tensors])
