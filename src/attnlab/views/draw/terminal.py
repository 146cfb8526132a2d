"""How does a map look in text? Shades of blocks, or of letters where the terminal knows no blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil

from attnlab.views.maps import Map

BLOCKS, LETTERS = "·░▒▓█", ".:+*#"
GAP = "   "


@dataclass(frozen=True)
class Pen:
    """What the terminal can show."""

    width: int = 80
    unicode: bool = True
    paint: Callable[[str, str], str] = lambda text, style: text
    """The text in a style: "bold", "dim", "cell" or "alarm"."""


def draw(maps: Sequence[Map], pen: Pen) -> list[str]:
    """The lines of the maps, side by side as far as the width goes."""
    lines: list[str] = []
    beside: list[list[tuple[str, int]]] = []
    for panel in (_panel(one, pen) for one in maps):
        if beside and sum(_width(other) + len(GAP) for other in beside) + _width(panel) > pen.width:
            lines += [*_beside(beside), ""]
            beside = []
        beside.append(panel)
    return lines + _beside(beside)


def level(value: float | None, largest: float, levels: int = 4) -> int:
    """0 for nothing, else 1 to `levels` for the share of the largest: what is not nothing never looks like it."""
    if value is None:
        return levels
    return max(1, ceil(levels * abs(value) / largest - 1e-9)) if value else 0


def largest(row: Sequence[float | None]) -> float:
    return max((abs(value) for value in row if value is not None), default=0.0) or 1.0


def _panel(one: Map, pen: Pen) -> list[tuple[str, int]]:
    """Each line with the width it has on the screen: paint takes none."""
    margin = max((len(name) for name in one.rows), default=0) + 1
    wide = 2 if margin + 2 * len(one.columns) <= pen.width else 1
    shades, alarm = (BLOCKS, "×") if pen.unicode else (LETTERS, "x")
    leaks = set(one.leaks)

    def cell(i: int, j: int, top: float) -> str:
        value = one.values[i][j]
        if value is None:
            return pen.paint("?" * wide, "alarm")
        if (i, j) in leaks:
            return pen.paint(alarm * wide, "alarm")
        shade = shades[level(value, top)]
        return pen.paint(f"{shade:>{wide}}", "dim") if not value else pen.paint(shade * wide, "cell")

    lines = [(pen.paint(title, "bold"), len(title)) for title in [one.title] if title]
    head = " " * margin + _scale(one.columns, wide)
    lines.append((pen.paint(head, "dim"), len(head)))
    for i, name in enumerate(one.rows):
        top = largest(one.values[i])
        row = "".join(cell(i, j, top) for j in range(len(one.columns)))
        lines.append((f"{pen.paint(f'{name:>{margin - 1}}', 'dim')} {row}", margin + wide * len(one.columns)))
    return lines


def _scale(names: Sequence[str], wide: int) -> str:
    """The names of the columns; where they are too close, of every fifth."""
    if all(len(name) < wide for name in names):
        return "".join(f"{name:>{wide}}" for name in names)
    line = ""
    for place in range(0, len(names), 5):
        name = f"{names[place]:>{wide}}"
        if wide * place + len(name) <= wide * len(names):
            line = f"{line:<{wide * place}}{name}"
    return f"{line:<{wide * len(names)}}"


def _width(panel: list[tuple[str, int]]) -> int:
    return max(width for _, width in panel)


def _beside(panels: list[list[tuple[str, int]]]) -> list[str]:
    widths = [_width(panel) for panel in panels]
    rows = zip_longest(*panels, fillvalue=("", 0))
    return [
        GAP.join(text + " " * (width - taken) for (text, taken), width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
