"""Members to compare: built as a variant reads, with no parameter left at a zero or an identity that would hide it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from attnlab.subjects import attention
from attnlab.subjects.compose import Size


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Numbers one at a time gain nothing from threads, and a small product in bfloat16 waits long for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def built() -> Callable[..., nn.Module]:
    def build(variant: dict[str, Any], size: Size, *, seed: int = 0, **settings: Any) -> nn.Module:
        sizes = {"d_model": size.d_model, "n_heads": size.n_heads, "length": size.length}
        return stirred(attention(**sizes, seed=seed, **settings, **variant), seed)

    return build


def stirred(member: nn.Module, seed: int) -> nn.Module:
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in member.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return member.eval()
