"""Which lengths does it take?"""

import time

import torch
from torch import nn

from attnlab.audits.measure import dtype_of
from attnlab.audits.probe import Broke, Held, Outcome, Probe
from attnlab.subjects.files import in_one_line
from attnlab.subjects.subject import Subject

SMALL = (1, 2, 3, 4, 5, 7, 8)
LONGEST = 2048
SECONDS = 0.25


def look(subject: Subject) -> Outcome:
    module = subject.build(0, dtype=torch.float32)
    full = subject.sizes.length
    lengths = sorted({*SMALL, full - 1, full, full + 1, 2 * full, 2 * full + 1})
    lengths += [full * 2**power for power in range(2, 20) if lengths[-1] < full * 2**power <= LONGEST]
    taken: list[int] = []
    refused: dict[int, str] = {}
    start = time.perf_counter()
    for n in lengths:
        said = _said(subject, module, n)
        if said is None:
            taken.append(n)
        else:
            refused[n] = said
        if refused and n > 2 * full and len(refused) > 1:
            break
        if time.perf_counter() - start > SECONDS:
            break
    if not refused:
        return Held(f"it takes every length that was tried, up to {max(taken):,} tokens", {"longest": max(taken)})
    if not taken:
        raise RuntimeError(next(iter(refused.values())))
    longest, least = max(taken), min(refused)
    above = [n for n in refused if n > longest]
    if above:
        longest = _between(subject, module, longest, min(above))
        refused[longest + 1] = _said(subject, module, longest + 1) or refused[min(above)]
        least = min(least, longest + 1)
    small = sorted(n for n in refused if n <= longest)
    why = refused[least]
    evidence = {"longest": longest, "refused": sorted(refused), "said": why}
    if small:
        some = ", ".join(str(n) for n in small[:6])
        return Broke(f"it takes no {some} tokens: {why}; the longest it took is {longest:,}", evidence)
    return Broke(f"it takes {longest:,} tokens and no more: {why}", evidence)


def _said(subject: Subject, module: nn.Module, n: int) -> str | None:
    """Why it takes no n tokens; None where it does."""
    try:
        with torch.no_grad():
            y = subject.ask(module, subject.give(n, batch=1, dtype=dtype_of(module)))
    except MemoryError:
        raise
    except Exception as error:
        return in_one_line(error)
    return None if bool(y.isfinite().all()) else "its output is not finite"


def _between(subject: Subject, module: nn.Module, taken: int, refused: int) -> int:
    """The longest that it takes, by halving."""
    while refused - taken > 1:
        middle = (taken + refused) // 2
        if _said(subject, module, middle) is None:
            taken = middle
        else:
            refused = middle
    return taken


PROBE = Probe(
    code="longest",
    promise="any-length",
    family="cost",
    says="It takes input of any length.",
    cause="a table of positions, or a mask, that was made for one length",
    example="attnlab audit tests/museum/positions_not_cut.py says: it takes no 1, 2, 3, 4, 5, 7 tokens: Refused: for "
    "(1, 1, 16) it returned (1, 16, 16); an audit needs an output for every token; the longest it took is 16",
    look=look,
    meant="a limit, if longer input is to come",
)
