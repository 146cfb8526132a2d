"""What is this mechanism?"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnlab.cli.options import AsJson
from attnlab.cli.screen import Screen, busy, give, literal, say, screen

if TYPE_CHECKING:
    from attnlab.costs import Work
    from attnlab.subjects import Described
    from attnlab.views.cards import Card
    from attnlab.views.maps import Map

TAKEN = 12  # the column of the words at the left


def names(incomplete: str) -> list[tuple[str, str]]:
    """For the shell: the names of the catalog, and Python files where a path begins."""
    from glob import escape, glob

    from attnlab.catalog import CATALOG

    known = [(entry.name, entry.question) for entry in CATALOG if entry.name.startswith(incomplete)]
    return [*known, *((path, "a file") for path in glob(f"{escape(incomplete)}*.py"))]


def answers(incomplete: str) -> list[str]:
    """For the shell: question= first, then the names that answer it."""
    from attnlab.catalog import CATALOG, QUESTIONS

    question, sign, _ = incomplete.partition("=")
    if not sign:
        return [f"{name}=" for name in QUESTIONS if name.startswith(question)]
    every = (f"{question}={entry.name}" for entry in CATALOG if entry.question == question)
    return [text for text in every if text.startswith(incomplete)]


def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help='A name, a part with settings as in "window(last=16)", or file.py:name.',
            autocompletion=names,
        ),
    ],
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="QUESTION=VALUE", help="What answers a further question.", autocompletion=answers
        ),
    ] = None,
    d_model: Annotated[int, typer.Option(min=1, metavar="N", help="Width of the vectors.")] = 256,
    n_heads: Annotated[int, typer.Option(min=1, metavar="N", help="Heads that share the width.")] = 8,
    length: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of a run.")] = 128,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at once.")] = 8,
    draw: Annotated[int, typer.Option(min=0, max=64, metavar="N", help="Tokens of the drawing; 0: none.")] = 12,
    time: Annotated[bool, typer.Option("--time/--no-time", help="Measure which path is fast here.")] = True,
    as_json: AsJson = False,
) -> None:
    """What is this? Its formula, its promises, its cost, its fastest path, and a drawing of who looks where."""
    if time:
        busy(f"measuring {what} …")
    try:
        with redirect_stdout(sys.stderr):  # what a file of somebody's prints is not our answer
            from attnlab.subjects import Size
            from attnlab.views.cards import card

            size = Size(d_model=d_model, n_heads=n_heads, length=length)
            shown = card(what, more or (), size=size, batch=batch, drawn=draw, timed=time)
    finally:
        busy("")
    if as_json:
        return give("show", _payload(shown))
    return say(_lines(shown, screen()))


def _payload(shown: "Card") -> dict[str, Any]:
    from dataclasses import asdict

    def work(of: "Work") -> dict[str, int]:
        return {"products": of.products, "rest": of.rest, "total": of.total}

    return {
        "what": shown.what,
        "variant": shown.variant,
        "parts": [
            asdict(part) | {"settings": [one._asdict() | {"value": literal(one.value)} for one in part.settings]}
            for part in shown.parts
        ],
        "size": asdict(shown.size) | {"batch": shown.batch},
        "costs": {
            "parameters": shown.costs.parameters,
            "forward": work(shown.costs.forward),
            "training": work(shown.costs.training),
            "guessed": shown.costs.guessed,
        },
        "timings": [timing._asdict() for timing in shown.timings],
        "threads": shown.threads,
        "maps": [asdict(one) for one in shown.maps],
        "notes": shown.notes,
    }


def _lines(shown: "Card", here: Screen) -> Iterator[str]:
    shared = [promise for promise in _kept(shown.parts[0]) if all(promise in _kept(part) for part in shown.parts)]
    for part in shown.parts:
        yield from _part(part, shared if len(shown.parts) > 1 else [], here)
        yield ""
    if len(shown.parts) > 1 and shared:
        yield here.paint("all of them promise", "bold")
        yield from (f"  {line}" for line in here.wrapped(", ".join(shared), here.width - 2))
        yield ""
    yield from _costs(shown, here)
    if shown.timings:
        yield ""
        yield from _timings(shown, here)
    if shown.maps:
        yield ""
        yield from drawing(shown.maps, here)
    for note in shown.notes:
        yield from here.beside("note:", [note], indent=0, taken=6)


def _kept(part: "Described") -> list[str]:
    return [promise for promise in part.promises if promise not in part.breaks]


def _part(part: "Described", shared: list[str], here: Screen) -> Iterator[str]:
    from attnlab.catalog import QUESTIONS

    yield f"{here.paint(part.written, 'bold')} answers {part.question}: {QUESTIONS[part.question]}"
    yield from _rows(
        here,
        formula=part.formula or "none; the first line of its docstring would stand here",
        settings=", ".join(f"{setting.name}={setting.value!r}" for setting in part.settings),
        brings=", ".join(
            f"a {question} of its own" if ":" in written else f"{question} = {written}"
            for question, written in part.brings.items()
        ),
        promises=", ".join(promise for promise in _kept(part) if promise not in shared),
        breaks=here.paint(", ".join(part.breaks), "alarm"),
        source=part.source,
    )


def _costs(shown: "Card", here: Screen) -> Iterator[str]:
    size, costs = shown.size, shown.costs
    tokens = f"{shown.batch} × {size.length} tokens"
    yield here.paint(f"cost at d_model={size.d_model}, n_heads={size.n_heads}, {tokens}", "bold")
    yield from _rows(
        here,
        parameters=f"{costs.parameters:,}",
        forward=f"{_flops(costs.forward.total)}, {_flops(costs.forward.products)} of it in matrix products",
        training=f"{_flops(costs.training.total)}, forwards and backwards",
        guessed=", ".join(costs.guessed),
    )


def _timings(shown: "Card", here: Screen) -> Iterator[str]:
    threads = f"{shown.threads} thread{'s' if shown.threads > 1 else ''}"
    tokens = f"{shown.batch} × {shown.size.length} tokens"
    yield here.paint(f"which path is fast here, on {threads}, for {tokens}", "bold")
    measured = [timing for timing in shown.timings if timing.milliseconds is not None]
    for place, timing in enumerate(measured):
        line = f"  {timing.path:<10}{timing.precision:<10}{timing.milliseconds:9.2f} ms"
        yield here.paint(f"{line}   the fastest", "good") if place == 0 and len(measured) > 1 else line
    for timing in shown.timings:
        if timing.milliseconds is None:
            way = f"{timing.path:<10}{timing.precision}" if timing.precision else timing.path
            yield from here.beside(way, [f"no: {timing.refused}"], indent=2, taken=20 if timing.precision else 10)


def _rows(here: Screen, **rows: str) -> Iterator[str]:
    for name, text in rows.items():
        if text:
            yield from here.beside(here.paint(name, "dim"), [text], indent=2, taken=TAKEN)


def _flops(count: int) -> str:
    for power, unit in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if count >= 10**power:
            return f"{count / 10**power:.3g} {unit}FLOP"
    return f"{count} FLOP"


def drawing(maps: Iterable["Map"], here: Screen) -> list[str]:
    """The maps as far as they fit beside each other, and what their signs mean."""
    from attnlab.views.draw.terminal import Pen, draw

    drawn = list(maps)
    nothing, most, hidden = "·█×" if here.unicode else ".#x"
    legend = f"rows ask, columns answer; {nothing} nothing, {most} the most of its row"
    leaks = f", {hidden} heard, yet hidden" if any(one.leaks for one in drawn) else ""
    lines = draw(drawn, Pen(width=here.width, unicode=here.unicode, paint=here.paint))
    return [*lines, *here.wrapped(here.paint(legend + leaks, "dim"), here.width)]
