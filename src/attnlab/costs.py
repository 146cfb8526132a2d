"""What does it cost? Parameters and floating-point operations of any module: mechanisms, models, a reader's own.

One run is watched, and every operation that torch then carries out is counted by this rule:

- **Products.** A matrix product or convolution costs 2 per multiplication that is summed, as in
  `torch.utils.flop_counter`. The bias that it adds belongs to the rest.
- **The rest.** An operation costs 1 for each number of the largest floating-point tensor that it reads or returns,
  whatever it is: an exponential as an addition, a sum over n numbers n.
- What torch fuses costs what its formula costs when it is written out (`WRITTEN_OUT`, `FORMULAS`): a softmax is a
  maximum, a difference, an exponential, a sum and a quotient, 5. Adding into places costs 1 for each number added, and
  sorting a row of n costs n ⌈log2 n⌉.
- **Free** are views, copies, casts, indexing, masks, fills and random draws, and all that returns no floating-point
  number: comparisons, integers, booleans.

Training is one forward and its backward, from a gradient of every output to that of every parameter that learns and
of every floating-point input, since inside a model another layer waits below. What checkpointing computes again is
counted again; the optimizer is not counted. Attention that is asked for as one fused call is counted as its products.
"""

import copy
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from attnlab.errors import Refused
from attnlab.randomness import seeded, stream


@dataclass(frozen=True)
class Work:
    """Floating-point operations: of matrix products and convolutions, and of all else."""

    products: int
    rest: int

    @property
    def total(self) -> int:
        return self.products + self.rest


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a module costs for the inputs it was counted with."""

    parameters: int
    forward: Work
    training: Work
    guessed: tuple[str, ...]
    """Operations that the rule does not know, counted as 1 per number: the truth may be far more."""


def parameters(module: nn.Module) -> int:
    """The numbers that a module holds as parameters; what two parts share counts once."""
    return sum(tensor.numel() for tensor in module.parameters())


def cost(module: nn.Module, *inputs: Any, **options: Any) -> Costs:
    """The cost of module(*inputs, **options), in the mode (training or not) and of the batch that it is given.

    A copy runs, and where it can without memory or arithmetic; one that reads values, or mixes in tensors that it
    makes on the CPU, runs for real.
    """
    with suppress(Exception):  # if it is the module that is wrong, it fails again and says so
        return _count(module, inputs, options, device="meta")
    return _count(module, inputs, options, device=None)


def mixer_cost(mixer: nn.Module, *, d_model: int, length: int, batch: int = 1) -> Costs:
    """The cost of a mixer over a run of vectors."""
    like = next((p for p in mixer.parameters() if p.is_floating_point()), torch.empty(0))
    x = torch.randn(batch, length, d_model, generator=stream(0, "cost"))
    return cost(mixer, x.to(device=like.device, dtype=like.dtype))


def model_cost(model: nn.Module, *, length: int, batch: int = 1) -> Costs:
    """The cost of a model over a run of ids, all 0: every vocabulary has it, and each id costs the same."""
    like = next(model.parameters(), torch.empty(0))
    return cost(model, torch.zeros(batch, length, dtype=torch.long, device=like.device))


def _count(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], *, device: str | None) -> Costs:
    name = type(module).__name__
    try:
        with torch.inference_mode(False), _Twins(device):
            twin, inputs, options = copy.deepcopy((module, inputs, options))
    except Exception as error:
        raise Refused(f"a copy of {name} is what would be counted, and it cannot be copied: {error}") from error
    # On the meta device torch writes fused attention out by itself. No inference mode means gradients, too.
    written_out = nullcontext() if device == "meta" else sdpa_kernel(SDPBackend.MATH)
    with seeded(0, "cost"), torch.inference_mode(False), written_out:
        inputs, options = _learning((inputs, options))
        with _Counter() as forward:
            answer = twin(*inputs, **options)
        answers = [leaf for leaf in tree_leaves(answer) if isinstance(leaf, Tensor)]
        if not answers:
            raise Refused(f"{name} answers with {type(answer).__name__}, in which there is no tensor to train by")
        ends = [tensor for tensor in answers if tensor.requires_grad]
        gradients = [torch.ones_like(tensor) for tensor in ends]
        with _Counter() as backward:
            torch.autograd.backward(ends, gradients)
    return Costs(
        parameters=parameters(module),
        forward=Work(forward.products, forward.rest),
        training=Work(forward.products + backward.products, forward.rest + backward.rest),
        guessed=tuple(sorted(forward.guessed | backward.guessed)),
    )


class _Twins(TorchFunctionMode):
    """deepcopy makes tensors that belong to no graph and, on the meta device, take no memory."""

    def __init__(self, device: str | None) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (Tensor.__deepcopy__, Tensor.clone):  # a Parameter is copied by a clone of its data
            return self.twin(args[0])
        return func(*args, **(kwargs or {}))

    def twin(self, tensor: Tensor) -> Tensor:
        # Bytes in a row may be a generator's state, which must be real.
        if self.device is None or (tensor.dtype is torch.uint8 and tensor.dim() == 1):
            return tensor.detach().clone()
        return torch.empty_like(tensor, device=self.device)


def _learning(given: Any) -> Any:
    """The inputs, asking for gradients; no leaves, since a module may write into what another layer hands it."""
    seen: dict[int, Tensor] = {}

    def asks(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        if id(leaf) not in seen:
            seen[id(leaf)] = leaf.requires_grad_().clone()
        return seen[id(leaf)]

    return tree_map(asks, given)


class _Counter(TorchDispatchMode):
    """Sees every operation below autograd."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products, self.rest = 0, 0
        self.guessed: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():  # only there do composite operations come in one piece
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        work = _price(func, args, kwargs, out)
        if work is None:
            self.guessed.add(func.name())
            work = Work(0, _largest(args, kwargs, out))
        self.products += work.products
        self.rest += work.rest
        return out


Given = dict[str, Any]
Formula = Callable[[Given, Tensor], int]


def _price(func: Any, args: tuple[Any, ...], kwargs: Given, out: Any) -> Work | None:
    """What one operation costs by the rule; None where the rule does not know it."""
    returned = _numbers(out)
    name = func.overloadpacket.__name__.removesuffix("_")  # add_ is add, in place
    view = func.is_view or torch.Tag.inplace_view in func.tags
    if not returned or view or name in FREE or name.endswith("copy"):
        return Work(0, 0)
    given = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    given |= dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    products: int | None = None
    if name in PRODUCTS:
        products = PRODUCTS[name](given, returned[0])
    elif func.overloadpacket in flop_registry:
        products = flop_registry[func.overloadpacket](*args, **kwargs, out_val=out)
    if name in FORMULAS:
        return Work(products or 0, FORMULAS[name](given, returned[0]))
    if products is not None:
        return Work(products, 0)
    if name in WRITTEN_OUT or name in ONE or torch.Tag.pointwise in func.tags:
        return Work(0, WRITTEN_OUT.get(name, 1) * _largest(args, kwargs, out))
    return None


def _numbers(tree: Any) -> list[Tensor]:
    """The tensors of floating-point or complex numbers."""
    tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]


def _largest(*trees: Any) -> int:
    return max((tensor.numel() for tensor in _numbers(trees)), default=0)


def _filtered(given: Given, out: Tensor) -> int:
    """Each number of the output (transposed: of the input) meets one filter."""
    weight, each = given["weight"], given["input"] if given["transposed"] else out
    return 2 * each.numel() * weight[:1].numel()


def _filtered_backward(given: Given, out: Tensor) -> int:
    """As much again for each gradient; torch's own count of the weight's forgets the groups."""
    to_input, to_weight, _ = given["output_mask"]
    return (to_input + to_weight) * _filtered(given, given["grad_output"])


def _trilinear(given: Given, out: Tensor) -> int:
    """Σ a·b·c over a box: two products and a sum."""
    shapes = []
    for i in (1, 2, 3):
        tensor = given[f"i{i}"]
        for dim in sorted(given[f"expand{i}"]):
            tensor = tensor.unsqueeze(dim)
        shapes.append(tensor.shape)
    return 3 * prod(torch.broadcast_shapes(*shapes))


def _distances(given: Given, pairs: Tensor) -> int:
    """A difference, a power and a sum per feature, a root per pair; backwards as many."""
    return (3 * given["x1"].shape[-1] + 1) * pairs.numel()


def _normalized(given: Given, out: Tensor) -> int:
    """Sum, difference, square, sum, product; then times the weight, plus the bias."""
    return (5 + (given["weight"] is not None) + (given["bias"] is not None)) * out.numel()


def _normalized_backward(given: Given, out: Tensor) -> int:
    """x̂ again 2; r (g' - mean g' - x̂ mean(g' x̂)) 7; g' = g w 1 and Σ g x̂ 2 for a weight; Σ g 1 for a bias."""
    _, weight, bias = given["output_mask"]
    return (9 + 3 * weight + bias) * given["input"].numel()


def _sorted(given: Given, out: Tensor) -> int:
    """Rows of n, n ⌈log2 n⌉ each."""
    tensor, dim = given["self"], given.get("dim")
    row = tensor.shape[dim] if dim is not None and tensor.dim() else tensor.numel()
    return tensor.numel() * _log2(row)


def _fourier(given: Given, out: Tensor) -> int:
    """5 n ⌈log2 n⌉ for n complex numbers, half of it where one side is real."""
    whole = out if given["self"].is_complex() else given["self"]
    row = prod(whole.shape[dim] for dim in given["dim"])
    both = given["self"].is_complex() and out.is_complex()
    return 5 * whole.numel() * _log2(row) // (1 if both else 2)


def _log2(n: int) -> int:
    """⌈log2 n⌉"""
    return max(n - 1, 0).bit_length()


def _each(name: str) -> Formula:
    """1 for each number of one argument."""
    return lambda given, out: int(given[name].numel())


# What torch.utils.flop_counter does not know, or miscounts.
PRODUCTS: dict[str, Formula] = {
    "convolution": _filtered,
    "convolution_backward": _filtered_backward,
    "mv": lambda given, out: 2 * int(given["self"].numel()),
    "addmv": lambda given, out: 2 * int(given["mat"].numel()),
    "dot": lambda given, out: 2 * int(given["self"].numel()),
    "vdot": lambda given, out: 2 * int(given["self"].numel()),
    "_trilinear": _trilinear,
}

# Per number of the largest tensor.
WRITTEN_OUT = {
    "_softmax": 5,  # max, -, exp, sum, /
    "_safe_softmax": 5,
    "_log_softmax": 5,  # max, -, exp, sum, -
    "_softmax_backward_data": 4,  # g·y, sum, -, ·y
    "_log_softmax_backward_data": 4,  # sum, exp, ·, -
    "logsumexp": 4,  # max, -, exp, sum
    "var": 4,  # sum, -, square, sum
    "std": 4,
    "var_mean": 4,
    "std_mean": 4,
    "linalg_vector_norm": 2,  # square, sum
    "native_dropout": 2,  # mask / kept, ·
}

# The rest of an operation that the largest tensor does not tell.
FORMULAS: dict[str, Formula] = {
    "addmm": lambda given, out: out.numel(),  # the bias
    "baddbmm": lambda given, out: out.numel(),
    "addmv": lambda given, out: out.numel(),
    "convolution": lambda given, out: 0 if given["bias"] is None else out.numel(),
    "convolution_backward": lambda given, out: given["output_mask"][2] * int(given["grad_output"].numel()),
    "native_layer_norm": _normalized,
    "native_layer_norm_backward": _normalized_backward,
    "native_group_norm": _normalized,
    "native_group_norm_backward": _normalized_backward,
    "native_batch_norm": _normalized,
    "native_batch_norm_backward": _normalized_backward,
    "_cdist_forward": _distances,
    "_cdist_backward": lambda given, out: _distances(given, given["cdist"]),
    "_fft_c2c": _fourier,
    "_fft_r2c": _fourier,
    "_fft_c2r": _fourier,
    "sort": _sorted,
    "topk": _sorted,
    "kthvalue": _sorted,
    "median": _sorted,
    "index_put": lambda given, out: int(given["values"].numel()) if given["accumulate"] else 0,
    "index_add": _each("source"),
    "scatter_add": _each("src"),
    "scatter_reduce": _each("src"),
    "embedding_dense_backward": _each("grad_output"),
    "unfold_backward": _each("grad_in"),
    "nll_loss_forward": _each("target"),  # one number of each row is read
}

# One per number, though torch does not tag them as pointwise: sums, runs, and curves with their slopes.
ONE = frozenset(
    """
    sum nansum mean prod amax amin aminmax max min norm trace
    cumsum cumprod cummax cummin _cummax_helper _cummin_helper logcumsumexp
    sigmoid_backward tanh_backward gelu_backward silu_backward mish_backward softplus_backward elu_backward
    leaky_relu_backward hardtanh_backward hardswish hardswish_backward hardsigmoid_backward hardshrink_backward
    softshrink_backward threshold_backward log_sigmoid_forward log_sigmoid_backward glu glu_backward _prelu_kernel
    _prelu_kernel_backward native_dropout_backward polar linalg_cross mse_loss mse_loss_backward smooth_l1_loss
    smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits
    """.split()  # noqa: SIM905
)

FREE = frozenset(
    """
    clone _unsafe_view cat stack repeat roll flip rot90 complex set resize unsafe_split unsafe_split_with_sizes
    diag_embed constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d
    index _unsafe_index gather index_select take embedding masked_select masked_scatter masked_scatter_backward
    scatter index_fill slice_scatter select_scatter diagonal_scatter as_strided_scatter
    slice_backward select_backward diagonal_backward nll_loss_backward
    where masked_fill tril triu fill zero
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided zeros zeros_like new_zeros
    _new_zeros_with_same_feature_meta _efficientzerotensor ones ones_like new_ones full full_like new_full eye arange
    linspace logspace scalar_tensor
    rand rand_like randn randn_like randint randint_like randperm bernoulli uniform normal normal_functional
    log_normal exponential geometric cauchy poisson multinomial
    """.split()  # noqa: SIM905
)
