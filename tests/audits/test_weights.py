"""Is a fault in the weights found where it is, and is nothing found in weights that are right?"""

import json
import re

import jaxtyping
import pytest
import torch
from torch import nn

from attnlab import catalog
from attnlab.audits.probe import Broke, Held, Silent
from attnlab.audits.probes import blind_rows, hidden_keys, nonnegative_weights, rows_sum_to_one, weights_used
from attnlab.audits.weights import as_weights, role_of, shown, weights_in
from attnlab.subjects.found import subject_of

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def unchecked():
    """Shapes are checked by the tests of the mechanisms; here the time goes into settings."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Attends(nn.Module):
    """Causal attention of four heads that shows its weights; what inherits from it changes one line."""

    promises = ("causal", "rows-sum-to-one", "nonnegative", "hidden-keys-weigh-nothing", "weights-are-used")

    def __init__(self, dim=16, heads=4, p=0.2):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.heads, self.drop = heads, nn.Dropout(p)

    def masked(self, scores, allowed):
        return scores.masked_fill(~allowed, -torch.inf)

    def soft(self, scores):
        return scores.softmax(dim=-1)

    def shows(self, weights, dropped):
        return dropped

    def finish(self, x, heads):
        return self.out(heads)

    def forward(self, x, key_padding_mask=None, need_weights=False):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if key_padding_mask is not None:
            allowed = allowed & ~key_padding_mask[:, None, None]
        weights = self.soft(self.masked(q @ k.mT / q.shape[-1] ** 0.5, allowed))
        dropped = self.drop(weights)
        y = self.finish(x, (dropped @ v).transpose(1, 2).flatten(2))
        return (y, self.shows(weights, dropped)) if need_weights else y


class AfterSoftmax(Attends):
    def masked(self, scores, allowed):
        self.allowed = allowed
        return scores

    def soft(self, scores):
        return scores.softmax(dim=-1) * self.allowed


class OverQueries(Attends):
    def soft(self, scores):
        return scores.softmax(dim=-2)


class Floor(Attends):
    floor = -1e4

    def masked(self, scores, allowed):
        return scores.masked_fill(~allowed, self.floor)


class LowerFloor(Floor):
    floor = -1e7


class HushedFloor(Floor):
    """A norm before the projections: no input makes these scores loud."""

    def forward(self, x, need_weights=False):
        return super().forward(torch.layer_norm(x, x.shape[-1:]), need_weights=need_weights)


class Times(Attends):
    def masked(self, scores, allowed):
        return scores * allowed


class Subtracts(Attends):
    def soft(self, scores):
        weights = scores.softmax(dim=-1)
        return 1.5 * weights - 0.5 * weights.flip(1)


class BeforeDropout(Attends):
    def shows(self, weights, dropped):
        return weights


class Transposed(Attends):
    def shows(self, weights, dropped):
        return dropped.mT


class Scores(Attends):
    def shows(self, weights, dropped):
        return weights.clamp(min=1e-300).log()


class Colder(Attends):
    def shows(self, weights, dropped):
        return weights.square() / weights.square().sum(dim=-1, keepdim=True)


class Mean(Attends):
    def shows(self, weights, dropped):
        return dropped.mean(dim=1)


class Gated(Attends):
    """Each head as loud as a gate lets it: the weights are right all the same."""

    def finish(self, x, heads):
        return self.out(0.9 * heads)


class Nameless(nn.Module):
    """The same without telling names, one head, and a switch that shows them transposed."""

    promises = ("weights-are-used",)

    def __init__(self, dim=16, turned=False):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(dim, dim) for _ in range(3))
        self.turned = turned

    def forward(self, x):
        weights = (self.a(x) @ self.b(x).mT / 4).softmax(dim=-1)
        return self.c(weights @ x), weights.mT if self.turned else weights


class Turned(Nameless):
    def __init__(self, dim=16):
        super().__init__(dim, turned=True)


class Bent(Nameless):
    """No sum of values: nothing can be said from outside."""

    def forward(self, x):
        y, weights = super().forward(x)
        return torch.tanh(y) + x, weights


class BentAndBlind(Bent):
    """It hears what it says weighs nothing."""

    def forward(self, x):
        y, weights = super().forward(x)
        return y, weights.tril()


class OtherWhenAsked(Attends):
    def forward(self, x, key_padding_mask=None, need_weights=False):
        y = super().forward(x, key_padding_mask, need_weights)
        return (1.01 * y[0], y[1]) if need_weights else y


def told(thing, probe, **more):
    outcome = probe.look(subject_of(thing, **more))
    if not isinstance(outcome, Silent):
        json.dumps(dict(outcome.evidence), allow_nan=False)
    return outcome


PROBES = (rows_sum_to_one, nonnegative_weights, hidden_keys, weights_used)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.PROBE.code)
@pytest.mark.parametrize("thing", [Attends, "attention", "alibi", "learned"], ids=str)
def test_weights_that_are_right_are_left_alone(thing, probe):
    assert isinstance(told(thing, probe), Held)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("promises", [(), ("causal",)])
def test_pytorchs_own_weights_are_right(batch_first, promises):
    module = nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=batch_first)
    for probe in PROBES:
        assert isinstance(told(module, probe, promises=promises), Held), probe.PROBE.code


FAULTS = [
    (AfterSoftmax, rows_sum_to_one, "row of weights sums to 0.*row 0"),
    (OverQueries, rows_sum_to_one, "row of weights sums to"),
    (Subtracts, nonnegative_weights, "a weight is -0.*key"),
    (Floor, hidden_keys, "key 1, which is hidden, weighs"),
    (LowerFloor, hidden_keys, "key 1, which is hidden, weighs"),
    (HushedFloor, hidden_keys, "query and key maps"),
    (Times, hidden_keys, "key 1, which is hidden, weighs.*row 0"),
    (BeforeDropout, weights_used, "in training mode"),
    (Transposed, weights_used, "transposed"),
    (Scores, weights_used, "scores are shown"),
    (Colder, weights_used, "not what the weights shown carry"),
    (Turned, weights_used, "transposed"),
    (BentAndBlind, weights_used, "output 0 hears token 1, although its weight is zero"),
    (OtherWhenAsked, weights_used, "another output"),
]


@pytest.mark.parametrize(("thing", "probe", "says"), FAULTS, ids=lambda one: getattr(one, "__name__", None))
def test_a_fault_in_the_weights_is_named(thing, probe, says):
    outcome = told(thing, probe)
    assert isinstance(outcome, Broke)
    assert re.search(says, outcome.sentence), outcome.sentence


def test_weights_without_names_around_them_are_recognized_by_what_they_carry():
    assert isinstance(told(Nameless, weights_used), Held)


def test_where_nothing_can_be_seen_nothing_is_said():
    assert isinstance(told(Bent, weights_used), Silent)


def test_a_mean_over_heads_is_held_against_what_the_output_hears():
    assert "hears exactly" in told(Mean, weights_used).sentence


def test_a_gate_behind_the_weights_does_not_make_them_wrong():
    assert not isinstance(told(Gated, weights_used), Broke)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.PROBE.code)
def test_what_shows_no_weights_is_not_asked_for_them(probe):
    assert isinstance(told(nn.Linear(16, 16), probe), Silent)
    assert isinstance(told("gru", probe), Silent)


def test_nothing_hidden_is_nothing_to_look_at():
    assert isinstance(told(Nameless, hidden_keys), Silent)


def attends(q, k, v):
    allowed = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
    weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf).softmax(dim=-1)
    return weights @ v, weights


def attends_turned(q, k, v):
    y, weights = attends(q, k, v)
    return y, weights.mT


def test_a_function_of_q_k_and_v_shows_its_weights_beside_its_output():
    assert isinstance(told(attends, weights_used, promises=("causal",)), Held)
    assert isinstance(told(attends, hidden_keys, promises=("causal",)), Held)
    assert "transposed" in told(attends_turned, weights_used).sentence


def test_a_row_that_may_look_nowhere_is_broken_only_where_zeros_are_promised():
    ours = blind_rows.PROBE(subject_of("finite-floor"))
    assert (ours.status, ours.evidence["row"]) == ("broken", "uniform")
    theirs = subject_of(nn.MultiheadAttention(16, 4, batch_first=True), promises=("hidden-keys-weigh-nothing",))
    found = blind_rows.PROBE(theirs)
    assert (found.status, found.evidence["row"]) == ("unclaimed", "NaN")
    assert blind_rows.PROBE(subject_of(Floor)).evidence["row"] == "uniform"
    assert isinstance(told("padding", blind_rows), Held)
    assert isinstance(told(nn.Linear(16, 16), blind_rows), Silent)


QUICK = (rows_sum_to_one, hidden_keys)


@pytest.mark.parametrize("entry", catalog.CATALOG, ids=[entry.name for entry in catalog.CATALOG])
def test_the_catalog_keeps_and_breaks_what_it_says_of_its_weights(entry):
    subject = subject_of(entry.name)
    for probe in QUICK:
        found = probe.PROBE(subject)
        assert (found.status == "broken") == (found.promise in entry.breaks), found.sentence


@pytest.mark.slow
@pytest.mark.parametrize("entry", catalog.CATALOG, ids=[entry.name for entry in catalog.CATALOG])
def test_the_catalog_shows_the_weights_that_it_uses(entry):
    subject = subject_of(entry.name)
    for probe in (nonnegative_weights, blind_rows, weights_used):
        found = probe.PROBE(subject)
        assert (found.status == "broken") == (found.promise in entry.breaks), found.sentence


def test_weights_are_found_by_their_shape_among_what_is_returned():
    y, kept = torch.zeros(3, 5, 5), torch.zeros(3, 2, 5, 5)
    assert [
        t is kept for t in weights_in((y, {"attentions": (kept,), "cross_attentions": (kept + 1,)}), y, batch=3, n=5)
    ] == [True]
    assert as_weights(torch.zeros(2, 3, 5, 5), 3, 5).shape == (3, 2, 5, 5)
    assert as_weights(torch.zeros(6, 5, 5), 3, 5).shape == (3, 2, 5, 5)
    assert as_weights(torch.zeros(3, 5, 4), 3, 5) is None
    subject = subject_of("attention")
    module = subject.build()
    assert shown(subject, module, subject.give(5)).layers[0].shape == (2, 4, 5, 5)


def test_a_part_is_recognized_by_the_last_word_of_its_name():
    names = "q_proj self.query W_Q toQ lin_q wq linear_keys blocks.0.attn.c_attn in_proj_weight to_kv to_out.0 o_proj"
    roles = "query query query query query query key packed packed pair out out"
    assert [role_of(name) for name in names.split()] == roles.split()
    assert role_of("q_norm") is role_of("mlp.up") is role_of("dropout") is None
