"""What does a step keep for each token behind it?"""

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.audits.measure import dtype_of
from attnlab.audits.probe import Held, Outcome, Probe, Silent
from attnlab.errors import Refused
from attnlab.subjects.subject import Subject

SHORT, LONG = 6, 12


def look(subject: Subject) -> Outcome:
    module = subject.build(0, dtype=torch.float32)
    try:
        short, long = (_bytes(kept(subject, module, n)) for n in (SHORT, LONG))
    except Refused as error:
        return Silent(str(error))
    per_token = (long - short) / (LONG - SHORT)
    fixed = short - per_token * SHORT
    evidence = {"bytes_per_token": per_token, "bytes_at_start": fixed, "lengths": [SHORT, LONG], "dtype": "float32"}
    if per_token == 0:
        return Held(f"a step keeps {long:,} bytes in float32, however many tokens came before", evidence)
    more = f" and {fixed:,.0f} besides" if fixed > 0 else ""
    return Held(f"a step keeps {per_token:,.0f} bytes for each token in float32{more}", evidence)


def kept(subject: Subject, module: nn.Module, n: int) -> Any:
    """What is kept after n tokens, for one sentence."""
    x = subject.give(n, batch=1, dtype=dtype_of(module))
    with torch.no_grad():
        if callable(start := getattr(module, "start", None)) and callable(step := getattr(module, "step", None)):
            return step(x, start(x))[1]
        asks = "use_cache" in inspect.signature(module.forward).parameters
        if not asks and not hasattr(getattr(module, "config", None), "use_cache"):
            raise Refused("it has no step: nothing to keep between tokens")
        returned = subject.call(module, x)
        past = getattr(returned, "past_key_values", None)
        if past is None and asks:
            given = x if subject.way.batch_first else x.transpose(0, 1)
            returned = module(given, use_cache=True)
            past = getattr(returned, "past_key_values", None)
            if past is None and isinstance(returned, tuple) and len(returned) > 1:
                past = returned[1]
    if past is None:
        raise Refused("it has no step: nothing to keep between tokens")
    return past


def _bytes(held: Any) -> int:
    """The numbers in it, wherever they lie; a whole number is a place, not a memory."""
    found: dict[int, Tensor] = {}
    _gather(held, found, set())
    return sum(one.numel() * one.element_size() for one in found.values())


def _gather(held: Any, found: dict[int, Tensor], seen: set[int]) -> None:
    if id(held) in seen or isinstance(held, nn.Module | str | bytes | torch.dtype | torch.device):
        return
    seen.add(id(held))
    if isinstance(held, Tensor):
        if held.is_floating_point():
            found[id(held)] = held
    elif isinstance(held, dict):
        for one in held.values():
            _gather(one, found, seen)
    elif isinstance(held, list | tuple | set):
        for one in held:
            _gather(one, found, seen)
    elif is_dataclass(held):
        for field in fields(held):
            _gather(getattr(held, field.name), found, seen)
    elif hasattr(held, "__dict__"):
        _gather(vars(held), found, seen)


PROBE = Probe(
    code="cache",
    promise="",
    family="cost",
    says="A fact: the bytes that a step keeps for each token behind it.",
    cause="",
    example="attnlab audit attention says: a step keeps 128 bytes for each token in float32",
    look=look,
)
