"""How does its cost grow with the length?"""

import math
import time
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.audits.measure import dtype_of
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.probes.size import Whole, counted
from attnlab.errors import LabError
from attnlab.subjects.subject import Subject

# An exponent is counted at n, 2n and 3n and again at 2n, 4n and 6n; blocks up to the first n are no growth.
BASES = (128, 64, 32, 16, 8, 4, 2)
CALLS = 700
SECONDS = 0.12
WITHIN = 0.15
# The two-sided 95 % of Student's t, by degrees of freedom.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36}
REFUSALS = (LabError, RuntimeError, ValueError, IndexError, AssertionError, TypeError)


def look(subject: Subject) -> Outcome:
    module = subject.build(0, dtype=torch.float32)
    base = _base(subject, module)
    if base is None:
        return Silent("it takes too few lengths to see how it grows")
    lengths = sorted({times * n for n in (base, 2 * base) for times in (1, 2, 3)})
    work = {n: counted(subject, module, _input(subject, module, n)).forward.total for n in lengths}
    exponents = [power for power in (_power(work, base),) if power is not None]
    memory = {n: _kept(subject, module, _input(subject, module, n)) for n in lengths}
    exponent = exponents[0] if exponents else None
    timed = _timed(subject, module, max(lengths))
    slope, around = _slope(timed)
    evidence = {
        "exponent": exponent,
        "operations": {str(n): work[n] for n in lengths},
        "memory_exponent": _power(memory, base),
        "memory": {str(n): memory[n] for n in lengths},
        "time_exponent": slope,
        "time_interval": [slope - around, slope + around] if slope is not None and around is not None else None,
        "seconds": {str(n): one for n, one in timed.items()},
    }
    if exponent is None:
        return Silent(f"how its operations grow cannot be told from {max(lengths)} tokens: none more, or in blocks")
    measured = f"; measured time as n^{slope:.2f} ± {around:.2f}" if slope is not None and around is not None else ""
    kept = evidence["memory_exponent"]
    stored = f", the memory of training as n^{kept:.2f}" if isinstance(kept, float) else ""
    sentence = f"its operations grow as n^{exponent:.2f}{stored}, counted up to {max(lengths)} tokens{measured}"
    promised = _promised(subject)
    if promised is not None and exponent > promised + WITHIN:
        return Broke(f"{sentence}; promised was n^{promised:g}", {**evidence, "promised": promised})
    return Held(sentence, evidence)


def _promised(subject: Subject) -> float | None:
    """cost:n^2 promises 2."""
    said = subject.value_of("cost")
    if not said:
        return None
    try:
        return float(said.removeprefix("n^")) if said != "n" else 1.0
    except ValueError:
        raise LabError(f"cost:{said} promises nothing that can be measured; write cost:n^1 or cost:n^2") from None


def _input(subject: Subject, module: nn.Module, n: int) -> Tensor:
    return subject.give(n, batch=1, dtype=dtype_of(module))


def _base(subject: Subject, module: nn.Module) -> int | None:
    """The largest n of which it takes every multiple up to six; a loop over the tokens is asked for fewer."""
    for base in BASES:
        if base > BASES[-2] and _calls(subject, module, 6 * base) > CALLS:
            continue
        try:
            for times in (1, 2, 3, 4, 6):
                subject.ask(module, _input(subject, module, times * base))
        except REFUSALS:
            continue
        return base
    return None


def _calls(subject: Subject, module: nn.Module, n: int) -> int:
    """How many operations of torch n tokens take, told from fewer."""
    heard = []
    for few in (8, 16):
        with _Calls() as calls:
            try:
                subject.ask(module, _input(subject, module, few))
            except REFUSALS:
                return 0
        heard.append(calls.heard)
    return heard[0] + (heard[1] - heard[0]) * (n - 8) // 8


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.heard = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard += 1
        return func(*args, **(kwargs or {}))


def _power(cost: dict[int, int], base: int) -> float | None:
    """k of a + b n + c n^k: a second difference leaves the last alone, doubling n shows k, and none left is 1."""
    first, second = (cost[n] - 2 * cost[2 * n] + cost[3 * n] for n in (base, 2 * base))
    if cost[6 * base] <= cost[base]:
        return None
    if max(first, second) <= 1e-3 * cost[6 * base]:
        return 1.0
    if min(first, second) <= 0:
        return None
    return max(math.log2(second / first), 1.0)


def _kept(subject: Subject, module: nn.Module, x: Tensor) -> int:
    """The bytes that a forward pass keeps for its backward pass, each storage once."""
    storages: dict[int, int] = {}
    held: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        held.append(tensor)  # or its place in memory would be given to another
        return tensor

    for parameter in module.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        subject.ask(module, x)
    return sum(storages.values())


def _timed(subject: Subject, module: nn.Module, longest: int) -> dict[int, float]:
    """The best of a few calls at each length, doubling until the time is spent."""
    timed: dict[int, float] = {}
    whole, n, start = Whole(subject, module), 64, time.perf_counter()
    n = min(n, max(longest // 8, 1))
    while time.perf_counter() - start < 2 * SECONDS and n <= 1024:
        try:
            x = _input(subject, module, n)
            takes = []
            for _ in range(4):
                before = time.perf_counter()
                with torch.no_grad():
                    whole(x)
                takes.append(time.perf_counter() - before)
                if time.perf_counter() - start > 3 * SECONDS:
                    break
        except REFUSALS:
            break
        timed[n] = min(takes)
        n *= 2
    return timed


def _slope(timed: dict[int, float]) -> tuple[float | None, float | None]:
    """The slope of log time over log length by least squares, and half of its 95 % interval."""
    points = [(math.log(n), math.log(one)) for n, one in timed.items()][-5:]
    if len(points) < 3 or any(a[0] == b[0] for a, b in pairwise(points)):
        return None, None
    mean_x, mean_y = (sum(one[axis] for one in points) / len(points) for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    left = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    free = len(points) - 2
    return slope, STUDENT[free] * math.sqrt(left / free / spread)


PROBE = Probe(
    code="growth",
    promise="cost:n^k",
    family="cost",
    says="Its cost grows with the length no faster than promised.",
    cause="a product in the wrong order, (q k) v instead of q (k v), or a mask of all pairs in what should be linear",
    example="attnlab audit tests/museum/linear_in_name.py says: its operations grow as n^2.00, the memory of training"
    " as n^2.00, counted up to 768 tokens; measured time as n^1.05 ± 1.33; promised was n^1",
    look=look,
    meant="more than was meant, if it was to be cheaper",
)
