"""Cost: what is counted, how it grows, what a step keeps, how long an input may be."""

import pytest
import torch
from torch import nn
from torch.nn.functional import elu, scaled_dot_product_attention

from attnlab.audits.probes.cache import PROBE as CACHE
from attnlab.audits.probes.growth import PROBE as GROWTH
from attnlab.audits.probes.longest import PROBE as LONGEST
from attnlab.audits.probes.size import PROBE as SIZE
from attnlab.catalog import CATALOG
from attnlab.subjects.found import subject_of


def found(probe, what, *promises, **more):
    return probe(subject_of(what, promises=promises, **more))


class Plain(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        return scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True)


class Linear(Plain):
    def forward(self, x):
        q, k = elu(self.query(x)) + 1, elu(self.key(x)) + 1
        return q @ (k.mT @ self.value(x)) / (q @ k.sum(dim=1, keepdim=True).mT)


# Of each kind one; the others on request.
SOME = (
    *("attention", "shared-qk", "learned", "t5", "synthesizer", "window"),
    *("sink", "aft-full", "linear", "fastformer", "gru"),
)
ENTRIES = [pytest.param(one, marks=() if one.name in SOME else pytest.mark.slow, id=one.name) for one in CATALOG]


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_cost_of_the_catalog_grows_as_promised(entry):
    finding = found(GROWTH, entry.name)
    promised = next((float(promise[-1]) for promise in entry.promises if promise.startswith("cost:")), None)
    if promised is None:
        assert finding.status in ("unclaimed", "not-applicable")
        return
    if entry.name in ("aft-full", "aft-local"):  # their tables are too short to see past their blocks
        assert finding.status == "not-applicable"
        return
    assert finding.status == "kept", finding.sentence
    assert finding.evidence["exponent"] == pytest.approx(promised, abs=0.15)


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_lengths_of_the_catalog_are_as_promised(entry):
    finding = found(LONGEST, entry.name)
    claimed = "any-length" in entry.promises
    assert finding.status == ("kept" if claimed else "unclaimed"), finding.sentence


def test_a_product_in_the_right_order_is_linear_and_in_the_wrong_one_is_not():
    assert found(GROWTH, Linear, "cost:n^1").status == "kept"
    finding = found(GROWTH, Plain, "cost:n^1")
    assert finding.status == "broken"
    assert finding.evidence["exponent"] == pytest.approx(2.0)
    assert found(GROWTH, Plain, "cost:n^2").status == "kept"
    assert found(GROWTH, Linear, "cost:n^2").status == "kept"


def test_time_is_measured_with_an_interval():
    evidence = found(GROWTH, Plain).evidence
    low, high = evidence["time_interval"]
    assert low <= evidence["time_exponent"] <= high
    assert evidence["memory_exponent"] == pytest.approx(2.0, abs=0.1)


def test_a_cost_that_nobody_can_measure_is_refused_in_a_sentence():
    from attnlab.errors import LabError

    with pytest.raises(LabError, match=r"write cost:n\^1"):
        found(GROWTH, Plain, "cost:cheap")


def test_parameters_and_operations_are_counted():
    evidence = found(SIZE, Plain).evidence
    assert evidence["parameters"] == 3 * (16 * 16 + 16)
    assert evidence["products"] == 3 * 2 * 16 * 16 * 16 + 2 * 2 * 16 * 16 * 16


def test_what_a_step_keeps_is_counted_per_token():
    finding = found(CACHE, "attention")
    assert finding.evidence["bytes_per_token"] == 2 * 16 * 4
    assert found(CACHE, "multi-query").evidence["bytes_per_token"] == 2 * 4 * 4
    assert found(CACHE, "gru").evidence["bytes_per_token"] == 0
    assert found(CACHE, "window(last=3)").evidence["bytes_per_token"] == 0
    assert found(CACHE, Plain).status == "not-applicable"


class WithPast(Plain):
    def forward(self, x, past_key_values=None, use_cache=False):
        k, v = self.key(x), self.value(x)
        if past_key_values is not None:
            k, v = (torch.cat(pair, dim=1) for pair in zip(past_key_values, (k, v), strict=True))
        y = scaled_dot_product_attention(self.query(x), k, v)
        return (y, (k, v)) if use_cache else y


def test_keys_and_values_that_are_handed_back_are_a_cache_too():
    assert found(CACHE, WithPast).evidence["bytes_per_token"] == 2 * 16 * 4


class UpTo(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.positions, self.out = nn.Embedding(37, dim), nn.Linear(dim, dim)

    def forward(self, x):
        return self.out(x + self.positions(torch.arange(x.shape[1])))


def test_the_longest_input_is_found_to_the_token():
    finding = found(LONGEST, UpTo, "any-length")
    assert finding.status == "broken"
    assert finding.evidence["longest"] == 37
    assert "37 tokens and no more: IndexError" in finding.sentence


class InBlocks(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        if x.shape[1] % 4:
            raise ValueError(f"{x.shape[1]} tokens are no whole number of blocks of 4")
        return self.out(x.unflatten(1, (-1, 4)).cumsum(dim=2)).flatten(1, 2)


def test_lengths_that_fill_no_block_are_named():
    finding = found(LONGEST, InBlocks, "any-length")
    assert finding.status == "broken"
    assert "no 1, 2, 3, 5, 7, 15 tokens: ValueError: 1 tokens are no whole number" in finding.sentence
    assert found(GROWTH, InBlocks).status == "unclaimed"


def test_a_length_at_which_it_is_no_number_counts_as_refused():
    class Explodes(Plain):
        def forward(self, x):
            y = super().forward(x)
            return y / (40 - x.shape[1]) if x.shape[1] != 32 else y * torch.inf

    finding = found(LONGEST, Explodes, "any-length")
    assert finding.status == "broken"
    assert "not finite" in finding.sentence
