"""Where does chance come from? The one file that may seed, save and restore the global generators."""

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

Stream = Callable[[str], torch.Generator]


def stream(seed: int, name: str) -> torch.Generator:
    """A generator of its own for every (seed, name): what two variants share by name, they draw alike."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whatever is drawn inside, the global generators go on as if nothing had been."""
    ours, theirs, python = torch.get_rng_state(), np.random.get_state(), random.getstate()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(ours)
        if on_gpus:
            torch.cuda.set_rng_state_all(on_gpus)
        np.random.set_state(theirs)
        random.setstate(python)


@contextmanager
def seeded(seed: int, name: str) -> Iterator[None]:
    """The global generators as (seed, name) would have them, for code that draws from them."""
    start = stream(seed, name).initial_seed()
    with undisturbed():
        _seed_torch(start)
        np.random.seed(start % 2**32)
        random.seed(start)
        yield


def _seed_torch(start: int) -> None:
    """torch.manual_seed without a GPU writes down the whole stack each time, for when there will be one."""
    torch.default_generator.manual_seed(start)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(start)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(start)


def by_width(weight: Tensor) -> float:
    """The usual spread of a weight: 1 / √(its inputs)."""
    return float(weight.shape[-1]) ** -0.5


def initialize(module: nn.Module, seed: int, *, std: Callable[[Tensor], float] = by_width, prefix: str = "") -> None:
    """Draw every parameter of ours from a stream named after it; a reader's own parts keep what they drew.

    Ours are the modules of this package and torch's plain layers inside them. A part with parameters of its own says
    how they begin in `draw(stream)`; a layer's weight is normal with the given spread, its bias zero.
    """
    _initialize(module, seed, std, prefix, set())


def _initialize(
    module: nn.Module, seed: int, std: Callable[[Tensor], float], prefix: str, seen: set[nn.Module]
) -> None:
    if module in seen:
        return
    seen.add(module)
    with torch.no_grad():
        draw = getattr(module, "draw", None) if _ours(module) else None
        if draw is not None:
            draw(lambda leaf: stream(seed, f"{prefix}{leaf}"))
        elif isinstance(module, nn.Linear | nn.Embedding):
            module.weight.normal_(0.0, std(module.weight), generator=stream(seed, f"{prefix}weight"))
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
    if not _ours(module):
        return
    for name, child in module.named_children():
        if _ours(child) or type(child).__module__.startswith("torch.nn."):
            _initialize(child, seed, std, f"{prefix}{name}.", seen)


def _ours(module: nn.Module) -> bool:
    home = type(module).__module__
    return home.startswith("attnlab.") or isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
