"""Learning: is every parameter connected, every gradient a derivative, is every answer the same twice?"""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from attnlab.audits.probes.connected import PROBE as CONNECTED
from attnlab.audits.probes.deterministic import PROBE as DETERMINISTIC
from attnlab.audits.probes.gradients import PROBE as GRADIENTS
from attnlab.audits.probes.input_untouched import PROBE as INPUT_UNTOUCHED
from attnlab.audits.probes.scale import PROBE as SCALE
from attnlab.catalog import CATALOG
from attnlab.subjects.found import subject_of

TAKEN = ("deterministic", "leaves-input", "trainable")
PROBES = (CONNECTED, GRADIENTS, DETERMINISTIC, INPUT_UNTOUCHED)


def found(probe, what, **more):
    return probe(subject_of(what, promises=TAKEN, **more))


class Plain(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        return scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), is_causal=True)


# Of each kind one; the others on request.
SOME = (
    *("attention", "shared-qk", "learned", "t5", "synthesizer", "window"),
    *("sink", "shuffle", "talking-heads", "aft-full", "latent", "gru"),
)
ENTRIES = [pytest.param(one, marks=() if one.name in SOME else pytest.mark.slow, id=one.name) for one in CATALOG]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.code)
def test_the_catalog_keeps_what_every_module_is_taken_to_promise(entry, probe):
    finding = found(probe, entry.name)
    expected = "broken" if probe.promise in entry.breaks else "kept"
    assert finding.status == expected, finding.sentence


@pytest.mark.parametrize("what", [Plain, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.code)
def test_what_is_right_is_left_in_peace(what, probe):
    arguments = {} if what is Plain or what is nn.MultiheadAttention else {"batch_first": True, "dim_feedforward": 20}
    finding = found(probe, what, arguments=arguments)
    assert finding.status == "kept", finding.sentence


def test_a_bias_of_keys_is_stated_and_not_called_broken():
    finding = found(CONNECTED, Plain)
    assert finding.status == "kept"
    assert "key.bias adds the same to every score of a row" in finding.sentence
    assert finding.evidence["stated"] == {"key.bias": "shift"}


class BeforeNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.shift, self.out = nn.Parameter(torch.zeros(1)), nn.Linear(dim, dim)

    def forward(self, x):
        return nn.functional.layer_norm(self.out(x) + self.shift, x.shape[-1:])


def test_what_a_norm_cancels_is_stated_and_not_called_a_key_bias():
    finding = found(CONNECTED, BeforeNorm)
    assert finding.status == "kept"
    assert finding.evidence["stated"] == {"shift": "cancelled"}
    assert "cancelled by what follows it" in finding.sentence


class Table(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(200, dim))
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return self.out(x + self.positions[: x.shape[1]])


def test_unused_rows_of_a_table_are_stated():
    finding = found(CONNECTED, Table)
    assert finding.status == "kept"
    assert "152 of the 200 rows of positions were not used" in finding.sentence


class GatedByZero(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.out, self.gate = nn.Linear(dim, dim), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x + self.gate * self.out(x)


def test_a_gate_that_begins_at_zero_hides_nothing():
    finding = found(CONNECTED, GatedByZero)
    assert (finding.status, finding.evidence["stated"]) == ("kept", {})


class TimesZero(GatedByZero):
    def forward(self, x):
        return x * self.gate + 0 * self.out(x)


def test_a_layer_in_the_graph_that_counts_for_nothing_is_found():
    finding = found(CONNECTED, TimesZero)
    assert finding.status == "broken"
    assert finding.evidence["lost"] == ["out.weight", "out.bias"]


class OnlyInWeights(Plain):
    def forward(self, x):
        weights = (self.query(x) @ self.key(x).mT).softmax(dim=-1)
        return self.value(x), weights


def test_what_reaches_only_the_weights_shown_is_lost():
    finding = found(CONNECTED, OnlyInWeights)
    assert finding.status == "broken"
    assert "query.weight" in finding.evidence["lost"]


class WithPooler(Plain):
    def __init__(self, dim):
        super().__init__(dim)
        self.pooler = nn.Linear(dim, dim)

    def forward(self, x):
        y = super().forward(x)
        return y, self.pooler(y[:, 0]).tanh()


def test_a_pooler_beside_the_output_is_stated():
    finding = found(CONNECTED, WithPooler)
    assert finding.status == "kept"
    assert "pooler.weight, pooler.bias reaches only what is returned beside the output" in finding.sentence


class Frozen(Plain):
    def __init__(self, dim):
        super().__init__(dim)
        self.key.requires_grad_(False)


def test_what_is_frozen_is_stated():
    finding = found(CONNECTED, Frozen)
    assert finding.status == "kept"
    assert "key.weight, key.bias is frozen" in finding.sentence


class Hard(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.router, self.out = nn.Linear(dim, 2), nn.Linear(dim, 2 * dim)

    def forward(self, x):
        chosen = self.router(x).argmax(dim=-1, keepdim=True)
        return torch.where(chosen.bool(), *self.out(x).chunk(2, dim=-1))


def test_a_router_that_chooses_and_never_learns_is_found():
    finding = found(CONNECTED, Hard)
    assert finding.status == "broken"
    assert finding.evidence["cut"] == ["router.weight", "router.bias"]


class New(nn.Module):
    def forward(self, x):
        return nn.Linear(x.shape[-1], x.shape[-1], dtype=x.dtype)(x)


def test_a_layer_made_anew_in_each_call_belongs_to_nobody():
    assert found(CONNECTED, New).status == "not-applicable"
    assert found(DETERMINISTIC, New).status == "broken"


def test_nothing_is_asked_of_a_module_without_parameters():
    class Twice(nn.Module):
        def forward(self, x):
            return 2 * x

    assert found(CONNECTED, Twice).status == "not-applicable"
    assert found(GRADIENTS, Twice).status == "kept"


class InHalf(Plain):
    def forward(self, x):
        weights = (self.query(x) @ self.key(x).mT).float().softmax(dim=-1).to(x.dtype)
        return weights @ self.value(x)


def test_a_softmax_in_float32_is_rounding_and_no_wrong_gradient():
    assert found(GRADIENTS, InHalf).status == "kept"
    assert found(CONNECTED, InHalf).status == "kept"


class Rooted(Plain):
    def forward(self, x):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True).sqrt() + 1e-6)
        return super().forward(x)


def test_a_root_at_zero_is_found_on_blank_tokens():
    finding = found(GRADIENTS, Rooted)
    assert finding.status == "broken"
    assert "zero vectors" in finding.sentence


class InPlace(Plain):
    def forward(self, x):
        weights = (self.query(x) @ self.key(x).mT).softmax(dim=-1)
        y = weights @ self.value(x)
        weights += 1
        return y


def test_a_backward_pass_that_fails_is_a_break_and_no_error():
    finding = found(GRADIENTS, InPlace)
    assert finding.status == "broken"
    assert "backward pass fails" in finding.sentence


class OwnChance(Plain):
    def __init__(self, dim):
        super().__init__(dim)
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return super().forward(x) + torch.rand(1, generator=self.generator).to(x.dtype)


def test_chance_of_its_own_is_found_too():
    assert found(DETERMINISTIC, OwnChance).status == "broken"


class Counts(Plain):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls)


def test_a_count_of_calls_is_a_memory():
    assert found(DETERMINISTIC, Counts).status == "broken"
    finding = found(INPUT_UNTOUCHED, Counts)
    assert finding.status == "broken"
    assert "remembers" in finding.sentence


class GrowingTable(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)
        self.register_buffer("mask", torch.zeros(0, 0), persistent=False)

    def forward(self, x):
        n = x.shape[1]
        if len(self.mask) < n:
            self.mask = torch.ones(n, n, dtype=x.dtype).tril()
        return self.mask[:n, :n] @ self.out(x)


def test_a_table_that_grows_with_the_input_is_stated():
    finding = found(INPUT_UNTOUCHED, GrowingTable)
    assert finding.status == "kept"
    assert "mask is filled or grows" in finding.sentence


class OneLength(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(length, 16)), nn.Linear(16, 16)

    def forward(self, x):
        return self.out(x + self.table)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.code)
def test_a_module_of_one_length_is_asked_at_that_length(probe):
    assert found(probe, OneLength).status == "kept"


def test_gradients_of_what_remembers_are_not_compared():
    finding = found(GRADIENTS, Counts)
    assert finding.status == "not-applicable"


def test_a_parameter_that_a_call_changes_is_named():
    class Decays(Plain):
        def forward(self, x):
            self.key.weight.data.mul_(0.9)
            return super().forward(x)

    finding = found(INPUT_UNTOUCHED, Decays)
    assert finding.status == "broken"
    assert "parameter key.weight" in finding.sentence


def test_running_statistics_may_run_while_training():
    class Normed(Plain):
        def __init__(self, dim):
            super().__init__(dim)
            self.norm = nn.BatchNorm1d(dim)

        def forward(self, x):
            return super().forward(self.norm(x.mT).mT)

    assert found(INPUT_UNTOUCHED, Normed).status == "kept"
    assert found(DETERMINISTIC, Normed).status == "kept"


def test_the_scale_at_initialization_is_a_fact_that_nobody_promises():
    finding = found(SCALE, Plain)
    assert finding.status == "unclaimed"
    assert "times its input in size" in finding.sentence
    assert all(0 < one < 10 for one in finding.evidence["scale"])
