"""How do maps look on a page? Small squares of one hue, readable on light and on dark, the same bytes every time."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from attnlab.views.draw.terminal import largest, level
from attnlab.views.maps import Map

LEVELS = 8
CELL, EDGE = 11, 10  # a square with its gap, and without
MARGIN, BETWEEN = 16, 30
HEAD, CAPTION, LINE = 22, 30, 16
MOST = 440  # the side of a map that stands alone

# Gray, blue and vermilion are told apart on white and on near-black, and by eyes that see no red or no green.
STYLE = """
text { font-family: ui-sans-serif, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #767d86 }
.title { font-size: 13px; font-weight: 600 }
.note { font-size: 11px }
.alarm { fill: #d9480f }
.l0 { fill: #8b929c; fill-opacity: .16 }
.leak { fill: #e8590c; fill-opacity: .9 }
.cross { stroke: #fff; stroke-width: 1.2; stroke-linecap: round }
""" + "".join(f".l{n} {{ fill: #2f7ed8; fill-opacity: {0.2 + 0.8 * n / LEVELS:.2f} }}\n" for n in range(1, LEVELS + 1))


def svg(maps: Sequence[Map], *, columns: int = 5, title: str = "", notes: Sequence[str] = ()) -> str:
    """The maps in rows, each with its title above and its caption below; notes and the scale at the foot."""
    side = max((CELL * max(len(one.rows), len(one.columns)) for one in maps), default=0)
    across, down = side + BETWEEN, HEAD + side + CAPTION
    rows = [maps[start : start + columns] for start in range(0, len(maps), columns)]
    width = 2 * MARGIN + across * min(columns, len(maps)) - BETWEEN
    height = 2 * MARGIN + down * len(rows) + LINE * max(len(notes), 1)
    drawn = [
        _map(one, MARGIN + place * across, MARGIN + row * down)
        for row, some in enumerate(rows)
        for place, one in enumerate(some)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            *drawn,
            _legend(notes, width, MARGIN + down * len(rows)),
            "</svg>\n",
        ]
    )


def _map(one: Map, left: int, top: int) -> str:
    """One path for each shade, since a square of its own for every cell would take ten times the bytes."""
    leaks = set(one.leaks)
    squares: dict[str, list[str]] = {}
    crosses = []
    for i, row in enumerate(one.values):
        loudest = largest(row)
        for j, value in enumerate(row):
            x, y = CELL * j, CELL * i
            shade = "leak" if (i, j) in leaks or value is None else f"l{level(value, loudest, LEVELS)}"
            squares.setdefault(shade, []).append(f"M{x} {y}h{EDGE}v{EDGE}h-{EDGE}z")
            if shade == "leak":
                crosses.append(f"M{x + 3} {y + 3}l4 4m0-4l-4 4")
    body = [f'<path class="{shade}" d="{"".join(paths)}"/>' for shade, paths in sorted(squares.items())]
    body += [f'<path class="cross" d="{"".join(crosses)}"/>'] if crosses else []
    below = CELL * len(one.rows) + 15
    alarm = " alarm" if leaks else ""
    return "\n".join(
        [
            f'<g transform="translate({left} {top})">',
            f'<text class="title{alarm}" y="12">{escape(one.title)}</text>',
            f'<g transform="translate(0 {HEAD})">',
            *body,
            f'<text class="note{alarm}" y="{below}">{escape(one.caption)}</text>' if one.caption else "",
            "</g></g>",
        ]
    )


def labeled(one: Map, *, rows: str, columns: str, title: str = "") -> str:
    """One map alone and large, its rows and columns counted: to be read cell by cell."""
    size = max(MOST // max(len(one.rows), len(one.columns), 1), 4)
    size = min(size, 26)
    left, top = 58, 44
    width = max(left + size * len(one.columns) + MARGIN, 190)
    height = top + size * len(one.rows) + MARGIN
    leaks = set(one.leaks)
    body = []
    for i, row in enumerate(one.values):
        loudest = largest(row)
        for j, value in enumerate(row):
            x, y, gap = left + size * j, top + size * i, max(size // 12, 1)
            hidden = (i, j) in leaks
            shade = "leak" if hidden or value is None else f"l{level(value, loudest, LEVELS)}"
            edge = size - gap
            told = f"{rows} {one.rows[i]}, {columns} {one.columns[j]}: {_told(value)}{', a leak' if hidden else ''}"
            body.append(f'<rect class="{shade}" x="{x}" y="{y}" width="{edge}" height="{edge}"><title>{escape(told)}')
            body.append("</title></rect>")
            if shade == "leak":
                arm, start = edge * 0.4, edge * 0.3
                cross = f"M{x + start:.1f} {y + start:.1f}l{arm:.1f} {arm:.1f}m0-{arm:.1f}l-{arm:.1f} {arm:.1f}"
                body.append(f'<path class="cross" d="{cross}"/>')
    every = 1 if size >= 15 else 5
    for j, name in list(enumerate(one.columns))[::every]:
        body.append(f'<text class="note" x="{left + size * (j + 0.46):.1f}" y="{top - 7}" text-anchor="middle">')
        body.append(f"{escape(name)}</text>")
    for i, name in list(enumerate(one.rows))[::every]:
        body.append(f'<text class="note" x="{left - 8}" y="{top + size * (i + 0.46) + 4:.1f}" text-anchor="end">')
        body.append(f"{escape(name)}</text>")
    body.append(f'<text class="note" x="{left}" y="14">{escape(columns)} →</text>')
    body.append(f'<text class="note" x="0" y="{top + size * 0.46 + 4:.1f}">{escape(rows)}</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">',
            f"<style>{STYLE}</style>",
            *body,
            "</svg>\n",
        ]
    )


def _told(value: float | None) -> str:
    return "not a number" if value is None else f"moved by {value:.2g} of the largest output" if value else "silent"


def _legend(notes: Sequence[str], width: int, top: int) -> str:
    scale = [f'<path class="l{n}" d="M{CELL * n} 0h{EDGE}v{EDGE}h-{EDGE}z"/>' for n in range(LEVELS + 1)]
    start = width - MARGIN - CELL * (LEVELS + 1) - 38
    return "\n".join(
        [
            f'<g transform="translate({MARGIN} {top})">',
            *(f'<text class="note" y="{9 + LINE * line}">{escape(note)}</text>' for line, note in enumerate(notes)),
            f'<g transform="translate({start - MARGIN} 0)">',
            '<text class="note" x="-6" y="9" text-anchor="end">nothing</text>',
            *scale,
            f'<text class="note" x="{CELL * (LEVELS + 1) + 5}" y="9">most</text>',
            "</g></g>",
        ]
    )
