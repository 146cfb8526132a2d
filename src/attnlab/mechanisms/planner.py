"""Which path is fast here? Measured for the shape, the type and the device at hand, never assumed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from attnlab.errors import Refused
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.kernels import PATHS

PRECISIONS = ("float32", "bfloat16")


class Timing(NamedTuple):
    """One way to compute, and how long it takes forwards and backwards, or why it cannot."""

    path: str
    precision: str
    milliseconds: float | None
    refused: str | None = None


class Plan(NamedTuple):
    """The ways that were measured, the fastest first; `path` is to be pinned for whatever must repeat."""

    timings: tuple[Timing, ...]

    @property
    def path(self) -> str:
        return self.timings[0].path

    @property
    def precision(self) -> str:
        return self.timings[0].precision


_measured: dict[tuple[object, ...], Plan] = {}


def plan(
    mixer: nn.Module,
    *,
    batch: int,
    length: int,
    d_model: int,
    device: str = "cpu",
    precisions: tuple[str, ...] = PRECISIONS,
    rounds: int = 5,
    seconds: float = 1.0,
) -> Plan:
    """Every path that serves, in every precision, one after another in turns; remembered for this process."""
    key = (_description(mixer), batch, length, d_model, device, precisions, torch.get_num_threads())
    if key not in _measured:
        x = torch.randn(batch, length, d_model, device=device, generator=torch.Generator(device).manual_seed(0))
        _measured[key] = _measure(mixer.to(device), x, precisions, rounds, seconds)
    return _measured[key]


def paths(mixer: nn.Module) -> dict[str, str | None]:
    """Every path and the reason why it cannot serve here; a mixer without attention has one way, its own."""
    cores = [part for part in mixer.modules() if isinstance(part, Attention)]
    if not cores:
        return {"own": None}
    return {
        name: next((reason for core in cores if (reason := path.refuses(core))), None) for name, path in PATHS.items()
    }


def take(mixer: nn.Module, path: str) -> None:
    """Let every attention inside go this path, or say why it cannot."""
    reason = paths(mixer).get(path)
    if reason is not None:
        raise Refused(f"the {path} path cannot serve here: {reason}")
    for part in mixer.modules():
        if isinstance(part, Attention):
            part.path = PATHS[path]


@contextmanager
def taking(mixer: nn.Module, path: str) -> Iterator[None]:
    """The same for a while."""
    before = [(part, part.path) for part in mixer.modules() if isinstance(part, Attention)]
    try:
        take(mixer, path)
        yield
    finally:
        for part, old in before:
            part.path = old


def _measure(mixer: nn.Module, x: torch.Tensor, precisions: tuple[str, ...], rounds: int, seconds: float) -> Plan:
    served = paths(mixer)
    ways = [(path, precision) for path, reason in served.items() if reason is None for precision in precisions]
    spent: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    until = time.perf_counter() + seconds
    for turn in range(rounds + 1):
        for path, precision in ways:
            with taking(mixer, path):
                took = _once(mixer, x, precision)
            if turn:  # the first turn warms up
                spent[path, precision].append(took)
        if turn and time.perf_counter() > until:
            break
    timed = (Timing(*way, 1e3 * median(times)) for way, times in spent.items())
    refused = (Timing(path, "", None, reason) for path, reason in served.items() if reason is not None)
    return Plan((*sorted(timed, key=lambda timing: timing.milliseconds or 0.0), *refused))


def _once(mixer: nn.Module, x: torch.Tensor, precision: str) -> float:
    """Forwards and backwards, leaving no gradient behind."""
    wait: Callable[[], object] = torch.cuda.synchronize if x.is_cuda else lambda: None
    x = x.detach().requires_grad_()
    wanted = [x, *(p for p in mixer.parameters() if p.requires_grad)]
    wait()
    begun = time.perf_counter()
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
        y = mixer(x)
    torch.autograd.grad(y.float().sum(), wanted, allow_unused=True)
    wait()
    return time.perf_counter() - begun


def _description(mixer: nn.Module) -> str:
    """What decides the time: the parts and their sizes, not the numbers in them."""
    cores = [f"{part.visibility}" for part in mixer.modules() if isinstance(part, Attention)]
    return f"{mixer} {cores} {[tuple(p.shape) for p in mixer.parameters()]}"
