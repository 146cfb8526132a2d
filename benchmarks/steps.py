"""What does a variant cost beside plain attention? The training step of the decoder, measured in turns.

    python benchmarks/steps.py                       every entry, writes its table into benchmarks/RESULTS.md
    python benchmarks/steps.py alibi t5 --rounds 15  some of them, printed alone; with --write their rows are replaced

A step is forward, loss, backward and AdamW on one batch, without a loop around it. Each entry is measured against plain
attention on the same kind of path (explicit against explicit, fused against fused), in turns in one process, and the
ratio is the median over the rounds of each pair's own ratio.
"""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch.nn import functional as F

from attnlab.catalog import CATALOG, NAMES, Entry
from attnlab.errors import Refused
from attnlab.subjects import decoder

sys.path.insert(0, str(Path(__file__).parent))
from results import machine, replace_rows, write_section

VOCAB, BATCH, LENGTHS = 256, 8, (128, 512)
LIMIT = 1.3
PATIENCE = 15.0  # seconds
# One score product plus a bias, a mask or a table: what may cost at most 1.3 times plain attention.
LIMITED = {
    *("shared-qk", "shared-qv", "shared-kv", "shared-qkv", "grouped", "multi-query"),
    *(
        "none",
        "learned",
        "sinusoidal",
        "sinusoidal-source",
        "sinusoidal-scaled",
        "alibi",
        "alibi-symmetric",
        "t5",
        "relative",
    ),
    *("dot", "synthesizer", "synthesizer-per-head", "synthesizer-random"),
    *("everything", "window", "prefix", "strided", "blockwise", "documents", "padding"),
    *(
        "concatenate",
        "shuffle",
        "shuffle-fixed",
        "shift",
        "reweight-token",
        "reweight-sequence",
        "reweight-batch",
        "gated",
    ),
}


class Row(NamedTuple):
    """One entry at one length: its ratios, and the time of a step on its fastest path."""

    name: str
    length: int
    explicit: float
    fused: float | None
    to_fastest: float
    milliseconds: float


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("names", nargs="*", help="catalog names; every entry when none is given")
    words.add_argument("--rounds", type=int, default=7)
    words.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    words.add_argument("--write", action="store_true", help="replace the rows of these names in RESULTS.md")
    words.add_argument("--precision", choices=("bfloat16", "float32"), default=None)
    chosen = words.parse_args()
    precision = chosen.precision or ("bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32")
    entries = [NAMES[name] for name in chosen.names] or list(CATALOG)
    rows = []
    for length in chosen.lengths:
        plain = {path: step(NAMES["attention"], length, path, precision) for path in ("explicit", "fused")}
        slower = ratio(plain["explicit"], plain["fused"], 4 * chosen.rounds)[0]
        behind = {"explicit": max(slower, 1.0), "fused": max(1 / slower, 1.0)}
        for entry in entries:
            row = measured(entry, length, plain, behind, precision, chosen.rounds)
            rows.append(row)
            print(line(row), flush=True)
    over = [row for row in rows if row.name in LIMITED and max(row.explicit, row.fused or 0) > LIMIT]
    print(f"over {LIMIT}: {', '.join(f'{row.name} at {row.length}' for row in over) or 'none'}")
    if not chosen.names:
        write_section("Training steps", table(rows, precision, chosen.rounds))
    elif chosen.write:
        replace_rows(body(rows))
    return 1 if over else 0


def step(entry: Entry, length: int, path: str, precision: str) -> Callable[[], None]:
    """One training step of the 4-layer, 8-head, 256-wide decoder with the entry in every layer."""
    model = decoder(vocab=VOCAB, size="small", length=length, path=path, **{entry.question: entry.name})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(VOCAB, (BATCH, length + 1), generator=torch.Generator().manual_seed(0))

    def go() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(ids[:, :-1])
        F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return go


def measured(
    entry: Entry,
    length: int,
    plain: dict[str, Callable[[], None]],
    behind: dict[str, float],
    precision: str,
    rounds: int,
) -> Row:
    """`behind` says how many times the fastest plain path each plain path takes."""
    own = {"explicit": step(entry, length, "explicit", precision)}
    with suppress(Refused):
        own["fused"] = step(entry, length, "fused", precision)
    found = {path: ratio(go, plain[path], rounds) for path, go in own.items()}
    to_fastest, milliseconds = min((times * behind[path], spent) for path, (times, spent) in found.items())
    return Row(
        name=entry.name,
        length=length,
        explicit=found["explicit"][0],
        fused=found["fused"][0] if "fused" in found else None,
        to_fastest=to_fastest,
        milliseconds=milliseconds,
    )


def ratio(go: Callable[[], None], other: Callable[[], None], rounds: int) -> tuple[float, float]:
    """The median of go / other over rounds in turns, and the median time of go in milliseconds.

    Whoever goes first changes from round to round; what takes very long is measured less often.
    """
    timed(go), timed(other)
    pairs: list[tuple[float, float]] = []
    until = time.perf_counter() + PATIENCE
    while len(pairs) < rounds and (len(pairs) < 3 or time.perf_counter() < until):
        if len(pairs) % 2:
            pairs.append((timed(go), timed(other)))
        else:
            other_took = timed(other)
            pairs.append((timed(go), other_took))
    return median(a / b for a, b in pairs), 1e3 * median(a for a, _ in pairs)


def timed(go: Callable[[], None]) -> float:
    begun = time.perf_counter()
    go()
    return time.perf_counter() - begun


def line(row: Row) -> str:
    fused = f"{row.fused:5.2f}" if row.fused is not None else "    –"
    ratios = f"explicit {row.explicit:5.2f}  fused {fused}  to fastest plain {row.to_fastest:6.2f}"
    return f"{row.name:34}{row.length:5}  {ratios}"


def table(rows: list[Row], precision: str, rounds: int) -> str:
    lengths = sorted({row.length for row in rows})
    head = "| entry | " + " | ".join(f"explicit {n} | fused {n} | to fastest {n} | ms {n}" for n in lengths) + " |"
    lines = [
        f"`python benchmarks/steps.py`: decoder of 4 layers, 8 heads, 256 wide, vocabulary {VOCAB}, batch {BATCH},",
        f"{precision}, {torch.get_num_threads()} threads, dropout 0; medians of {rounds} rounds in turns; {machine()}.",
        "",
        "Ratio to plain attention on the same kind of path, then the best path's ratio to the fastest plain path and",
        f"its time. Entries in **bold** are one score product plus a bias, a mask or a table, and may cost {LIMIT}.",
        "",
        head,
        "|---" * (1 + 4 * len(lengths)) + "|",
    ]
    return "\n".join([*lines, *body(rows)])


def body(rows: list[Row]) -> list[str]:
    """A line of the table for each entry."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    lines = []
    for name, measured_at in by_name.items():
        cells = []
        for row in sorted(measured_at, key=lambda row: row.length):
            fused = f"{row.fused:.2f}" if row.fused is not None else "–"
            cells.append(f"{row.explicit:.2f} | {fused} | {row.to_fastest:.2f} | {row.milliseconds:.0f}")
        shown = f"**{name}**" if name in LIMITED else name
        lines.append(f"| {shown} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
