"""Is the fast arithmetic as good as the formula written naively, in float32 and in bfloat16?

Both are asked with the same rounded parameters and inputs and held against the slow twin in float64. A rounding error
is a draw of chance, so what is compared is its root mean square over outputs, seeds and kinds of input. Where the
formula is badly conditioned for a few inputs these rule the mean, and more seeds are needed to know the ratio: as long
as it is not clearly below the bound, seeds are added, up to a number that is.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from attnlab.catalog import CATALOG, Entry
from attnlab.mechanisms.tokens import Pairs
from attnlab.subjects.compose import Size
from attnlab.subjects.twin import twin

BOUND = 2.0
SIZE = Size(d_model=8, n_heads=2, length=3)
SEEDS = (8, 64)

precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Shapes are checked by the tests of values; here the time goes into seeds."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def errors(variant: dict[str, str], member: nn.Module, seed: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What the member and the naive formula are off by; every other seed is off center, where differences cancel."""
    member = member.to(dtype)
    slow = twin(variant, SIZE, member)
    draw = torch.Generator().manual_seed(seed)
    x = (torch.randn(2, 3, SIZE.d_model, generator=draw) + 3 * (seed % 2)).to(dtype)
    with torch.no_grad():
        true = slow(x.double()).output
        return slow(x).output.double() - true, member(x).double() - true


def ratio(variant: dict[str, str], build: Callable[[int], nn.Module], dtype: torch.dtype) -> float:
    """The member's error against that of the formula written naively."""
    naive, fast = 0.0, 0.0
    found = torch.inf
    for start, stop in zip((0, *SEEDS), SEEDS, strict=False):
        for seed in range(start, stop):
            one, other = errors(variant, build(seed), seed, dtype)
            naive, fast = naive + float(one.square().mean()), fast + float(other.square().mean())
        found = (fast / naive) ** 0.5
        if found < BOUND**0.5:
            break
    return found


@precisions
@pytest.mark.parametrize("entry", CATALOG, ids=[entry.name for entry in CATALOG])
def test_the_error_is_at_most_twice_that_of_the_naive_formula(
    entry: Entry, dtype: torch.dtype, built: Callable[..., nn.Module]
) -> None:
    variant = {entry.question: entry.name}
    assert ratio(variant, lambda seed: built(variant, SIZE, seed=seed), dtype) <= BOUND


def expanded(q: Tensor, k: Tensor, at: Pairs) -> Tensor:
    """-|q - k|² / √d as -|q|² + 2 q·k - |k|², which cancels off center."""
    squares = q.square().sum(-1)[..., :, None] + k.square().sum(-1)[..., None, :]
    return (2 * q @ k.mT - squares) / q.shape[-1] ** 0.5


def in_half(scores: Tensor, allowed: Tensor) -> Tensor:
    """A softmax in float16, whatever the scores are in."""
    return scores.masked_fill(~allowed, -6e4).half().softmax(-1).to(scores.dtype)


def one_by_one(q: Tensor, k: Tensor, at: Pairs) -> Tensor:
    """A product whose every partial sum is rounded to eight places of two, as no scale of √d demands."""
    total = torch.zeros_like(q[..., :, None, 0] * k[..., None, :, 0])
    for d in range(q.shape[-1]):
        for _ in range(16):
            total = total + q[..., :, None, d] * k[..., None, :, d] / 16
    return total / q.shape[-1] ** 0.5


PLANTS: dict[str, tuple[dict[str, str], dict[str, Any], torch.dtype]] = {
    "a square that cancels": ({"score": "negative-squared-distance"}, {"score": expanded}, torch.float32),
    "a softmax in half": ({}, {"normalizer": in_half}, torch.float32),
    "a long sum in bfloat16": ({}, {"score": one_by_one}, torch.bfloat16),
}


@pytest.mark.parametrize("planted", PLANTS)
def test_worse_arithmetic_is_caught(planted: str, built: Callable[..., nn.Module]) -> None:
    variant, worse, dtype = PLANTS[planted]
    assert ratio(variant, lambda seed: built(worse, SIZE, seed=seed), dtype) > BOUND
