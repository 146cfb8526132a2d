"""Are the gradients those of the formula, and is there none that is not a number?"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call

from attnlab.catalog import CATALOG, Entry
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.subjects.compose import Size

TINY, SMALL = Size(d_model=4, n_heads=2, length=3), Size(d_model=4, n_heads=2, length=5)
entries = pytest.mark.parametrize("entry", CATALOG, ids=[entry.name for entry in CATALOG])


def agrees_with_differences(member: nn.Module) -> bool:
    """Its gradients, by its input and by every parameter, are those that small steps show."""
    names, values = zip(*member.named_parameters(), strict=True)
    drawing = {part: part.get_extra_state() for part in member.modules() if hasattr(part, "generator")}

    def of(x: Tensor, *parameters: Tensor) -> Tensor:
        for part, state in drawing.items():
            part.set_extra_state(state)
        return functional_call(member, dict(zip(names, parameters, strict=True)), (x,))

    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (x, *values)]
    return gradcheck(of, inputs, fast_mode=True, raise_exception=False)


@entries
def test_a_gradient_is_the_slope(entry: Entry, built: Callable[..., nn.Module]) -> None:
    assert agrees_with_differences(built({entry.question: entry.name}, TINY).double())


def half_a_gradient(q: Tensor, k: Tensor, at: Pairs) -> Tensor:
    return q @ k.detach().mT


def test_a_gradient_that_is_cut_is_caught(built: Callable[..., nn.Module]) -> None:
    assert not agrees_with_differences(built({"score": half_a_gradient}, TINY).double())


def backwards(member: nn.Module) -> list[Tensor]:
    """The gradients, with anomaly detection, where a query sees nothing, a token is zero or loud."""
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x[0, 2], x[1, 3] = 0.0, 100 * x[1, 3]
    x.requires_grad_()
    tokens = Tokens.count(5, real=torch.tensor([[False, False, True, True, False], [True] * 5]))
    with torch.autograd.set_detect_anomaly(True):
        member(x, tokens=tokens).square().sum().backward()
    found = [x.grad, *(parameter.grad for parameter in member.parameters())]
    return [gradient for gradient in found if gradient is not None]


@entries
def test_a_gradient_is_a_number_where_nothing_is_seen(entry: Entry, built: Callable[..., nn.Module]) -> None:
    hides = {} if entry.question in ("visibility", "mixer") else {"visibility": "padding"}
    member = built({entry.question: entry.name, **hides}, SMALL).double()
    if "finite" in entry.breaks:
        with pytest.raises(RuntimeError, match="nan values"):
            backwards(member)
    else:
        assert all(gradient.isfinite().all() for gradient in backwards(member))


@pytest.mark.parametrize(
    "mixer", ["aft-full", "aft-local", "aft-simple", "fastformer", "linear", "differential", "latent"]
)
def test_a_mixers_gradient_is_a_number_where_nothing_is_seen(mixer: str, built: Callable[..., nn.Module]) -> None:
    member = built({"mixer": mixer, "visibility": "padding"}, SMALL).double()
    assert all(gradient.isfinite().all() for gradient in backwards(member))


def softmax_of_nothing(scores: Tensor, allowed: Tensor) -> Tensor:
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num()


def test_a_softmax_over_nothing_is_caught_on_its_way_back(built: Callable[..., nn.Module]) -> None:
    member = built({"visibility": "padding", "normalizer": softmax_of_nothing}, SMALL).double()
    with pytest.raises(RuntimeError, match="nan values"):
        backwards(member)
