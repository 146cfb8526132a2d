"""Is it told apart what a module makes of the order of its tokens?"""

import json

import pytest
import torch
from torch import nn

from attnlab import catalog
from attnlab.audits.probe import Broke, Held, Silent
from attnlab.audits.probes import favors_near, hears_last, order_aware, order_equivariant
from attnlab.subjects.found import subject_of


class Attends(nn.Module):
    """Attention of one head that looks both ways; what inherits from it adds a bias or a mask."""

    def __init__(self, dim):
        super().__init__()
        self.project = nn.Linear(dim, 3 * dim)

    def bias(self, i, j):
        return 0.0 * (i - j)

    def weighed(self, scores):
        return scores.softmax(dim=-1)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, dim=-1)
        places = torch.arange(x.shape[1])
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.bias(places[:, None], places[None])
        return self.weighed(scores) @ v


class Shows(Attends):
    """The same, with its weights."""

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, dim=-1)
        places = torch.arange(x.shape[1])
        weights = self.weighed(q @ k.mT + self.bias(places[:, None], places[None]))
        return weights @ v, weights


def biased(home, bias, *, behind=False, last=None):
    """The same attention with another bias, or with a mask."""

    class Biased(home):
        def bias(self, i, j):
            scores = bias(i, j)
            scores = scores.masked_fill(i < j, -torch.inf) if behind or last else scores
            return scores.masked_fill(i - j >= last, -torch.inf) if last else scores

    return Biased


def flat(i, j):
    return 0.0 * (i - j)


def windowed(n):
    return biased(Attends, flat, last=n)


class Relu(Attends):
    """Many of its weights are zero by chance."""

    def bias(self, i, j):
        return torch.zeros(i.shape[0], j.shape[1]).masked_fill((i < j) | (i - j >= 3), -torch.inf)

    def weighed(self, scores):
        return scores.relu()


class Reversed(nn.Module):
    """It takes tokens for features in a reshape."""

    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return self.out(x.mT.reshape(x.shape))


def looked(probe, what, **more):
    outcome = probe.look(subject_of(what, **more))
    if not isinstance(outcome, Silent):
        json.dumps(outcome.evidence, allow_nan=False)
    return outcome


def test_without_positions_the_order_goes_through():
    assert isinstance(looked(order_equivariant, Attends), Held)
    module = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    assert isinstance(looked(order_equivariant, module), Held)


@pytest.mark.parametrize("bad", [Reversed, biased(Attends, flat, behind=True)], ids=["a reshape", "a mask"])
def test_what_mixes_places_is_found(bad):
    broke = looked(order_equivariant, bad)
    assert broke.evidence["setting"]["length"] == 2
    assert sorted(broke.evidence["order"]) == [0, 1]


def test_an_order_that_was_not_claimed_to_go_through_is_no_fault():
    finding = order_equivariant.PROBE(subject_of("causal"))
    assert finding.status == "unclaimed"
    assert finding.sentence.endswith("as it should be wherever a mask or positions are meant")


def test_positions_are_heard_or_missed():
    assert isinstance(looked(order_aware, biased(Attends, lambda i, j: -0.1 * (i - j).abs())), Held)
    broke = looked(order_aware, Attends)
    assert isinstance(broke, Broke)
    assert broke.evidence["moved"] < 1e-9


@pytest.mark.parametrize("home", [Attends, Shows], ids=["by gradient", "by weights"])
@pytest.mark.parametrize(
    ("bias", "favors", "says"),
    [
        (lambda i, j: -0.3 * (i - j).abs(), "near", "the farther it is"),
        (lambda i, j: 0.3 * (i - j).abs(), "far", "the bias has the wrong sign"),
        (lambda i, j: -0.3 * j + 0 * i, "left edge", "a function of the key's index"),
        (lambda i, j: 0.3 * j + 0 * i, "right edge", "a function of the key's index"),
        (flat, "flat", "no key is favored"),
        (lambda i, j: 0.3 * ((i - j) % 3), "mixed", "neither falls nor rises"),
    ],
    ids=["alibi", "wrong sign", "key index", "key index, other sign", "none", "mixed"],
)
def test_which_way_a_bias_leans_is_told_apart(home, bias, favors, says):
    outcome = looked(favors_near, biased(home, bias), promises=("favors-near",))
    assert isinstance(outcome, Held if favors == "near" else Broke)
    assert outcome.evidence["favors"] == favors
    assert outcome.evidence["by"] == ("weights" if home is Shows else "gradient")
    assert says in outcome.sentence


def test_behind_a_causal_mask_a_wrong_sign_and_the_left_edge_are_one():
    for bias in (lambda i, j: 0.3 * (i - j), lambda i, j: -0.3 * j + 0 * i):
        broke = looked(favors_near, biased(Shows, bias, behind=True), promises=("favors-near",))
        assert broke.evidence["favors"] == "far or left edge"
        assert "wrong sign, or is a function of the key's index" in broke.sentence
    assert isinstance(looked(favors_near, biased(Shows, lambda i, j: -0.3 * (i - j), behind=True)), Held)


def test_mass_is_reported_by_distance_and_by_key():
    near = looked(favors_near, biased(Shows, lambda i, j: -0.3 * (i - j).abs())).evidence
    left = looked(favors_near, biased(Shows, lambda i, j: -0.3 * j + 0 * i)).evidence
    assert near["mean_distance"] < near["even_distance"] < left["mean_distance"]
    assert near["mass_by_distance"][0] > near["mass_by_distance"][5]
    assert left["mass_by_key"] == sorted(left["mass_by_key"], reverse=True)
    assert abs(sum(near["mass_by_distance"]) - 1) < 1e-9
    assert abs(sum(left["mass_by_key"]) - 1) < 1e-9


def test_a_diagnosis_is_not_made_where_nothing_was_claimed():
    finding = favors_near.PROBE(subject_of(biased(Shows, lambda i, j: 0.3 * (i - j).abs())))
    assert finding.status == "unclaimed"
    assert "wrong sign" not in finding.sentence


def test_a_window_favors_nothing_within():
    assert looked(favors_near, windowed(3)).evidence["favors"] == "flat"


@pytest.mark.parametrize("n", [1, 3, 20, 70])
def test_a_window_of_n_hears_exactly_n(n):
    assert isinstance(looked(hears_last, windowed(n), promises=(f"hears-last:{n}",)), Held)


@pytest.mark.parametrize(("really", "what"), [(4, "hears"), (2, "does not hear")])
def test_a_window_off_by_one_is_found_at_its_edge(really, what):
    broke = looked(hears_last, windowed(really), promises=("hears-last:3",))
    assert broke.evidence["measured"] == really
    assert f" {what} token " in broke.sentence
    assert f"it hears exactly its last {really}" in broke.sentence
    assert abs(broke.evidence["output"] - broke.evidence["token"]) == min(really, 3)


def test_a_window_that_is_off_far_back_is_found_too():
    broke = looked(hears_last, windowed(71), promises=("hears-last:70",))
    assert (broke.evidence["output"], broke.evidence["token"]) == (70, 0)


def test_a_weight_that_is_zero_by_chance_is_not_deafness():
    assert isinstance(looked(hears_last, Relu, promises=("hears-last:3",)), Held)


def test_a_window_that_looks_ahead_is_no_window():
    broke = looked(hears_last, Attends, promises=("hears-last:3",))
    assert "ahead" in broke.sentence


def test_a_reach_that_nobody_claimed_is_stated():
    finding = hears_last.PROBE(subject_of(windowed(5)))
    assert finding.status == "unclaimed"
    assert finding.evidence["measured"] == 5
    assert "exactly its last 5 tokens" in finding.sentence
    assert isinstance(looked(hears_last, Attends), Silent)


def test_a_reach_that_no_input_can_show_is_not_claimed_to_be_seen():
    class Few(windowed(8)):
        def forward(self, x):
            if x.shape[1] > 6:
                raise ValueError("six at most")
            return super().forward(x)

    assert isinstance(looked(hears_last, windowed(3), promises=("hears-last:4096",)), Silent)
    few = looked(hears_last, Few, promises=("hears-last:8",))
    assert few.reason == "it takes no more than 5 tokens, too few to show a reach of 8"


def test_a_reach_is_a_number():
    with pytest.raises(Exception, match="hears-last:4"):
        looked(hears_last, windowed(3), promises=("hears-last:few",))


PROMISED = {
    "favors-near": favors_near,
    "order-equivariant": order_equivariant,
    "hears-last:{last}": hears_last,
}


@pytest.mark.parametrize("promise", PROMISED)
def test_every_entry_that_promises_it_keeps_it(promise):
    entries = [entry for entry in catalog.CATALOG if promise in entry.promises]
    assert entries
    for entry in entries:
        assert PROMISED[promise].PROBE(subject_of(entry.name)).status == "kept", entry.name


def test_every_entry_with_positions_is_heard_to_have_them():
    for entry in catalog.CATALOG:
        if "order-aware" in entry.promises:
            assert order_aware.PROBE(subject_of(entry.name)).status == "kept", entry.name
