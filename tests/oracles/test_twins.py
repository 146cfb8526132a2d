"""Does every entry say what its slow twin says: the same values, the same weights, at every kind of input?"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from math import inf
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from einops import rearrange
from torch import Tensor, nn

from attnlab.catalog import CATALOG, NAMES, Entry
from attnlab.errors import LabError, Refused
from attnlab.mechanisms.parts import Position
from attnlab.mechanisms.positions import Buckets
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.oracles.positions import bucket
from attnlab.subjects.compose import Size, compose
from attnlab.subjects.twin import SlowAnswer, twin

TIGHT = 1e-12
LENGTH = 7

ENTRIES = [{entry.question: entry.name} for entry in CATALOG]
WRITTEN: list[dict[str, str]] = [
    *(
        {"visibility": rule}
        for rule in (
            "window(2)",
            "prefix(3)",
            "causal & window(last=2) | prefix(1)",
            "everything & window(last=2, ahead=1)",
            "everything & blockwise(size=2)",
            "everything & padding",
            "padding & documents",
            "documents | prefix(1)",
        )
    ),
    {"projection": "grouped(n_kv_heads=1)"},
    {"projection": "mlp-projection(on='kv', widen=2)"},
    {"projection": "sigmoid-projection(on='qv')"},
    {"score": "scaled-dot(terms=3)"},
    {"score": "cosine(temperature=0.5)"},
    {"score": "synthesizer(length=9)", "visibility": "everything"},
    {"position": "t5(buckets=8, furthest=6)"},
    {"position": "t5(buckets=8, furthest=6)", "visibility": "everything"},
    {"position": "relative", "visibility": "everything"},
    {"position": "alibi-symmetric", "visibility": "everything"},
    {"position": "deberta(reach=2)", "visibility": "everything"},
    {"position": "sinusoidal-scaled(scale=0.5)"},
    {"normalizer": "temperature(0.5)"},
    {"normalizer": "finite-floor(floor=-2.0)"},
    *({"normalizer": e.name, "visibility": "padding"} for e in CATALOG if e.question == "normalizer"),
    {"normalizer": "sink", "merge": "talking-heads", "position": "alibi", "score": "cosine"},
    {
        "projection": "shared-qk",
        "position": "rotary",
        "visibility": "window(last=3)",
        "normalizer": "sparsemax",
        "merge": "gated",
    },
    {"projection": "multi-query", "position": "learned", "score": "correlation", "merge": "shift"},
    {"mixer": "attention", "score": "dot", "position": "sinusoidal"},
    {"mixer": "aft-full", "visibility": "everything & documents"},
    {"mixer": "aft-local(last=2)", "visibility": "padding"},
    {"mixer": "aft-simple", "visibility": "padding"},
    {"mixer": "aft-simple", "visibility": "everything"},
    {"mixer": "fastformer", "visibility": "everything & padding"},
    {"mixer": "linear", "visibility": "padding"},
    {"mixer": "linear", "visibility": "everything & padding"},
    {"mixer": "differential(begin=0.3)", "position": "t5(buckets=8, furthest=6)"},
    {"mixer": "differential", "position": "rotary", "visibility": "padding"},
    {"mixer": "latent(share=2, rotary=2)", "visibility": "documents"},
    {"mixer": "gru", "position": "learned"},
]


ALL = {"five tokens", "one token", "loud tokens", "places", "marks"}
MANY = ALL - {"one token"}


class Situation(NamedTuple):
    """Vectors and what is known of them."""

    x: Tensor
    tokens: Tokens
    positions: Tensor | None = None


def situations(d_model: int) -> dict[str, Situation]:
    """Five tokens, one token, loud ones, places that restart and jump, padding (also in front) and documents."""
    draw = torch.Generator().manual_seed(5)

    def drawn(n: int) -> Tensor:
        return torch.randn(2, n, d_model, generator=draw, dtype=torch.float64)

    loud = drawn(5) * torch.tensor([1.0, 1.0, 30.0, 1.0, -100.0])[:, None]
    places = torch.tensor([[0, 1, 0, 1, 2], [3, 1, 0, 5, 6]])
    real = torch.tensor([[False, True, True, True, False], [True, True, False, True, True]])
    marked = Tokens.count(5, real=real, document=torch.tensor([[0, 0, 1, 1, 1]]))
    return {
        "five tokens": Situation(drawn(5), Tokens.count(5)),
        "one token": Situation(drawn(1), Tokens.count(1)),
        "loud tokens": Situation(loud, Tokens.count(5)),
        "places": Situation(drawn(5), Tokens.place(places), places),
        "marks": Situation(drawn(5), marked),
    }


def size_of(variant: dict[str, Any]) -> Size:
    """Heads of an odd width, except where features are taken in pairs."""
    in_pairs = any(str(value).startswith(("rotary", "differential")) for value in variant.values())
    return Size(d_model=8 if in_pairs else 10, n_heads=2, length=LENGTH)


def far(fast: Tensor, slow: Tensor) -> float:
    """The largest difference, relative to the largest number; infinite where only one of them is a number."""
    if fast.shape != slow.shape or bool((fast.isnan() != slow.isnan()).any()):
        return inf
    gap = (fast - slow).nan_to_num().abs().max()
    return float(gap / slow.nan_to_num().abs().max().clamp(min=1.0))


def furthest(mixer: Any, slow: Callable[..., SlowAnswer], d_model: int) -> dict[str, float]:
    """How far the mixer is from the twin, output and weights, in each situation."""
    found = {}
    with torch.no_grad():
        for name, (x, tokens, positions) in situations(d_model).items():
            says = slow(x, marks=tokens.marks, positions=positions)
            found[name] = far(mixer(x, tokens=tokens), says.output)
            if says.weights is not None:
                found[name] = max(found[name], far(mixer.weights(x, tokens=tokens), says.weights))
    return found


def spelled(variant: dict[str, Any]) -> str:
    return ", ".join(f"{question}={value}" for question, value in variant.items())


def test_no_two_entries_share_a_name() -> None:
    assert len(NAMES) == len(CATALOG)


@pytest.mark.parametrize("entry", CATALOG, ids=[entry.name for entry in CATALOG])
def test_an_entry_names_a_builder_and_a_twin_that_say_their_formula(entry: Entry) -> None:
    assert callable(entry.build())
    assert entry.formula
    assert inspect.getdoc(entry.judge())


@pytest.mark.parametrize("variant", ENTRIES + WRITTEN, ids=spelled)
def test_a_mechanism_equals_its_slow_twin(variant: dict[str, Any], built: Callable[..., nn.Module]) -> None:
    size = size_of(variant)
    mixer = built(variant, size).double()
    gaps = furthest(mixer, twin(variant, size, mixer), size.d_model)
    assert max(gaps.values()) < TIGHT, gaps


PARTS = ("projection", "position", "score", "visibility", "normalizer", "merge")


@pytest.mark.parametrize("seed", range(24))
def test_any_composition_equals_its_slow_twin(seed: int, built: Callable[..., nn.Module]) -> None:
    """As drawn, or drawn again where two parts contradict each other; moderate tokens, for a saturated part is constant
    and what is left of a constant without its mean is rounding."""
    draw, size = Random(seed), Size(d_model=16, n_heads=4, length=LENGTH)
    while True:
        asked = draw.sample(PARTS, draw.randint(3, 6))
        variant = {question: draw.choice([e.name for e in CATALOG if e.question == question]) for question in asked}
        with suppress(LabError):
            mixer = built(variant, size, seed=seed).double()
            break
    gaps = furthest(mixer, twin(variant, size, mixer), size.d_model)
    del gaps["loud tokens"]
    assert max(gaps.values()) < TIGHT, (variant, gaps)


def test_the_slow_attention_is_torchs_own(built: Callable[..., nn.Module]) -> None:
    size = Size(d_model=10, n_heads=2, length=LENGTH)
    mixer = built({}, size).double()
    x = situations(10)["five tokens"].x
    maps, x_t = mixer.projection.maps, x.transpose(0, 1)
    y, w = nn.functional.multi_head_attention_forward(
        x_t, x_t, x_t, 10, 2,
        in_proj_weight=torch.cat([maps[role].weight for role in ("query", "key", "value")]),
        in_proj_bias=torch.cat([maps[role].bias for role in ("query", "key", "value")]),
        bias_k=None, bias_v=None, add_zero_attn=False, dropout_p=0.0,
        out_proj_weight=mixer.out.weight, out_proj_bias=mixer.out.bias,
        attn_mask=torch.ones(5, 5).triu(1).bool(), average_attn_weights=False,
    )  # fmt: skip
    says = twin({}, size, mixer)(x)
    assert says.weights is not None
    assert max(far(y.detach().transpose(0, 1), says.output), far(w.detach(), says.weights)) < TIGHT


@pytest.mark.parametrize(
    "variant",
    [
        {"projection": "grouped"},
        {"projection": "grouped", "merge": "talking-heads"},
        {"position": "alibi"},
        {"merge": "shift"},
    ],
    ids=spelled,
)
def test_many_heads_equal_their_slow_twin(variant: dict[str, Any], built: Callable[..., nn.Module]) -> None:
    size = Size(d_model=12, n_heads=4, length=LENGTH)
    mixer = built(variant, size).double()
    gaps = furthest(mixer, twin(variant, size, mixer), size.d_model)
    assert max(gaps.values()) < TIGHT, gaps


def test_one_head_of_one_feature_equals_its_slow_twin(built: Callable[..., nn.Module]) -> None:
    size = Size(d_model=1, n_heads=1, length=LENGTH)
    for score in ("scaled-dot", "cosine", "correlation"):
        mixer = built({"score": score}, size).double()
        assert max(furthest(mixer, twin({"score": score}, size, mixer), 1).values()) < TIGHT


def test_a_default_that_sees_everything_is_the_twins_default_too(built: Callable[..., nn.Module]) -> None:
    size = Size(d_model=10, n_heads=2, length=LENGTH)
    mixer = built({"visibility": "window(last=2)"}, size, default_visibility="everything").double()
    everything = twin({"visibility": "window(last=2)"}, size, mixer, default_visibility="everything")
    assert max(furthest(mixer, everything, 10).values()) < TIGHT


def test_positions_that_a_model_adds_are_left_to_the_model() -> None:
    size = Size(d_model=10, n_heads=2, length=LENGTH)
    mixer = compose({"position": "learned"}, size).mixer.double()
    assert max(furthest(mixer, twin({"position": "learned"}, size, mixer), 10).values()) < TIGHT


@pytest.mark.parametrize(
    "variant", [{"normalizer": "sink"}, {"normalizer": "sink", "merge": "talking-heads"}], ids=spelled
)
def test_dropout_is_out_of_the_way_in_evaluation(variant: dict[str, Any]) -> None:
    size = Size(d_model=10, n_heads=2, length=LENGTH)
    mixer = compose(variant, size, dropout=0.5).mixer.double().eval()
    assert max(furthest(mixer, twin(variant, size, mixer), 10).values()) < TIGHT


def test_a_twin_has_the_parameters_of_the_moment(built: Callable[..., nn.Module]) -> None:
    size = Size(d_model=10, n_heads=2, length=LENGTH)
    mixer = built({"score": "gaussian"}, size).double()
    slow = twin({"score": "gaussian"}, size, mixer)
    with torch.no_grad():
        mixer.score.log_width.add_(1.0)
    assert max(furthest(mixer, slow, 10).values()) < TIGHT


@pytest.mark.parametrize(
    "variant",
    [{"score": lambda q, k, at: q @ k.mT}, {"mixer": "mine.py:Mine"}, {"visibility": lambda at: at.steps() > 0}],
    ids=["a function", "a file", "a rule"],
)
def test_what_is_not_of_the_catalog_has_no_twin(variant: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="slow twin"):
        twin(variant, Size(), nn.Identity())


def test_a_distance_falls_into_the_bucket_that_whole_numbers_say() -> None:
    for buckets, furthest_exact, both_ways in ((32, 128, False), (32, 128, True), (8, 6, False), (64, 1000, True)):
        fast = Buckets(n_heads=1, buckets=buckets, furthest=furthest_exact, both_ways=both_ways)
        distances = range(-1100, 1100)
        slow = [bucket(one, buckets, furthest_exact, both_ways=both_ways) for one in distances]
        assert fast.bucket(torch.tensor(distances)).tolist() == slow


class Slopes(Position):
    """ALiBi as `begin` and `distance` make it; rightly from 1, and by position."""

    def __init__(self, begin: int, distance: Callable[[Pairs], Tensor]) -> None:
        super().__init__()
        self.begin, self.distance = begin, distance

    def bias(self, q: Tensor, k: Tensor, at: Pairs) -> Tensor:
        h = torch.arange(q.shape[1], dtype=q.dtype) + self.begin
        return -(2.0 ** (-8 * h / len(h)))[None, :, None, None] * self.distance(at)


def shares(scores: Tensor, allowed: Tensor, dim: int = -1, hidden: float = -1e30) -> Tensor:
    """A softmax that no row is too blind for."""
    return scores.masked_fill(~allowed, hidden).softmax(dim)


def overflowing(scores: Tensor, allowed: Tensor) -> Tensor:
    e = scores.exp() * allowed
    return e / e.sum(-1, keepdim=True)


PLANTS: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "nothing": ({"position": "alibi"}, {"position": Slopes(1, Pairs.distance)}, set()),
    "no scale": ({"score": "scaled-dot"}, {"score": lambda q, k, at: q @ k.mT}, MANY),
    "one key ahead": ({"visibility": "causal"}, {"visibility": lambda at: at.steps() >= -1}, MANY),
    "one key too far back": (
        {"visibility": "window(last=2)"},
        {"visibility": lambda at: (at.steps() >= 0) & (at.steps() <= 2)},
        MANY,
    ),
    "padding not hidden": ({"visibility": "padding"}, {"visibility": "causal"}, {"marks"}),
    "blind rows that look": ({"visibility": "padding"}, {"visibility": "padding", "normalizer": shares}, {"marks"}),
    "shares of queries": ({}, {"normalizer": lambda scores, allowed: shares(scores, allowed, -2)}, MANY),
    "an exponential that overflows": ({}, {"normalizer": overflowing}, {"loud tokens"}),
    "slopes counted from zero": ({"position": "alibi"}, {"position": Slopes(0, Pairs.distance)}, MANY),
    "distance by order": ({"position": "alibi"}, {"position": Slopes(1, Pairs.steps)}, {"places"}),
    "transposed heads": ({}, {"merge": lambda heads, x, tokens: rearrange(heads, "b h i e -> b e i h")}, ALL),
}


@pytest.mark.parametrize("planted", PLANTS)
def test_a_planted_error_is_caught_where_it_shows(planted: str, built: Callable[..., nn.Module]) -> None:
    variant, wrong, where = PLANTS[planted]
    size = Size(d_model=10, n_heads=2, length=LENGTH)
    mixer = built(wrong, size).double()
    gaps = furthest(mixer, twin(variant, size, mixer), size.d_model)
    assert {name for name, gap in gaps.items() if gap > TIGHT} == where, gaps


def test_a_difference_in_the_twelfth_place_is_caught(built: Callable[..., nn.Module]) -> None:
    size = Size(d_model=10, n_heads=2, length=LENGTH)
    mixer = built({}, size).double()
    mixer.out.register_forward_hook(lambda module, inputs, y: y + 1e-11 * y.abs().max())
    gaps = furthest(mixer, twin({}, size, mixer), size.d_model)
    assert min(gaps.values()) > TIGHT
