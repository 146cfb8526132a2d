"""What can be shown here? Width, colors and letters of the terminal; text and JSON leave through this file alone."""

import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import typer

STYLES = {"bold": "1", "dim": "2", "cell": "34", "alarm": "31", "good": "32"}
PAINT = re.compile(r"\x1b\[\d+m")
NOBODY_LISTENS = 141  # what a shell says of a program whose reader went away
WIDEST = 120  # longer lines are hard to read, however wide the window

# What an encoding without Greek letters and signs is told instead; see `Screen.spelled`.
SIGNS = {
    "√": "sqrt ",
    "Σ": "sum",
    "·": "*",
    "×": "x",
    "⊙": "*",
    "≤": "<=",
    "≥": ">=",
    "‖": "||",
    "∂": "d",
    "∞": "inf",
    "⌊": "floor(",
    "⌋": ")",
    "—": "-",
    "→": "->",
    "←": "<-",
    "…": "...",
}


@dataclass(frozen=True)
class Screen:
    """Where the words go."""

    width: int = 80
    colors: bool = False
    encoding: str = "utf-8"

    @property
    def unicode(self) -> bool:
        return self.can("·░▒▓█×")

    def can(self, text: str) -> bool:
        try:
            text.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self.colors and text else text

    def spelled(self, text: str) -> str:
        """The text with signs that the encoding can write."""
        if self.can(text):
            return text
        return "".join(sign if self.can(sign) else _spelled(sign) for sign in text.replace("√(", "sqrt("))

    def beside(self, left: str, texts: Iterable[str], *, indent: int, taken: int) -> list[str]:
        """`left` in a column of `taken`, the texts wrapped below each other at its right."""
        room = max(self.width - indent - taken, 20)
        rows = [line for text in texts if text for line in self.wrapped(text, room)]
        if len(bare(left)) >= taken:
            return [" " * indent + left, *(" " * (indent + taken) + row for row in rows)]
        names = [left + " " * (taken - len(bare(left))), *[" " * taken] * len(rows)]
        return [(" " * indent + name + row).rstrip() for name, row in zip(names, rows or [""], strict=False)]

    def wrapped(self, text: str, room: int) -> list[str]:
        """Painted as a whole or not at all, so that no line begins in the middle of a color."""
        paint = PAINT.match(text)
        lines = textwrap.wrap(self.spelled(bare(text)), room, break_on_hyphens=False, break_long_words=False)
        return [f"{paint.group()}{line}\x1b[0m" if paint else line for line in lines] or [""]


def bare(text: str) -> str:
    return PAINT.sub("", text)


def screen(stream: Any = None) -> Screen:
    """The screen behind standard output, or behind another stream."""
    out = stream or sys.stdout
    colors = _terminal(out) and os.environ.get("TERM") != "dumb"
    if os.name == "nt":  # an older console shows the codes instead of the colors
        colors = colors and "WT_SESSION" in os.environ
    return Screen(
        width=min(shutil.get_terminal_size((80, 24)).columns, WIDEST),
        colors=(colors or "FORCE_COLOR" in os.environ) and "NO_COLOR" not in os.environ,
        encoding=out.encoding or "ascii",
    )


def say(lines: Iterable[str]) -> None:
    """All of it at once, so that nothing half-written stands before an error."""
    here = screen()
    _write("".join(f"{here.spelled(line)}\n" for line in lines))


def give(schema: str, payload: Mapping[str, Any]) -> None:
    """One JSON object that says what it is; docs/json.md names every field."""
    whole = {"schema": f"attnlab.{schema}", "version": 1, **payload}
    _write(json.dumps(whole, indent=2, ensure_ascii=not screen().can("√"), allow_nan=False) + "\n")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise typer.Exit(NOBODY_LISTENS) from None


def literal(value: Any) -> Any:
    """The value where JSON can say it, else how Python writes it: a reader's default may be anything."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return repr(value)
    return value


def busy(words: str) -> None:
    """A line that stands while somebody waits at a terminal; no words take it away."""
    if _terminal(sys.stderr):
        sys.stderr.write(f"\r\x1b[K{words}")
        sys.stderr.flush()


def _terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _spelled(sign: str) -> str:
    if sign in SIGNS:
        return SIGNS[sign]
    name = unicodedata.name(sign, "")
    if name.startswith("GREEK"):
        return name.rsplit(" ", 1)[-1].lower()
    plain = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    return plain or "?"
