"""Is the fast arithmetic as good as the formula written naively, in float32 and in bfloat16?

Both are asked with the same rounded parameters and inputs and held against the slow twin in float64. A rounding error
is a draw of chance, so what is compared is its root mean square over outputs, seeds and inputs. Where a formula is
badly conditioned for a few inputs, these rule the mean and more seeds are needed to know the ratio: one that is not
clearly below the bound is drawn again from more of them.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from attnlab.catalog import CATALOG, Entry
from attnlab.mechanisms.parts import Position
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.subjects.compose import Size
from attnlab.subjects.twin import twin

BOUND = 2.0
SEEDS = (8, 64)
SIZE = Size(d_model=8, n_heads=2, length=3)
Build = Callable[..., nn.Module]

precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


class Where(NamedTuple):
    """How far from zero every other input lies, and where its tokens stand."""

    offset: float = 3.0
    positions: tuple[int, int, int] = (0, 1, 2)


NEAR, FAR_OFF_CENTER, FAR_ALONG = Where(), Where(offset=30.0), Where(positions=(0, 3000, 7999))


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Shapes are checked by the tests of values; here the time goes into seeds."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def squares(
    variant: dict[str, str], member: nn.Module, seed: int, dtype: torch.dtype, where: Where
) -> tuple[float, float]:
    """The mean square that the naive formula and the member are off by."""
    slow, member = twin(variant, SIZE, member), member.to(dtype)
    x = torch.randn(2, 3, SIZE.d_model, generator=torch.Generator().manual_seed(seed)) + where.offset * (seed % 2)
    x, positions = x.to(dtype), torch.tensor([where.positions])
    with torch.no_grad():
        naive, fast = slow(x, positions=positions).output, member(x, tokens=Tokens.place(positions))
        true = slow(x.double(), positions=positions).output
    return tuple(float((one.double() - true).square().mean()) for one in (naive, fast))


def ratio(variant: dict[str, str], dtype: torch.dtype, build: Build, where: Where = NEAR, **planted: Any) -> float:
    """The member's error against that of the formula written naively."""
    for seeds in SEEDS:
        drawn = [
            squares(variant, build(variant | planted, SIZE, seed=seed), seed, dtype, where) for seed in range(seeds)
        ]
        naive, fast = (sum(column) for column in zip(*drawn, strict=True))
        found = (fast / naive) ** 0.5
        if found < BOUND**0.5:
            break
    return found


@precisions
@pytest.mark.parametrize("entry", CATALOG, ids=[entry.name for entry in CATALOG])
def test_the_error_is_at_most_twice_that_of_the_naive_formula(entry: Entry, dtype: torch.dtype, built: Build) -> None:
    assert ratio({entry.question: entry.name}, dtype, built) <= BOUND


@precisions
@pytest.mark.parametrize("score", ["negative-squared-distance", "gaussian"])
def test_a_distance_far_from_the_center_is_as_good(score: str, dtype: torch.dtype, built: Build) -> None:
    assert ratio({"score": score, "projection": "shared-qk"}, dtype, built, FAR_OFF_CENTER) <= BOUND


@precisions
@pytest.mark.parametrize("position", ["rotary", "sinusoidal", "sinusoidal-source", "alibi", "t5"])
def test_a_position_far_along_is_as_good(position: str, dtype: torch.dtype, built: Build) -> None:
    assert ratio({"position": position}, dtype, built, FAR_ALONG) <= BOUND


def expanded(q: Tensor, k: Tensor, at: Pairs) -> Tensor:
    """-|q - k|² / √d as (2 q·k - |q|² - |k|²) / √d, which cancels off center."""
    squares = q.square().sum(-1)[..., :, None] + k.square().sum(-1)[..., None, :]
    return (2 * q @ k.mT - squares) / q.shape[-1] ** 0.5


def in_small_steps(q: Tensor, k: Tensor, at: Pairs) -> Tensor:
    """q·k / √d, every feature added in sixteenths, each sum rounded."""
    total = torch.zeros_like(q @ k.mT)
    for d in range(q.shape[-1]):
        for _ in range(16):
            total = total + q[..., :, None, d] * k[..., None, :, d] / 16
    return total / q.shape[-1] ** 0.5


def in_half(scores: Tensor, allowed: Tensor) -> Tensor:
    """A softmax in float16, whatever the scores are in."""
    return scores.masked_fill(~allowed, -6e4).half().softmax(-1).to(scores.dtype)


class RoundedAngles(Position):
    """Rotary with angles in the type of what it turns."""

    def turn(self, t: Tensor, tokens: Tokens) -> Tensor:
        even, odd = t[..., 0::2], t[..., 1::2]
        speeds = 10000.0 ** (-torch.arange(0, t.shape[-1], 2) / t.shape[-1])
        angle = (tokens.position[:, None, :, None].to(t.dtype) * speeds.to(t.dtype)).expand_as(even)
        turned = even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()
        return torch.stack(turned, dim=-1).flatten(-2)


DISTANCE = {"score": "negative-squared-distance", "projection": "shared-qk"}
PLANTS: dict[str, tuple[dict[str, str], torch.dtype, Where, dict[str, Any]]] = {
    "a square that cancels": (DISTANCE, torch.float32, FAR_OFF_CENTER, {"score": expanded}),
    "a softmax in half": ({}, torch.float32, NEAR, {"normalizer": in_half}),
    "a sum in small steps": ({}, torch.bfloat16, NEAR, {"score": in_small_steps}),
    "rounded angles": ({"position": "rotary"}, torch.bfloat16, FAR_ALONG, {"position": RoundedAngles()}),
}


@pytest.mark.parametrize("planted", PLANTS)
def test_worse_arithmetic_is_caught(planted: str, built: Build) -> None:
    variant, dtype, where, worse = PLANTS[planted]
    assert ratio(variant, dtype, built, where, **worse) > BOUND
