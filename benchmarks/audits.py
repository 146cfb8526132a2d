"""Does every mechanism of the catalog keep its promises? The full audit of each, with the time it takes.

python benchmarks/audits.py                writes its table into benchmarks/RESULTS.md
python benchmarks/audits.py cosine gru     some of them, printed alone
"""

import argparse
import sys
import time
from pathlib import Path

from attnlab.audits.audit import audit
from attnlab.catalog import CATALOG, NAMES, Entry

sys.path.insert(0, str(Path(__file__).parent))
from results import machine, write_section

SLOWEST, QUICKEST = 10.0, 2.0  # seconds, after import


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("names", nargs="*", help="catalog names; every entry when none is given")
    chosen = words.parse_args()
    rows = [audited(NAMES[name]) for name in chosen.names or NAMES]
    surprises = [name for name, *_, wrong in rows if wrong]
    slow = [name for name, full, quick, *_ in rows if full > SLOWEST or quick > QUICKEST]
    print(f"surprises: {', '.join(surprises) or 'none'}; too slow: {', '.join(slow) or 'none'}")
    if not chosen.names:
        lines = [f"| {name} | {full:.1f} | {quick:.1f} | {said} |" for name, full, quick, said, _ in rows]
        head = f"`python benchmarks/audits.py`: {len(CATALOG)} entries, seconds after import; {machine()}.\n"
        table = ["| entry | full | quick | the card |", "|---|---|---|---|", *lines]
        write_section("Audit of the catalog", "\n".join([head, *table]))
    return 1 if surprises or slow else 0


def audited(entry: Entry) -> tuple[str, float, float, str, bool]:
    """Its name, the seconds of the full and the quick audit, what the card says, and whether that is a surprise."""
    full, took = timed(entry.name, quick=False)
    _, brief = timed(entry.name, quick=True)
    broken = sorted({one.promise for one in full.broken})
    errors = [one.code for one in full.findings if one.status == "error"]
    kept = sum(one.status == "kept" for one in full.findings)
    said = f"{kept} kept" + (f"; breaks {', '.join(broken)}" if broken else "")
    said += f"; errors {', '.join(errors)}" if errors else ""
    wrong = set(broken) != set(entry.breaks) or bool(errors)
    print(f"{entry.name:34}{took:6.1f}{brief:6.1f}  {said}{'  (a surprise)' if wrong else ''}", flush=True)
    return entry.name, took, brief, said, wrong


def timed(name: str, *, quick: bool):
    begun = time.perf_counter()
    return audit(name, quick=quick), time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
