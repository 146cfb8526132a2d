"""Is what differs from its twin, from PyTorch, from its fast path or from its own steps named, and by its place?"""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import jaxtyping
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnlab import catalog
from attnlab.audits.probe import Broke, Held, Silent
from attnlab.audits.probes import cached_step, compiled, fast_path, other_module, slow_twin, standard_attention
from attnlab.audits.staged import staged
from attnlab.mechanisms import scaffold
from attnlab.mechanisms.kernels import FUSED
from attnlab.subjects.found import subject_of

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def unchecked():
    """Shapes are checked by the tests of the mechanisms; here the time goes into settings."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Attends(nn.Module):
    """PyTorch's attention, causal, by hand; what inherits from it changes one line."""

    promises = ("causal", "standard-attention")

    def __init__(self, dim=16, heads=4):
        super().__init__()
        self.query, self.key, self.value, self.proj = (nn.Linear(dim, dim) for _ in range(4))
        self.n_heads = heads

    def project(self, x):
        return self.query(x), self.key(x), self.value(x)

    def split(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def scale(self, d_head):
        return d_head**-0.5

    def weights_of(self, scores, allowed):
        return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)

    def forward(self, x):
        q, k, v = (self.split(t) for t in self.project(x))
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        weights = self.weights_of(q @ k.mT * self.scale(q.shape[-1]), allowed)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class ByModel(Attends):
    def scale(self, d_head):
        return (d_head * self.n_heads) ** -0.5


class Unscaled(Attends):
    def scale(self, d_head):
        return 1.0


class Reshaped(Attends):
    def split(self, t):
        return t.reshape(t.shape[0], self.n_heads, t.shape[1], -1)


class OverQueries(Attends):
    def weights_of(self, scores, allowed):
        return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-2)


class OverHeads(Attends):
    def weights_of(self, scores, allowed):
        return scores.softmax(dim=1) * allowed


class Swapped(Attends):
    def project(self, x):
        q, k, v = super().project(x)
        return k, q, v


class OneForTwo(Attends):
    def project(self, x):
        q = self.query(x)
        return q, q, self.value(x)


class NoMask(Attends):
    def weights_of(self, scores, allowed):
        return scores.softmax(dim=-1)


class After(Attends):
    def weights_of(self, scores, allowed):
        return scores.softmax(dim=-1) * allowed


class TwoFaults(Reshaped):
    def scale(self, d_head):
        return 1.0


class Packed(nn.Module):
    """As in nanoGPT, with a residual around it and a number of heads that nothing tells."""

    promises = ("causal", "standard-attention")

    def __init__(self, dim=16):
        super().__init__()
        self.norm, self.c_attn, self.c_proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        parts = self.c_attn(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in parts)
        return x + self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def told(thing, probe, **more):
    outcome = probe.look(subject_of(thing, **more))
    if not isinstance(outcome, Silent):
        json.dumps(dict(outcome.evidence), allow_nan=False)
    return outcome


@pytest.mark.parametrize(
    "thing",
    [
        Attends,
        Packed,
        nn.MultiheadAttention(16, 4, batch_first=True),
        nn.MultiheadAttention(16, 2, batch_first=False),
        nn.MultiheadAttention(16, 2, batch_first=True, bias=False),
        nn.TransformerEncoderLayer(16, 4, batch_first=True),
        nn.TransformerDecoderLayer(16, 4, batch_first=True),
        "attention",
        "grouped",
    ],
    ids=lambda thing: thing if isinstance(thing, str) else type(thing).__name__,
)
@pytest.mark.parametrize("promises", [("causal",), ()], ids=["causal", "plain"])
def test_pytorchs_attention_is_recognized_however_it_is_written(thing, promises):
    assert isinstance(told(thing, standard_attention, promises=promises), Held)


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (ByModel, "divided by √16 .*not by √4"),
        (Unscaled, "not divided by √4"),
        (Reshaped, "split by a reshape without a transpose"),
        (OverQueries, "over the queries"),
        (OverHeads, "over the heads"),
        (Swapped, "exchanged"),
        (OneForTwo, "key projection is never used"),
        (NoMask, "causal mask is missing"),
        (After, "after the softmax"),
        (TwoFaults, "not divided.* and .*reshape|reshape.* and .*not divided"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_departure_from_pytorchs_attention_is_named(thing, says):
    outcome = told(thing, standard_attention)
    assert isinstance(outcome, Broke)
    assert re.search(says, outcome.sentence), outcome.sentence


def test_what_has_no_projections_is_not_compared_with_pytorch():
    assert isinstance(told("gru", standard_attention), Silent)
    assert isinstance(told(nn.Linear(16, 16), standard_attention), Silent)


def unscaled(q, k, v):
    return (q @ k.mT).softmax(dim=-1) @ v


def test_a_function_of_q_k_and_v_is_compared_directly():
    assert isinstance(told(F.scaled_dot_product_attention, standard_attention, kind="attention"), Held)
    assert "not divided" in told(unscaled, standard_attention).sentence


# slow twin


@pytest.mark.parametrize("entry", catalog.CATALOG, ids=[entry.name for entry in catalog.CATALOG])
def test_the_catalog_agrees_with_its_slow_twins(entry):
    assert isinstance(told(entry.name, slow_twin), Held)


def test_a_difference_in_the_twelfth_place_is_found():
    subject = subject_of("attention")

    def make(draw):
        module = subject.make(draw)
        module.out.register_forward_hook(lambda part, given, y: y + 1e-10 * y.abs().max())
        return module

    from dataclasses import replace

    outcome = slow_twin.look(replace(subject, make=make))
    assert isinstance(outcome, Broke)
    assert outcome.evidence["case"]["length"] == 1


def test_only_the_catalog_has_twins():
    assert isinstance(told(Attends, slow_twin), Silent)


# another module


class ByLoops(Attends):
    """The same one number at a time, in float32."""

    def forward(self, x):
        q, k, v = (self.split(t) for t in self.project(x))
        b, h, n, d = q.shape
        heads = torch.zeros(b, h, n, d)
        for i in range(n):
            scores = torch.stack([(q[:, :, i] * k[:, :, j]).sum(-1) / d**0.5 for j in range(i + 1)], dim=-1)
            weights = scores.softmax(dim=-1)
            heads[:, :, i] = sum(weights[..., j, None] * v[:, :, j] for j in range(i + 1))
        return self.proj(heads.to(x.dtype).transpose(1, 2).flatten(2))


def agrees(thing, other):
    from dataclasses import replace

    return other_module.look(replace(subject_of(thing), others={"agrees-with": other}))


def test_a_module_that_agrees_with_a_loop_is_left_alone():
    outcome = agrees(Attends, ByLoops)
    assert isinstance(outcome, Held)
    assert outcome.evidence["parameters"] == "with the same parameters"


def test_the_first_output_that_differs_from_another_module_is_named():
    outcome = agrees(Attends, ByModel)
    assert isinstance(outcome, Broke)
    assert (outcome.evidence["token"], outcome.evidence["setting"]["length"]) == (1, 2)


def test_two_mechanisms_of_the_catalog_may_be_compared_by_name():
    same = told("attention", other_module, promises=("agrees-with:scaled-dot",))
    assert isinstance(same, Held)
    assert isinstance(told("cosine", other_module, promises=("agrees-with:attention",)), Broke)
    assert isinstance(told("cosine", other_module), Silent)


# fast paths


@pytest.mark.parametrize("thing", ["attention", "alibi", "window(last=3)", "padding"])
def test_fast_paths_of_ours_say_what_the_plain_path_says(thing):
    outcome = told(thing, fast_path)
    assert isinstance(outcome, Held)
    assert "fused" in outcome.evidence["paths"]


@pytest.mark.parametrize("promises", [("causal",), ()])
def test_kernels_of_torch_say_what_its_plain_code_says(promises):
    for module in (nn.MultiheadAttention(16, 4, batch_first=True), nn.TransformerEncoderLayer(16, 4, batch_first=True)):
        assert isinstance(told(module, fast_path, promises=promises), Held)
    assert isinstance(told(Packed, fast_path), Held)


def test_a_fused_path_that_forgets_its_mask_is_found(monkeypatch):
    sdpa = F.scaled_dot_product_attention

    def forgets(q, k, v, attn_mask=None, is_causal=False, **more):
        return sdpa(q, k, v, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", forgets)
    outcome = told("attention", fast_path)
    assert isinstance(outcome, Broke)
    assert (outcome.evidence["path"], outcome.evidence["token"]) == (FUSED.name, 0)


class TwoWays(Attends):
    """A flag as in minGPT, whose fast way forgets the scale."""

    def __init__(self, dim=16):
        super().__init__(dim)
        self.flash = True

    def scale(self, d_head):
        return 1.0 if self.flash else d_head**-0.5


def test_a_flag_with_a_telling_name_is_switched():
    outcome = told(TwoWays, fast_path)
    assert isinstance(outcome, Broke)
    assert outcome.evidence["path"] == "flash"
    assert isinstance(told(Attends, fast_path), Silent)
    assert isinstance(told("gru", fast_path), Silent)


# steps


@pytest.mark.parametrize("entry", catalog.CATALOG, ids=[entry.name for entry in catalog.CATALOG])
def test_the_catalog_steps_as_it_promises(entry):
    found = cached_step.PROBE(subject_of(entry.name))
    claims = "step-equals-whole" in entry.promises
    assert found.status == ("kept" if claims else "not-applicable"), found.sentence


class WithCache(nn.Module):
    """Learned places and a cache of keys and values."""

    promises = ("causal", "step-equals-whole")
    late = 0

    def __init__(self, dim=16, length=64):
        super().__init__()
        self.places, self.parts, self.out = nn.Embedding(length, dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, cache=None, use_cache=False):
        past = 0 if cache is None else cache[0].shape[1]
        begin = past - (self.late if past else 0)
        q, k, v = self.parts(x + self.places(torch.arange(begin, begin + x.shape[1]))).chunk(3, dim=-1)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=1), torch.cat([cache[1], v], dim=1)
        allowed = torch.ones(x.shape[1], k.shape[1], dtype=torch.bool).tril(past)
        y = self.out((q @ k.mT / 4).masked_fill(~allowed, -torch.inf).softmax(dim=-1) @ v)
        return (y, (k, v)) if use_cache else y


class OneLate(WithCache):
    late = 1


def test_a_cache_whose_positions_are_off_by_one_is_found():
    assert isinstance(told(WithCache, cached_step), Held)
    outcome = told(OneLate, cached_step)
    assert isinstance(outcome, Broke)
    assert (outcome.evidence["token"], outcome.evidence["cuts"]) == (1, [1, 1])


def test_what_has_no_step_is_not_asked_to_take_one():
    assert isinstance(told(Attends, cached_step), Silent)
    assert "cannot" in told("everything", cached_step).reason


# compiled


def test_nothing_is_compiled_unless_it_is_promised():
    assert isinstance(told("attention", compiled), Silent)


SCRIPT = """
import torch
torch.set_num_threads(1)
from torch import nn
from attnlab.audits.probes import compiled
from attnlab.subjects.found import subject_of

class Reads(nn.Module):
    "What it sees while it is compiled stays."
    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)
    def forward(self, x):
        y = self.out(x)
        return y + 1 if torch.compiler.is_compiling() else y

for thing in ("attention", Reads):
    print(type(compiled.look(subject_of(thing, promises=("compiled-equals-eager",)))).__name__)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_compiles_to_something_else_is_found():
    """In a call of its own: the shape checker cannot be compiled."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ran.stdout.split() == ["Held", "Broke"], ran.stderr[-500:]


# stages


def names(**other):
    every = {name: getattr(scaffold, name) for name in vars(scaffold) if not name.startswith("_")}
    return SimpleNamespace(**{**every, **other})


def statuses(found):
    return [one.status for one in found]


def test_the_scaffold_passes_its_three_stages():
    assert statuses(staged(scaffold)) == ["kept"] * 3
    assert [one.code for one in staged(scaffold)] == ["stage-1", "stage-2", "stage-3"]


def stitched(scale):
    """The scaffold's own self_attention with another scale in it."""

    def self_attention(Q, K, V, n_heads=1, causal=True):
        width = Q.shape[-1]
        Q, K, V = scaffold.split_heads_qkv(Q, K, V, n_heads)
        A = scale(Q @ K.mT, width, n_heads)
        A = scaffold.apply_causal_mask(A, scaffold.make_causal_mask(A.shape[-1])) if causal else A
        return scaffold.merge_heads(A.softmax(-1) @ V)

    return self_attention


def by_model(A, n_embd, n_heads):
    return A / n_embd**0.5


def test_a_scale_by_the_model_shows_only_in_the_third_stage():
    found = staged(names(attn_scaled=by_model, self_attention=stitched(by_model)))
    assert statuses(found) == ["kept", "kept", "broken"]
    assert "√6 (n_embd), not by √2" in found[2].sentence
    fault = found[2].evidence["faults"][0]
    assert (fault["name"], fault["line"]) == ("attn_scaled", by_model.__code__.co_firstlineno)
    assert "√d_model" in found[2].evidence["faults"][1]["says"]


def not_yet(A):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "wrong", "stage", "says"),
    [
        ("attn_softmax", not_yet, 0, "is not written yet"),
        ("attn_softmax", lambda A: None, 0, "returns nothing"),
        ("attn_softmax", lambda A: A.softmax(-2), 0, "over the queries"),
        ("attn_softmax", lambda A: A.exp() / A.exp().sum(-1, keepdim=True), 0, "loud scores"),
        ("pairwise_similarities", lambda Q, K: K @ Q.mT, 0, "K Qᵀ"),
        ("pairwise_similarities", lambda Q, K: Q @ K.T, 0, "fails"),
        ("attn_scaled", lambda A, n_embd, n_heads: A, 0, "does not scale"),
        ("compute_outputs", lambda A, V: A.mT @ V, 0, "is off by"),
        ("make_causal_mask", lambda n_tok: torch.ones(n_tok, n_tok).triu(), 1, "upside down"),
        ("make_causal_mask", lambda n_tok: torch.ones(n_tok, n_tok).tril(-1), 1, "hides the token itself"),
        ("apply_causal_mask", lambda A, mask: A * mask, 1, "sets hidden scores to 0"),
        ("apply_causal_mask", lambda A, mask: A.masked_fill(mask == 0, -1e4), 1, "finite floor"),
        ("split_heads", lambda x, n_heads: x.reshape(1, n_heads, 10, -1), 2, "reshapes without a transpose"),
        ("merge_heads", lambda x: x.reshape(1, 10, 6), 2, "reshapes without a transpose"),
    ],
)  # fmt: skip
def test_a_function_that_is_wrong_is_named_in_its_own_stage(name, wrong, stage, says):
    found = staged(names(**{name: wrong}))
    assert found[stage].status == "broken"
    assert re.search(f"{name}.*{says}", found[stage].sentence), found[stage].sentence
    assert next(one.code for one in found if one.status == "broken") == f"stage-{stage + 1}"
    json.dumps(dict(found[stage].evidence), allow_nan=False)


def test_a_function_that_is_missing_is_named():
    every = vars(names())
    del every["merge_heads"]
    found = staged(every)
    assert "merge_heads is missing" in found[2].sentence
    assert statuses(found)[:2] == ["kept", "kept"]


def test_names_of_parameters_and_their_order_are_the_students_own():
    assert (
        statuses(staged(names(apply_causal_mask=lambda mask, A: A.masked_fill(mask == 0, -torch.inf)))) == ["kept"] * 3
    )
    assert statuses(staged(names(attn_softmax=lambda scores: scores.softmax(-1)))) == ["kept"] * 3
