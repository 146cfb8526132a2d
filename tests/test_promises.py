"""Does every entry keep what its line in the catalog promises, and break what it is known to break?"""

import math

import pytest
import torch
from torch import nn

from attnlab import catalog
from attnlab.errors import Refused
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.kernels import EXPLICIT
from attnlab.mechanisms.planner import paths, taking
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.subjects import attention

N, WIDTH, HEADS = 9, 8, 4


class Broken(AssertionError):
    """A promise that was not kept."""


def build(entry, **more):
    variant = {entry.question: entry.name} | more
    module = attention(d_model=WIDTH, n_heads=HEADS, length=64, **variant).double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():  # a part that begins at zero would hide what it does
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def answer(module, x, **known):
    """The module's answer, its own draws taken back, so that two calls differ only by what they are given."""
    drawing = [part for part in module.modules() if hasattr(part, "generator")]
    states = [part.get_extra_state() for part in drawing]
    y = module(x, **known)
    for part, state in zip(drawing, states, strict=True):
        part.set_extra_state(state)
    return y


def inputs(n=N, *, batch=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, n, WIDTH, generator=generator, dtype=torch.float64)


def must(held, why):
    if not held:
        raise Broken(why)


def same(a, b, why, *, within=1e-12):
    must(bool(torch.isfinite(a).all() and torch.isfinite(b).all()), f"{why}: not finite")
    gap = (a - b).abs().max().item() if a.numel() else 0.0
    must(gap <= within, f"{why}: {gap}")


def causal(entry):
    module = build(entry)
    for whole, later in ((1.0, 1.0), (1.0, 30.0), (1.0, 3e4), (300.0, 300.0)):
        x = whole * inputs()
        for cut in range(1, N):
            changed = torch.cat([x[:, :cut], later * inputs(seed=5)[:, cut:]], dim=1)
            heard = f"outputs before {cut} heard a later token"
            same(answer(module, changed)[:, :cut], answer(module, x)[:, :cut], heard, within=0.0)
    x = inputs()
    x.requires_grad_()
    (heard,) = torch.autograd.grad(answer(module, x)[:, 3].sum(), x)
    must(bool((heard[:, 4:] == 0).all()), "an output's gradient reaches a later token")


def batch_independent(entry):
    module, x = build(entry), inputs(batch=3)
    same(answer(module, x)[1:2], answer(module, x[1:2]), "a sentence heard its neighbors")
    other = torch.cat([x[:1], 10 * x[1:]], dim=0)
    same(answer(module, other)[:1], answer(module, x)[:1], "a sentence heard its neighbors")


def padding_invariant(entry):
    module = build(entry)
    for extra, loud in ((1, 1.0), (7, 1.0), (3, 300.0)):
        x = loud * inputs()
        padded = torch.cat([x, loud * inputs(extra, seed=7)], dim=1)
        real = torch.arange(N + extra)[None].expand(2, -1) < N
        tokens = Tokens.count(N + extra, real=real)
        same(
            answer(module, padded, tokens=tokens)[:, :N],
            answer(module, x),
            f"{extra} more padding tokens changed the rest",
            within=1e-12 * loud**3,
        )


def weights_of(entry, tokens=None):
    module = build(entry)
    core = module.mixer if hasattr(module, "absolute") else module
    return module, core, module.weights(inputs(), tokens=tokens)


def rows_sum_to_one(entry):
    _, _, weights = weights_of(entry)
    same(weights.sum(-1), torch.ones_like(weights.sum(-1)), "a row does not sum to one")


def nonnegative(entry):
    must(bool((weights_of(entry)[2] >= 0).all()), "a weight is negative")


def hidden_keys_weigh_nothing(entry):
    """Whatever the scores, loud ones too."""
    _, core, _ = weights_of(entry)
    run = Tokens.count(N)
    at = Pairs(run, run)
    allowed = core.visibility.given(at)(at)
    for loud in (1.0, 1e3, 1e6):
        scores = loud * torch.randn(2, HEADS, N, N, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        weights = core.normalizer(scores, allowed) if loud > 1 else core.weights(inputs())
        must(bool((weights.masked_select(~allowed.expand_as(weights)) == 0).all()), "a hidden key weighs something")


def weights_are_used(entry):
    """The output is what the returned weights carry, and nothing else."""
    module, core, weights = weights_of(entry)
    x = inputs() if core is module else module.place(inputs(), None)
    if not isinstance(core, Attention):
        pytest.skip(f"{entry.name} is no composition of parts; its own test compares its weights")
    run = Tokens.count(N)
    _, kept = core.projection(x)
    _, v = core.projection.open(*kept)
    heads = weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
    whole = answer(core, x)
    merged = core.merge(heads, x, run)
    same(core.out(merged.transpose(1, 2).flatten(2)), whole, "the weights shown are not the weights used")


def step_equals_whole(entry):
    module, x = build(entry), inputs()
    for cuts in ([1] * N, [3, 1, 5], [N]):
        state, outputs = module.start(x), []
        for part in x.split(cuts, dim=1):
            y, state = module.step(part, state)
            outputs.append(y)
        same(torch.cat(outputs, dim=1), module(x), f"steps of {cuts} differ from the whole")


def fast_equals_explicit(entry):
    module, x = build(entry), inputs()
    tokens = Tokens.count(N, real=torch.rand(2, N, generator=torch.Generator().manual_seed(0)) > 0.4)
    served = [path for path, reason in paths(module).items() if reason is None]
    must(len(served) > 1, "no fast path serves, so there is nothing to promise")
    for path in served:
        for known in (None, tokens):
            with taking(module, "explicit"):
                expected = answer(module, x, tokens=known)
            with taking(module, path):
                same(answer(module, x, tokens=known), expected, f"the {path} path differs")


def any_length(entry):
    module = build(entry)
    for n in (1, 2, 65, 130):
        y = module(inputs(n))
        must(y.shape == (2, n, WIDTH) and bool(torch.isfinite(y).all()), f"{n} tokens")


def order_equivariant(entry):
    module, x = build(entry), inputs()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    same(module(x[:, order]), module(x)[:, order], "the order of the tokens matters")


def order_aware(entry):
    """The last output changes when earlier tokens change places."""
    module, x = build(entry), inputs()
    turned = torch.cat([x[:, :-1].flip(1), x[:, -1:]], dim=1)
    gap = (module(turned)[:, -1] - module(x)[:, -1]).abs().max().item()
    must(gap > 1e-6, "the order of the tokens does not matter")


def favors_near(entry):
    """Where all tokens are alike, nearer keys weigh more."""
    module = build(entry)
    weights = module.weights(inputs(1).expand(2, N, WIDTH))[0, :, -1]
    must(bool((weights.diff(dim=-1) > 0).all()), "a nearer key weighs less")


def hears_last(entry, last):
    module, x = build(entry), inputs().requires_grad_()
    (heard,) = torch.autograd.grad(module(x)[:, -1].square().sum(), x)
    moved = heard.abs().sum(dim=(0, 2)) > 0
    must(moved.tolist() == [i >= N - last for i in range(N)], f"heard {moved.tolist()}")


def deterministic(entry):
    module, x = build(entry), inputs()
    same(module(x), module(x), "the same input gives another answer", within=0.0)


def finite(entry):
    module = build(entry)
    for loud in (1.0, 1e2, 1e4):
        x = (loud * inputs()).requires_grad_()
        y = module(x)
        (heard,) = torch.autograd.grad(y.sum(), x)
        must(bool(torch.isfinite(y).all() and torch.isfinite(heard).all()), f"not finite at a loudness of {loud}")


def leaves_input(entry):
    module, x = build(entry), inputs()
    before, kept = {k: v.clone() for k, v in module.state_dict().items()}, x.clone()
    module(x)
    same(x, kept, "the input was changed", within=0.0)
    for name, value in module.state_dict().items():
        must("extra_state" in name or torch.equal(value, before[name]), f"{name} was changed")


def trainable(entry):
    """Every parameter moves the output; by chance alone no gradient is zero in all its numbers."""
    module = build(entry)
    module(inputs()).square().sum().backward()
    for name, parameter in module.named_parameters():
        shifted_away = name.endswith("key.bias") and isinstance(getattr(module, "normalizer", None), nn.Module)
        must(parameter.grad is not None, f"{name} is not connected")
        must(shifted_away or bool((parameter.grad != 0).any()), f"{name} has no gradient")


CHECKS = {
    "causal": causal,
    "batch-independent": batch_independent,
    "padding-invariant": padding_invariant,
    "rows-sum-to-one": rows_sum_to_one,
    "nonnegative": nonnegative,
    "hidden-keys-weigh-nothing": hidden_keys_weigh_nothing,
    "weights-are-used": weights_are_used,
    "step-equals-whole": step_equals_whole,
    "fast-equals-explicit": fast_equals_explicit,
    "any-length": any_length,
    "order-equivariant": order_equivariant,
    "order-aware": order_aware,
    "favors-near": favors_near,
    "hears-last:{last}": lambda entry: hears_last(entry, 4),
    "deterministic": deterministic,
    "finite": finite,
    "leaves-input": leaves_input,
    "trainable": trainable,
}
# What every module is taken to promise.
TAKEN = ("deterministic", "finite", "leaves-input", "trainable")
ELSEWHERE = ("agrees-with-twin", "cost:n^1", "cost:n^2")

KEPT = [
    (entry, promise)
    for entry in catalog.CATALOG
    for promise in (*entry.promises, *TAKEN)
    if promise not in entry.breaks and promise not in ELSEWHERE
]
BROKEN = [(entry, promise) for entry in catalog.CATALOG for promise in entry.breaks]


def named(case):
    return case.name if isinstance(case, catalog.Entry) else case


@pytest.mark.parametrize(("entry", "promise"), KEPT, ids=named)
def test_an_entry_keeps_what_it_promises(entry, promise):
    CHECKS[promise](entry)


@pytest.mark.parametrize(("entry", "promise"), BROKEN, ids=named)
def test_an_entry_is_found_broken_where_it_is_known_to_be(entry, promise):
    with pytest.raises(Broken):
        CHECKS[promise](entry)


def test_a_faulty_entry_claims_what_it_breaks():
    """Otherwise its audit would stay silent."""
    for entry in catalog.CATALOG:
        assert set(entry.breaks) <= {*entry.promises, *TAKEN}, entry.name


def test_what_only_seems_to_step_is_refused():
    for entry in catalog.CATALOG:
        if "step-equals-whole" not in entry.promises:
            module = build(entry)
            with pytest.raises(Refused, match="token by token"):
                module.start(inputs())


def test_every_promise_in_the_catalog_has_a_check():
    for entry in catalog.CATALOG:
        assert set(entry.promises) <= {*CHECKS, *ELSEWHERE}, entry.name


def test_the_cost_of_attention_grows_as_promised():
    from attnlab.costs import cost

    for entry in catalog.CATALOG:
        exponent = next((int(p[-1]) for p in entry.promises if p.startswith("cost:n^")), None)
        if exponent is None:
            continue
        module = attention(d_model=WIDTH, n_heads=HEADS, length=4096, **{entry.question: entry.name})
        module.eval()
        # The second difference over doublings removes what is constant and what is linear.
        sizes = (128, 256, 512) if "recurrent" not in entry.builder else (16, 32, 64)
        work = [cost(module, torch.zeros(1, n, WIDTH)).forward.total for n in sizes]
        measured = math.log2((work[2] - work[1]) / (work[1] - work[0]))
        assert abs(measured - exponent) < 0.15, (entry.name, measured)


def test_the_explicit_path_is_the_one_that_shows_its_weights():
    module, _, weights = weights_of(catalog.find("attention"))
    with taking(module, "fused"):
        assert torch.equal(module.weights(inputs()), weights)
    assert EXPLICIT.name == "explicit"
