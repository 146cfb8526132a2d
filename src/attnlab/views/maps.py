"""Who looks at whom? A map has a row for each token that asks and a column for each that may answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnlab.errors import Refused
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.parts import Weighs
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.randomness import stream
from attnlab.shapes import Vectors

Kind = Literal["visibility", "weights", "influence"]


@dataclass(frozen=True, kw_only=True)
class Map:
    """What a picture is drawn from: names and numbers, nothing else."""

    title: str
    kind: Kind
    caption: str = ""
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    """0: nothing; None: not a number. Drawings show how large a value is against the largest of its row."""
    leaks: tuple[tuple[int, int], ...] = ()
    """Cells (row, column) that are not nothing, although the mechanism's own rule hides them."""


def random_tokens(n: int, *, d_model: int, seed: int = 0) -> Vectors:
    """n vectors that mean nothing, the same for every mechanism."""
    return torch.randn(1, n, d_model, dtype=torch.float64, generator=stream(seed, "map"))


def visibility(mixer: nn.Module, n: int, *, title: str = "who may look", caption: str = "") -> Map | None:
    """The share of heads that may look; None where no one rule says so."""
    allowed = rule_of(mixer, n)
    if allowed is None:
        return None
    return _map(allowed.to(torch.float64).mean(dim=(0, 1)), title=title, caption=caption, kind="visibility")


def weights(mixer: nn.Module, x: Vectors, *, title: str = "weights", caption: str = "", head: int = 0) -> Map:
    """The weights that one head makes its output with."""
    if not isinstance(mixer, Weighs):
        raise Refused(f"{type(mixer).__name__} has no weights to draw; its influence can be drawn")
    with torch.no_grad():
        seen = mixer.weights(x)[0, head]
    return _map(seen, title=title, caption=caption, kind="weights", allowed=rule_of(mixer, x.shape[1]))


def influence(mixer: nn.Module, x: Vectors, *, title: str = "who moves whom", caption: str = "") -> Map:
    """‖∂(u·y_i) / ∂x_j‖ for a random direction u: which input moves which output, whatever the mixer says of itself."""
    moved = torch.stack(list(_gradients(mixer, x)))
    return _map(moved, title=title, caption=caption, kind="influence", allowed=rule_of(mixer, x.shape[1]))


def rule_of(mixer: nn.Module, n: int) -> Tensor | None:
    """Which of n tokens may look at which, for each head, as the one attention inside says."""
    core = _core(mixer)
    if core is None:
        return None
    run = Tokens.count(n)
    at = Pairs(run, run)
    allowed = core.visibility.given(at)(at)
    return allowed.broadcast_to(torch.broadcast_shapes(allowed.shape, (1, 1, n, n)))  # a reader's may say less


def reach(mixer: nn.Module) -> float:
    """How far back anybody may look."""
    core = _core(mixer)
    return inf if core is None else core.visibility.band.back


def _core(mixer: nn.Module) -> Attention | None:
    cores = [part for part in mixer.modules() if isinstance(part, Attention)]
    return cores[0] if len(cores) == 1 else None


def _gradients(mixer: nn.Module, x: Tensor) -> Iterator[Tensor]:
    x = x.detach().requires_grad_()
    y: Tensor = mixer(x)
    direction = torch.randn(y.shape[-1], dtype=y.dtype, generator=stream(0, "direction"))
    direction = direction / direction.norm()
    for i in range(y.shape[1]):
        if not y.requires_grad:
            yield torch.zeros(x.shape[1], dtype=x.dtype)
            continue
        (moved,) = torch.autograd.grad(y[0, i] @ direction, x, retain_graph=True, allow_unused=True)
        yield torch.zeros(x.shape[1], dtype=x.dtype) if moved is None else torch.linalg.vector_norm(moved[0], dim=-1)


def _map(values: Tensor, *, title: str, caption: str, kind: Kind, allowed: Tensor | None = None) -> Map:
    rows, columns = (tuple(str(place) for place in range(size)) for size in values.shape)
    finite = torch.isfinite(values)
    leaks: Sequence[Any] = ()
    if allowed is not None:
        own = torch.eye(*values.shape, dtype=torch.bool) if kind == "influence" else False  # its query is its own
        leaks = (finite & (values != 0) & ~(allowed.any(dim=1)[0] | own)).nonzero().tolist()
    return Map(
        title=title,
        kind=kind,
        caption=caption,
        rows=rows,
        columns=columns,
        values=tuple(
            tuple(value if known else None for value, known in zip(*row, strict=True))
            for row in zip(values.tolist(), finite.tolist(), strict=True)
        ),
        leaks=tuple((row, column) for row, column in leaks),
    )
