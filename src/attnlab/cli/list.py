"""What is there?"""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from attnlab.cli.options import AsJson
from attnlab.cli.screen import Screen, give, say, screen

LONGEST = 18  # a longer name has a line of its own


def questions(incomplete: str) -> list[tuple[str, str]]:
    """For the shell, which completes them."""
    from attnlab.catalog import QUESTIONS

    return [(name, asks) for name, asks in QUESTIONS.items() if name.startswith(incomplete)]


def list_(
    question: Annotated[
        str | None,
        typer.Option(metavar="QUESTION", help="Only what answers this one, as in score.", autocompletion=questions),
    ] = None,
    faulty: Annotated[
        bool | None,
        typer.Option("--faulty/--sound", help="Only what is known to break a promise, or only the rest."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What is there? Every mechanism with its formula, grouped by the question it answers."""
    from attnlab.catalog import CATALOG, QUESTIONS
    from attnlab.errors import Unknown

    if question is not None and question not in QUESTIONS:
        raise Unknown("question", question, QUESTIONS)
    entries = [
        entry
        for entry in CATALOG
        if question in (None, entry.question) and (faulty is None or bool(entry.breaks) is faulty)
    ]
    asked = {name: asks for name, asks in QUESTIONS.items() if question in (None, name)}
    if as_json:
        named = [{"name": name, "asks": asks} for name, asks in asked.items()]
        return give("list", {"questions": named, "entries": [_entry(entry) for entry in entries]})
    return say(_lines(entries, asked, screen()))


def _entry(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.name,
        "question": entry.question,
        "formula": entry.formula,
        "source": entry.source,
        "promises": entry.promises,
        "breaks": entry.breaks,
        "brings": entry.brings,
        "wraps": entry.wraps,
    }


def _lines(entries: list[Any], asked: dict[str, str], here: Screen) -> Iterator[str]:
    groups = [(name, asks, [entry for entry in entries if entry.question == name]) for name, asks in asked.items()]
    for place, (name, asks, group) in enumerate(group for group in groups if group[2]):
        if place:
            yield ""
        yield f"{here.paint(name, 'bold')}: {asks}"
        taken = min(max(len(entry.name) for entry in group), LONGEST) + 2
        for entry in group:
            left = here.paint(entry.name, "alarm" if entry.breaks else "cell")
            breaks = here.paint(f"breaks {', '.join(entry.breaks)}", "alarm") if entry.breaks else ""
            source = here.paint(entry.source, "dim")
            yield from here.beside(left, [entry.formula, breaks, source], indent=2, taken=taken)
