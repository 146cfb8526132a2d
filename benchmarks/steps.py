"""What does a variant cost beside plain attention? The training step of the decoder, measured in turns.

    python benchmarks/steps.py                       every entry, writes its table into benchmarks/RESULTS.md
    python benchmarks/steps.py alibi t5 --rounds 15  some of them, printed alone

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
from results import machine, write_section

VOCAB, BATCH, LENGTHS = 256, 8, (128, 512)
LIMIT = 1.3
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
    words.add_argument("--rounds", type=int, default=9)
    words.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    words.add_argument("--precision", choices=("bfloat16", "float32"), default=None)
    chosen = words.parse_args()
    precision = chosen.precision or ("bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32")
    entries = [NAMES[name] for name in chosen.names] or list(CATALOG)
    rows = []
    for length in chosen.lengths:
        plain = {path: step(NAMES["attention"], length, path, precision) for path in ("explicit", "fused")}
        fastest = min(plain.values(), key=lambda go: timed(go, 5))
        for entry in entries:
            row = measured(entry, length, plain, fastest, precision, chosen.rounds)
            rows.append(row)
            print(line(row), flush=True)
    over = [row for row in rows if row.name in LIMITED and max(row.explicit, row.fused or 0) > LIMIT]
    print(f"over {LIMIT}: {', '.join(f'{row.name} at {row.length}' for row in over) or 'none'}")
    if not chosen.names:
        write_section("Training steps", table(rows, precision, chosen.rounds))
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
    fastest: Callable[[], None],
    precision: str,
    rounds: int,
) -> Row:
    own = {"explicit": step(entry, length, "explicit", precision)}
    with suppress(Refused):
        own["fused"] = step(entry, length, "fused", precision)
    ratios = {path: ratio(go, plain[path], rounds) for path, go in own.items()}
    best = min(own, key=lambda path: ratios[path][1])
    to_fastest, milliseconds = ratio(own[best], fastest, rounds)
    fused = ratios["fused"][0] if "fused" in ratios and entry.question != "mixer" else None
    return Row(entry.name, length, ratios["explicit"][0], fused, to_fastest, milliseconds)


def ratio(go: Callable[[], None], other: Callable[[], None], rounds: int) -> tuple[float, float]:
    """The median of go / other over rounds in turns, and the median time of go in milliseconds."""
    timed(go, 1), timed(other, 1)
    pairs = []
    for turn in range(rounds):
        a, b = (timed(go, 1), timed(other, 1)) if turn % 2 else reversed((timed(other, 1), timed(go, 1)))
        pairs.append((a, b))
    return median(a / b for a, b in pairs), 1e3 * median(a for a, _ in pairs)


def timed(go: Callable[[], None], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        go()
    return (time.perf_counter() - begun) / times


def line(row: Row) -> str:
    fused = f"{row.fused:5.2f}" if row.fused is not None else "    –"
    ratios = f"explicit {row.explicit:5.2f}  fused {fused}  to fastest plain {row.to_fastest:6.2f}"
    return f"{row.name:34}{row.length:5}  {ratios}"


def table(rows: list[Row], precision: str, rounds: int) -> str:
    by_name: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, {})[row.length] = row
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
    for name, at in by_name.items():
        cells = []
        for n in lengths:
            row = at[n]
            fused = f"{row.fused:.2f}" if row.fused is not None else "–"
            cells.append(f"{row.explicit:.2f} | {fused} | {row.to_fastest:.2f} | {row.milliseconds:.0f}")
        shown = f"**{name}**" if name in LIMITED else name
        lines.append(f"| {shown} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
