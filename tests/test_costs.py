import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from attnlab.catalog import CATALOG, Entry
from attnlab.costs import Work, cost, mixer_cost, model_cost, parameters
from attnlab.errors import Refused
from attnlab.mechanisms import merges, projections
from attnlab.mechanisms.attention import Attention
from attnlab.subjects.compose import attention, decoder


def plain(d_model: int = 8, n_heads: int = 2, **parts: Any) -> Attention:
    projection = projections.separate(d_model=d_model, n_heads=n_heads)
    return Attention(projection=projection, out=nn.Linear(d_model, d_model), **parts)


class Does(nn.Module):
    """A function as a module."""

    def __init__(self, does: Callable[..., Tensor]) -> None:
        super().__init__()
        self.does = does

    def forward(self, *given: Tensor) -> Tensor:
        return self.does(*given)


class ReadsValues(nn.Module):
    """The same module, which cannot run without values."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        assert x.flatten()[0].item() < float("inf")
        return self.inside(x)


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def named(entry: Entry) -> nn.Module:
    return attention(d_model=8, n_heads=2, length=6, **{entry.question: entry.name})


each_entry = pytest.mark.parametrize("entry", CATALOG, ids=[entry.name for entry in CATALOG])


@each_entry
def test_products_of_the_explicit_path_are_those_that_torch_counts(entry: Entry) -> None:
    mixer, x = named(entry), vectors(1, 6, 8)
    counted = cost(mixer, x)
    with FlopCounterMode(display=False) as forward:
        mixer(x)
    with FlopCounterMode(display=False) as training:
        mixer(x.clone().requires_grad_()).sum().backward()
    assert counted.forward.products == forward.get_total_flops() > 0
    assert counted.training.products == training.get_total_flops()


@each_entry
def test_no_operation_of_a_mechanism_is_guessed(entry: Entry) -> None:
    assert cost(named(entry), vectors(1, 6, 8)).guessed == ()


@each_entry
def test_a_run_without_values_and_a_real_one_cost_the_same(entry: Entry) -> None:
    mixer, x = named(entry), vectors(1, 6, 8)
    without, real = cost(mixer, x), cost(ReadsValues(mixer), x)
    assert real.forward == without.forward
    assert real.training.products == without.training.products
    # On the CPU torch feeds a recurrent layer all tokens at once, and so adds fewer gradients of its weights.
    if not any(isinstance(part, nn.RNNBase) for part in mixer.modules()):
        assert real.training == without.training


def test_a_linear_layer_by_hand() -> None:
    # y = x A + c with x (3, 4) and A (4, 5): 3·5 sums of 4 products, then 3·5 biases added.
    # Backwards: x's and A's gradients are as many products again each, c's a sum over 3·5 numbers.
    costs = cost(nn.Linear(4, 5), vectors(3, 4))
    assert costs.parameters == 4 * 5 + 5
    assert costs.forward == Work(products=2 * 3 * 4 * 5, rest=15)
    assert costs.training == Work(products=3 * 2 * 3 * 4 * 5, rest=15 + 15)
    assert costs.training.total == 360 + 30


def test_a_softmax_row_by_hand() -> None:
    # max, -, exp, sum, / of 7 numbers; backwards g·y, sum, -, ·y.
    costs = cost(nn.Softmax(dim=-1), vectors(1, 7))
    assert costs.forward == Work(products=0, rest=5 * 7)
    assert costs.training == Work(products=0, rest=5 * 7 + 4 * 7)


def test_plain_attention_by_hand() -> None:
    n, d, h = 3, 4, 2
    costs = mixer_cost(plain(d_model=d, n_heads=h), d_model=d, length=n)
    # Four projections, and two products over the pairs of each head, whose widths sum to d.
    products = 4 * 2 * n * d * d + 2 * 2 * n * n * d
    # Four biases, q scaled by 1/√d, the floor of the mask added to the scores, their softmax.
    rest = 4 * n * d + n * d + h * n * n + 5 * h * n * n
    # Backwards: four sums for the biases, the scale of q again, the softmax's slope; x went three ways, so 2 sums.
    back = 4 * n * d + n * d + 4 * h * n * n + 2 * n * d
    assert (products, rest, back) == (528, 168, 156)
    assert costs.parameters == 4 * (d * d + d)
    assert costs.forward == Work(528, 168)
    assert costs.training == Work(3 * 528, 168 + 156)


def test_a_step_of_a_gru_by_hand() -> None:
    # Width 2 into 3: three gates of 3 from x (2) and from the state (3).
    costs = cost(nn.GRU(2, 3), vectors(1, 1, 2))
    into, around = 2 * 9 * 2, 2 * 9 * 3
    # Two biases of 9; r and z: +, σ; the candidate: r·, +, tanh; the new state: h - c, z·, +.
    assert costs.forward == Work(products=into + around, rest=9 + 9 + (2 + 2 + 3 + 3) * 3)
    # The first state is zeros, so nobody asks for its gradient. Output and last state are one tensor: one sum.
    back = 3 + 9 + 9 + (2 + 2 + 1 + 2 + 2) * 3  # g·z, g·(h - c); g - g·z; tanh; dr, d(Uh); σ and σ
    assert costs.training == Work(products=3 * into + 2 * around, rest=48 + back)


def test_a_plain_loop_is_seen() -> None:
    def fading(x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        for i in range(x.shape[1]):
            state = 0.5 * state + torch.tanh(x[:, i])
        return state

    # 5 tokens of width 2: a product, a tanh and a sum each.
    assert cost(Does(fading), vectors(1, 5, 2)).forward == Work(products=0, rest=5 * 3 * 2)


def test_what_is_computed_again_is_counted_again() -> None:
    layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))
    kept = cost(layers, vectors(3, 4)).training

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.layers, x, use_reentrant=False, preserve_rng_state=False)

    again = cost(Again(), vectors(3, 4)).training
    # The first layer and its tanh; nobody needs what the last one gave.
    assert again == Work(kept.products + 2 * 3 * 4 * 5, kept.rest + 15 + 15)


@pytest.mark.parametrize("rule", ["everything", "causal", "window"])
def test_fused_attention_costs_the_explicit_products(rule: str) -> None:
    x = vectors(1, 6, 8)
    explicit = cost(attention(d_model=8, n_heads=2, visibility=rule), x)
    fused = attention(d_model=8, n_heads=2, visibility=rule, path="fused")
    for told in (cost(fused, x), cost(ReadsValues(fused), x)):
        assert told.forward.products == explicit.forward.products
        assert told.training.products == explicit.training.products
        assert told.guessed == ()


def test_a_parameter_that_two_parts_share_counts_once() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    assert parameters(model) == 2 * 7 * 4
    model[1].weight = model[0].weight
    assert parameters(model) == 7 * 4
    assert model_cost(model, length=3).parameters == 7 * 4


def test_a_model_of_ids_by_hand() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    costs = model_cost(model, length=3)
    # Looking a row up is free; its gradient is added to the table, number by number.
    assert costs.forward == Work(products=2 * 3 * 4 * 7, rest=0)
    assert costs.training == Work(products=3 * 2 * 3 * 4 * 7, rest=3 * 4)
    model[1].weight = model[0].weight
    # Shared, the table is given two gradients, and they are added.
    assert model_cost(model, length=3).training.rest == 3 * 4 + 7 * 4


def test_a_decoder_by_hand() -> None:
    # Three layers of width w: four projections, two products over pairs, a network 4 times as wide; then the head.
    n, w, vocab = 10, 48, 11
    costs = model_cost(decoder(vocab=vocab, length=n, size="nano"), length=n)
    products = 3 * (4 * 2 * n * w * w + 2 * 2 * n * n * w + 2 * 2 * n * w * 4 * w) + 2 * n * w * vocab
    assert costs.forward.products == products
    assert costs.training.products == 3 * products
    layer = 4 * (w * w + w) + (4 * w * w + 4 * w) + (4 * w * w + w) + 2 * 2 * w
    assert costs.parameters == vocab * w + n * w + 3 * layer + 2 * w + w * vocab
    assert costs.guessed == ()


def test_a_batch_costs_as_much_as_its_examples() -> None:
    one, three = (mixer_cost(plain(), d_model=8, length=5, batch=b) for b in (1, 3))
    assert three.forward.products == 3 * one.forward.products
    assert three.forward.rest == 3 * one.forward.rest


def test_frozen_parameters_save_their_gradients() -> None:
    layer = nn.Linear(4, 5)
    layer.requires_grad_(False)
    costs = cost(layer, vectors(3, 4))
    assert costs.parameters == 25
    assert costs.training == Work(products=2 * 2 * 3 * 4 * 5, rest=15)


class Draws(nn.Module):
    """Chance from the global generators."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) * np.random.rand() + torch.rand(1).to(x.device)


def test_nothing_of_the_module_changes() -> None:
    inside = nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.5), plain(merge=merges.Shuffle()), Draws())
    inside[2].out.requires_grad_(False)
    inside[0].weight.grad = torch.full((5,), 3.0)
    inside[1].eval()
    before = {name: value.clone() for name, value in inside.state_dict().items()}
    # Python's own generator cannot be watched here: the checker of shapes draws from it.
    chance = torch.get_rng_state(), np.random.get_state()[1].copy()
    x = vectors(2, 5, 8)
    for module in (inside, ReadsValues(inside)):
        cost(module, x)
        assert all(torch.equal(value, before[name]) for name, value in inside.state_dict().items())
        assert torch.equal(inside[0].weight.grad, torch.full((5,), 3.0))
        assert [name for name, p in inside.named_parameters() if p.grad is not None] == ["0.weight"]
        assert [m.training for m in inside] == [True, False, True, True]
        assert [p.requires_grad for p in inside[2].out.parameters()] == [False, False]
        assert inside[0].weight.requires_grad
    assert torch.equal(x, vectors(2, 5, 8))
    assert not x.requires_grad
    assert torch.equal(torch.get_rng_state(), chance[0])
    assert (np.random.get_state()[1] == chance[1]).all()
    inside(x)  # so the check can fail: run for itself, the module moves all of these
    changed = [name for name, value in inside.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["0.running_mean", "0.running_var", "0.num_batches_tracked", "2.merge._extra_state"]
    assert not torch.equal(torch.get_rng_state(), chance[0])


def test_a_module_that_reads_values_is_counted_with_the_values_it_was_given() -> None:
    def until_small(x: Tensor) -> Tensor:
        while x.abs().max().item() > 1:
            x = x / 2
        return x

    # From 4 down to 1: two quotients, and three looks at the largest (|x|, max) of 2 numbers.
    costs = cost(Does(until_small), torch.tensor([[4.0, 1.0]]))
    assert costs.forward == Work(products=0, rest=2 * 2 + 3 * (2 + 2))


def test_a_model_larger_than_the_machine_is_counted() -> None:
    layer = nn.Linear(10**6, 10**6, bias=False, device="meta")
    assert cost(layer, torch.zeros(1, 10**6)).forward == Work(products=2 * 10**12, rest=0)
    mixer, x = plain(merge=merges.Shuffle()), vectors(1, 6, 8)  # its generator is on no device
    assert cost(copy.deepcopy(mixer).to("meta"), x) == cost(mixer, x)


def test_an_input_that_is_given_twice_is_one_input() -> None:
    x = vectors(2, 3)
    twice = Does(lambda x, memory: 2 * x + 3 * memory)
    # Two products and a sum; backwards the two products, and for one input the sum of its two gradients.
    assert cost(twice, x, x.clone()).training.rest == (3 + 2) * 6
    assert cost(twice, x, x).training.rest == (3 + 2 + 1) * 6
    attends_to_itself = Does(lambda x, memory: 2 * x if x is memory else x)
    assert cost(attends_to_itself, x, x).forward.rest == 6


def test_a_module_may_write_into_what_it_is_given() -> None:
    x = vectors(2, 3)
    assert cost(nn.ReLU(inplace=True), x).forward.rest == 6
    assert cost(ReadsValues(nn.ReLU(inplace=True)), x).forward.rest == 6
    assert torch.equal(x, vectors(2, 3))


def test_a_module_that_keeps_what_it_computed_is_counted() -> None:
    class Remembers(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.last = super().forward(x)
            return self.last

    layer = Remembers(4, 5)
    layer(vectors(3, 4))  # torch refuses to deepcopy a tensor that has a graph
    assert cost(layer, vectors(3, 4)).forward.products == 120


def test_work_under_no_grad_and_in_inference_mode_is_counted_too() -> None:
    layer = nn.Linear(4, 5)
    for without in (torch.no_grad(), torch.inference_mode()):

        def frozen(x: Tensor, without: object = without) -> Tensor:
            with without:
                y = layer(x)
            return y.clone()

        told = cost(Does(frozen), vectors(3, 4))
        assert told.forward == told.training == Work(products=120, rest=15)
        with without:
            assert cost(layer, vectors(3, 4)).training == Work(products=360, rest=30)


def test_an_error_of_the_module_is_its_own() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        cost(nn.Linear(4, 5), vectors(3, 6))
    assert caught.value.__context__ is None


def test_what_cannot_be_counted_is_refused_in_a_sentence() -> None:
    class Locked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 5)
            self.lock = threading.Lock()

    with pytest.raises(Refused, match="a copy of Locked is what would be counted"):
        cost(Locked(), vectors(3, 4))
    with pytest.raises(Refused, match="Does answers with float, in which there is no tensor"):
        cost(Does(lambda x: 3.0), vectors(3, 4))


# Each is given numbers x (2, 3, 4), 24 of them in 6 rows, and says what its forward costs besides products.
ONES = torch.ones(2, 3, 4, dtype=torch.bool)
FIRST = torch.zeros(2, 3, 4, dtype=torch.long)
RULE: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    # one for each number, whatever it is
    "add": (24, lambda x: x + 1),
    "add in place": (24, lambda x: x.add_(1)),
    "add a row": (24, lambda x: x + x.detach()[0, 0]),
    "exp": (24, torch.exp),
    "power": (24, lambda x: x**3),
    "square": (24, torch.square),
    "divide": (24, lambda x: x / 3),
    "absolute": (24, torch.abs),
    "clamp": (24, lambda x: x.clamp(min=0)),
    "maximum": (24, lambda x: torch.maximum(x, x.detach())),
    "sine": (24, torch.sin),
    "sigmoid": (24, torch.sigmoid),
    "tanh": (24, torch.tanh),
    "relu": (24, F.relu),
    "leaky relu": (24, F.leaky_relu),
    "relu6": (24, F.relu6),
    "elu": (24, F.elu),
    "gelu": (24, F.gelu),
    "silu": (24, F.silu),
    "mish": (24, F.mish),
    "softplus": (24, F.softplus),
    "log sigmoid": (24, F.logsigmoid),
    "hardswish": (24, F.hardswish),
    "glu": (24, F.glu),
    "lerp": (24, lambda x: torch.lerp(x, x.detach(), 0.5)),
    "mean squared error": (24, lambda x: F.mse_loss(x, x.detach())),
    # one for each number that is read
    "sum": (24, torch.sum),
    "mean": (24, lambda x: x.mean(dim=-1)),
    "product": (24, lambda x: x.prod(dim=-1)),
    "largest": (24, lambda x: x.amax(dim=-1)),
    "largest and where": (24, lambda x: x.max(dim=-1).values),
    "running sum": (24, lambda x: x.cumsum(dim=1)),
    "running product": (24, lambda x: x.cumprod(dim=1)),
    "running log-sum-exp": (24, lambda x: x.logcumsumexp(dim=1)),
    "running maximum": (24, lambda x: x.cummax(dim=1).values),
    # written out
    "variance": (4 * 24, lambda x: x.var(dim=-1)),
    "standard deviation": (4 * 24, lambda x: x.std(dim=-1)),
    "norm": (2 * 24, lambda x: x.norm(dim=-1)),
    "log-sum-exp": (4 * 24, lambda x: x.logsumexp(dim=-1)),
    "softmax": (5 * 24, lambda x: x.softmax(dim=-1)),
    "log-softmax": (5 * 24, lambda x: x.log_softmax(dim=-1)),
    "cross-entropy": (5 * 24 + 6, lambda x: F.cross_entropy(x.flatten(0, 1), FIRST[..., 0].flatten().to(x.device))),
    "layer norm": (5 * 24, lambda x: F.layer_norm(x, (4,))),
    "layer norm with weight and bias": (7 * 24, lambda x: F.layer_norm(x, (4,), x.detach()[0, 0], x.detach()[0, 0])),
    "group norm": (5 * 24, lambda x: F.group_norm(x, 1)),
    "batch norm": (5 * 24, lambda x: F.batch_norm(x, None, None, training=True)),
    "dropout": (2 * 24, lambda x: F.dropout(x, 0.5)),  # the draws are scaled, then multiplied
    "dropout in one": (2 * 24, lambda x: torch.native_dropout(x, 0.5, True)[0]),
    "sort": (24 * 2, lambda x: x.sort(dim=-1).values),  # rows of 4
    "sort along 3": (24 * 2, lambda x: x.sort(dim=1).values),
    "top 2": (24 * 2, lambda x: x.topk(2, dim=-1).values),
    "second smallest": (24 * 2, lambda x: x.kthvalue(2, dim=-1).values),
    "median": (24 * 2, lambda x: x.median(dim=-1).values),
    "median of all": (24 * 5, torch.median),
    "sort one": (0, lambda x: x[0, 0, 0].sort().values),
    "distances": (2 * 9 * (3 * 4 + 1), lambda x: torch.cdist(x, x.detach())),
    "Fourier": (5 * 24 * 2, lambda x: torch.fft.fft(torch.complex(x, x)).real),
    "Fourier of reals": (5 * 24 * 2 // 2, lambda x: torch.fft.rfft(x).real),
    "Fourier there and back": (5 * 24 * 2, lambda x: torch.fft.irfft(torch.fft.rfft(x))),
    "add to rows": (24, lambda x: torch.zeros_like(x).index_add(2, FIRST[0, 0].to(x.device), x)),
    "add to places": (24, lambda x: torch.zeros_like(x).scatter_add(2, FIRST.to(x.device), x)),
    "reduce to places": (24, lambda x: torch.zeros_like(x).scatter_reduce(2, FIRST.to(x.device), x, "sum")),
    # free
    "reshape": (0, lambda x: x.reshape(4, 6)),
    "transpose": (0, lambda x: x.mT.contiguous()),
    "unsqueeze in place": (0, lambda x: x.clone().unsqueeze_(0)),
    "concatenate": (0, lambda x: torch.cat([x, x.detach()])),
    "stack": (0, lambda x: torch.stack([x, x.detach()])),
    "repeat": (0, lambda x: x.repeat(1, 2, 1)),
    "repeat each": (0, lambda x: x.repeat_interleave(2, dim=1)),
    "split": (0, lambda x: x.split(2, dim=-1)[0]),
    "roll": (0, lambda x: x.roll(1, dims=1)),
    "flip": (0, lambda x: x.flip(1)),
    "pad": (0, lambda x: F.pad(x, (1, 1))),
    "windows": (0, lambda x: x.unfold(1, 2, 1)),
    "index": (0, lambda x: x[:, FIRST[0, 0].to(x.device)]),
    "gather": (0, lambda x: x.gather(-1, FIRST.to(x.device))),
    "scatter": (0, lambda x: torch.zeros_like(x).scatter(-1, FIRST.to(x.device), x)),
    "write": (0, lambda x: torch.zeros_like(x).copy_(x)),
    "triangle": (0, torch.tril),
    "mask": (0, lambda x: x.masked_fill(ONES.to(x.device), 0.0)),
    "choose": (0, lambda x: torch.where(ONES.to(x.device), x, 0.0)),
    "cast": (0, lambda x: x.double()),
    "draw": (0, torch.rand_like),
    "compare": (0, lambda x: x > x.detach()),
    "count": (0, lambda x: (x > 0).sum()),
    "where largest": (0, lambda x: x.argmax(dim=-1)),
}


@pytest.mark.parametrize(("expected", "does"), RULE.values(), ids=RULE)
def test_common_operations_follow_the_rule(expected: int, does: Callable[[Tensor], Tensor]) -> None:
    for costs in (cost(Does(does), vectors(2, 3, 4)), cost(ReadsValues(Does(does)), vectors(2, 3, 4))):
        assert costs.forward == Work(products=0, rest=expected)
        assert costs.guessed == ()


def test_products_that_torch_does_not_count() -> None:
    a = vectors(3, 4)
    assert cost(Does(lambda a: a @ a[0]), a).forward == Work(products=2 * 3 * 4, rest=0)
    assert cost(Does(lambda a: a[0] @ a[1]), a).forward == Work(products=2 * 4, rest=0)
    assert cost(Does(lambda a: torch.addmv(a[:, 0], a, a[0])), a).forward == Work(products=2 * 3 * 4, rest=3)
    added = Does(lambda a: torch.baddbmm(a[None, :, :3], a[None], a.mT[None]))
    assert cost(added, a).forward == Work(products=2 * 3 * 4 * 3, rest=9)
    # Σ_ij x_i A_oij y_j: a box of 3·5·4·2 numbers for 3 tokens, two products and a sum each; then the bias.
    bilinear = nn.Bilinear(4, 2, 5)
    assert cost(bilinear, a, vectors(3, 2)).forward == Work(products=3 * 3 * 5 * 4 * 2, rest=15)


@pytest.mark.parametrize("build", [nn.Conv1d, nn.ConvTranspose1d])
def test_a_convolution_by_hand(build: type[nn.Conv1d]) -> None:
    # 6 channels in 3 groups of 2, a filter of 3 over 7 tokens: 6 × 2 × 3 products for each of 7 places (padded).
    layer = build(6, 6, 3, padding=1, groups=3)
    costs = cost(layer, vectors(1, 6, 7))
    assert costs.forward == Work(products=2 * 6 * 2 * 3 * 7, rest=6 * 7)
    assert costs.training == Work(products=3 * 2 * 6 * 2 * 3 * 7, rest=6 * 7 + 6 * 7)


def test_slopes_of_norms_by_hand() -> None:
    # x̂ again 2, its slope 7; with a weight g·w and Σ g·x̂ 3 more; with a bias Σ g 1 more.
    x = vectors(2, 3, 4)
    assert cost(nn.LayerNorm(4, elementwise_affine=False), x).training.rest == (5 + 9) * 24
    assert cost(nn.LayerNorm(4), x).training.rest == (7 + 13) * 24


def test_a_slope_that_is_added_into_places_costs_what_is_added() -> None:
    x = vectors(2, 3, 4)
    for name, added in {"index": 2 * 4 * 4, "windows": 2 * 2 * 4 * 2, "gather": 24, "scatter": 0}.items():
        assert cost(Does(RULE[name][1]), x).training == Work(products=0, rest=added)


def test_an_operation_that_the_rule_does_not_know_is_named() -> None:
    told = cost(Does(torch.linalg.inv), vectors(2, 4, 4))
    assert "aten::linalg_inv_ex" in told.guessed
    assert told.forward.rest == 2 * 4 * 4
