"""Is a number that is none found, and is rounding told from a bug?"""

import json

import jaxtyping
import pytest
import torch
from torch import nn

from attnlab import catalog
from attnlab.audits.probe import Broke, Held, Silent
from attnlab.audits.probes import half_precision, loud_scores, rounding
from attnlab.subjects.found import subject_of

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def unchecked():
    """Shapes are checked by the tests of the mechanisms; here the time goes into settings."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


PROBES = (loud_scores, half_precision, rounding)


class Attends(nn.Module):
    """One head; what inherits from it changes one line."""

    def __init__(self, dim=16):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def soft(self, scores):
        return scores.softmax(dim=-1)

    def scored(self, q, k):
        return q @ k.mT / q.shape[-1] ** 0.5

    def forward(self, x):
        return self.soft(self.scored(self.query(x), self.key(x))) @ self.value(x)


class NoMaximum(Attends):
    def soft(self, scores):
        return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


class Normed(NoMaximum):
    """No input makes these scores loud."""

    def forward(self, x):
        return super().forward(torch.layer_norm(x, x.shape[-1:]))


class Spread(Attends):
    """A root whose gradient at zero is endless: all tokens alike."""

    def forward(self, x):
        return super().forward(x) + (x - x.mean(dim=-1, keepdim=True)).square().sum(dim=-1, keepdim=True).sqrt()


class OverTokens(Attends):
    """A spread of one token is 0 / 0."""

    def forward(self, x):
        return super().forward((x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True))


class LateScale(Attends):
    """A product that is scaled only when it has overflowed."""

    def scored(self, q, k):
        return (50 * q) @ (50 * k).mT / 2500 / 4


class LowFloor(Attends):
    def soft(self, scores):
        hidden = torch.ones(scores.shape[-1], scores.shape[-1], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -1e9).softmax(dim=-1)


class Cancels(Attends):
    """A spread as the difference of two large numbers."""

    def forward(self, x):
        far = x + 1e3
        return super().forward(x) / (far.square().mean(dim=-1, keepdim=True) - far.mean(dim=-1, keepdim=True).square())


class InHalf(Attends):
    """A step at a lower precision than the rest, as autocast would take it."""

    def soft(self, scores):
        return scores.bfloat16().softmax(dim=-1).float() if scores.dtype is torch.float32 else scores.softmax(dim=-1)


def told(thing, probe, **more):
    outcome = probe.look(subject_of(thing, **more))
    if not isinstance(outcome, Silent):
        json.dumps(dict(outcome.evidence), allow_nan=False)
    return outcome


KNOWN_GOOD = {
    "by hand": Attends,
    "attention": "attention",
    "MultiheadAttention": nn.MultiheadAttention(16, 4, batch_first=True, dropout=0.1),
    "TransformerEncoderLayer": nn.TransformerEncoderLayer(16, 4, batch_first=True),
    "TransformerDecoderLayer": nn.TransformerDecoderLayer(16, 4, batch_first=True),
}


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.PROBE.code)
@pytest.mark.parametrize("promises", [("causal",), ()], ids=["causal", "plain"])
@pytest.mark.parametrize("name", KNOWN_GOOD)
def test_good_modules_stay_numbers(name, promises, probe):
    assert isinstance(told(KNOWN_GOOD[name], probe, promises=promises), Held)


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (NoMaximum, "output 0 is .* 5 tokens, float32, 30 times as loud"),
        (Normed, "query and key maps 100 times as loud"),
        (Spread, "the gradient at the input is NaN.*all zeros"),
        (OverTokens, "output 0 is NaN .1 tokens"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_is_no_number_is_found_where_it_first_is(thing, says):
    import re

    outcome = told(thing, loud_scores)
    assert isinstance(outcome, Broke)
    assert re.search(says.replace(" is .* 5", " is .*5"), outcome.sentence), outcome.sentence


def test_finite_is_what_every_module_is_taken_to_promise():
    assert loud_scores.PROBE.taken
    assert loud_scores.PROBE.promise == "finite"


@pytest.mark.parametrize(("thing", "says"), [(LateScale, "float16"), (LowFloor, "without overflow")])
def test_an_overflow_at_half_precision_is_found(thing, says):
    outcome = told(thing, half_precision)
    assert isinstance(outcome, Broke)
    assert says in outcome.sentence
    assert isinstance(told(thing, loud_scores), Held)


class InFloat(Attends):
    """It makes a constant of float32, which half precision refuses."""

    def forward(self, x):
        return super().forward(x) @ torch.eye(16, dtype=torch.float32 if x.dtype is not torch.float64 else x.dtype)


def test_what_does_not_run_at_half_precision_is_said_and_not_called_broken():
    assert isinstance(told(InFloat, half_precision), Silent)


@pytest.mark.parametrize("thing", [Cancels, InHalf], ids=str)
def test_lost_digits_are_a_bug(thing):
    outcome = told(thing, rounding)
    assert isinstance(outcome, Broke)
    assert outcome.evidence["float32"]["word"] == "bug"
    assert "float32" in outcome.sentence
    assert "bug" in outcome.sentence


def test_rounding_is_noise_and_stands_beside_its_conditioning_and_the_naive_form():
    outcome = told("cosine", rounding)
    assert isinstance(outcome, Held)
    assert {one["word"] for one in outcome.evidence.values()} == {"noise"}
    assert outcome.evidence["float32"]["naive"] > 0
    assert outcome.evidence["float32"]["error"] < 1e-6 < outcome.evidence["bfloat16"]["error"]


@pytest.mark.parametrize("entry", catalog.CATALOG, ids=[entry.name for entry in catalog.CATALOG])
def test_the_catalog_stays_a_number_except_where_it_is_known_not_to(entry):
    found = loud_scores.PROBE(subject_of(entry.name, promises=("finite",)))
    assert (found.status == "broken") == ("finite" in entry.breaks), found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("probe", [half_precision, rounding], ids=["half", "rounding"])
@pytest.mark.parametrize("entry", catalog.CATALOG, ids=[entry.name for entry in catalog.CATALOG])
def test_the_catalog_stays_a_number_at_low_precision(entry, probe):
    found = probe.PROBE(subject_of(entry.name, promises=("finite",)))
    assert (found.status == "broken") <= ("finite" in entry.breaks), found.sentence
