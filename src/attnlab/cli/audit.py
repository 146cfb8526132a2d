"""Does this mechanism keep its promises?"""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnlab.cli.options import AsJson
from attnlab.cli.screen import Screen, busy, give, say, screen
from attnlab.cli.show import answers, drawing, names
from attnlab.errors import BadSetting, LabError, Refused

if TYPE_CHECKING:
    from attnlab.audits.probe import Probe
    from attnlab.records.finding import Finding
    from attnlab.records.report import Report
    from attnlab.views.audit_card import AuditCard

TAKEN = 24  # the column of a code
COLUMNS = ("subject", "ok", "kept", "broken", "sentence")
DRAWN = 24  # tokens; a wider leak is drawn on the page alone


def promised(incomplete: str) -> list[str]:
    """For the shell: what the catalog promises anywhere."""
    from attnlab.catalog import CATALOG

    every = {promise.partition(":")[0] for entry in CATALOG for promise in (*entry.promises, *entry.breaks)}
    return sorted(promise for promise in every if promise.startswith(incomplete))


def audit(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHAT", help="A name, or file.py:name; several are audited in turn.", autocompletion=names
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--as", metavar="KIND", help="What it is: module, language-model, attention, score, normalizer or merge."
        ),
    ] = "",
    arguments: Annotated[
        list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="What its constructor is given besides.")
    ] = None,
    promises: Annotated[
        list[str] | None,
        typer.Option("--promise", metavar="P", help="What it is meant to keep, as in causal.", autocompletion=promised),
    ] = None,
    waived: Annotated[
        list[str] | None, typer.Option("--no-promise", metavar="P", help="What it is not meant to keep.")
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="QUESTION=VALUE", help="What answers a further question.", autocompletion=answers
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the core promises, in two seconds.")] = False,
    as_json: AsJson = False,
    page: Annotated[str, typer.Option("--html", metavar="FILE", help="Write a page with each leak drawn.")] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="As a table, one row each; a crash is a row.")] = False,
    code: Annotated[str, typer.Option("--explain", metavar="CODE", help="Say what a check measures.")] = "",
    staged: Annotated[
        bool, typer.Option("--staged", help="Check the steps of a file that follows the scaffold, one at a time.")
    ] = False,
    swap: Annotated[
        str, typer.Option(metavar="WHAT", help="Put this attention, a name or file.py:name, into a pretrained model.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=0.1, metavar="S", help="Time for each check.")] = 20.0,
    memory: Annotated[float, typer.Option(min=0.1, metavar="GIB", help="Memory for each check.")] = 4.0,
    d_model: Annotated[int, typer.Option(min=1, metavar="N", help="Width of the vectors.")] = 16,
    n_heads: Annotated[int, typer.Option(min=1, metavar="N", help="Heads that share the width.")] = 4,
    length: Annotated[int, typer.Option(min=1, metavar="N", help="Tokens of a whole run.")] = 16,
) -> None:
    """Does it keep its promises? A report card of any mechanism, module or function, also of your own file."""
    if code:
        return _explain(code, as_json)
    listed = list(what or ())
    if not listed:
        raise BadSetting("what shall be audited? Write attnlab audit WHAT, a name or path/to/mine.py:Name")
    if as_csv and as_json:
        raise Refused("--csv and --json are two forms of one answer; choose one")
    if staged and (kind or arguments or promises or waived or more or quick or swap):
        raise Refused("--staged looks at the functions of a file one by one, and takes no promises or arguments")
    target = _target(page) if page else None
    from attnlab.subjects import Size

    settings: dict[str, Any] = {
        "kind": kind,
        "arguments": _arguments(arguments or ()),
        "promises": promises or (),
        "waived": waived or (),
        "more": more or (),
        "swap": swap,
        "quick": quick,
        "seconds": seconds,
        "gibibytes": memory,
        "size": Size(d_model=d_model, n_heads=n_heads, length=length),
    }
    _checked(settings)
    told = _told(listed, settings, staged=staged, alone=len(listed) == 1 and not as_csv)
    if as_csv:
        results = _as_table(told)
    elif as_json:
        results = list(told)
        _as_json(results)
    else:
        results = _as_cards(told)
    if target is not None:
        _keep(target, results)
    raise typer.Exit(_status(results, as_csv=as_csv))


Result = tuple[str, "Report | None", str]
"""WHAT, what was found, and why nothing could be."""


def _told(listed: Sequence[str], settings: dict[str, Any], *, staged: bool, alone: bool) -> Iterator[Result]:
    for place, what in enumerate(listed):
        counted = f"{place + 1}/{len(listed)} " if len(listed) > 1 else ""
        try:
            report = _staged(what, settings) if staged else _audited(what, settings, counted)
        except LabError as error:
            if alone:
                raise
            yield what, None, str(error)
        else:
            yield what, report, ""
        finally:
            busy("")


def _audited(what: str, settings: dict[str, Any], counted: str) -> "Report":
    """With a line of progress while somebody waits at a terminal."""
    from attnlab.audits.audit import audited, chosen, report_of

    codes = [one.code for one in chosen(quick=settings["quick"], promises=settings["promises"])]

    def shown() -> Iterator[Any]:
        busy(f"{counted}{what}: building …")
        for place, word in enumerate(audited(what, **settings)):
            if place < len(codes):
                busy(f"{counted}{what}: {place + 1}/{len(codes)} {codes[place]} …")
            yield word

    return report_of(shown())


def _staged(what: str, settings: dict[str, Any]) -> "Report":
    from attnlab.audits.audit import audited_in_stages, report_of

    busy(f"{what}: stage by stage …")
    return report_of(audited_in_stages(what, seconds=settings["seconds"], gibibytes=settings["gibibytes"]))


def _checked(settings: dict[str, Any]) -> None:
    """What is wrong for every WHAT alike is said once, before any is asked."""
    from attnlab.audits.audit import known
    from attnlab.errors import Unknown
    from attnlab.subjects.found import KINDS

    if settings["kind"] and settings["kind"] not in KINDS:
        raise Unknown("kind", settings["kind"], KINDS)
    for promise in settings["promises"]:
        known(promise)
    for promise in settings["waived"]:
        known(promise, valued=False)


def _arguments(texts: Iterable[str]) -> dict[str, Any]:
    from attnlab.spelling import literal

    given: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier():
            raise BadSetting(f"'{text}' gives no argument; write --arg name=value, as in --arg dropout=0.1")
        given[name] = literal(value)
    return given


def _status(results: Sequence[Result], *, as_csv: bool) -> int:
    """2 tells of what could not be audited; in a table that is a row, and the table says 1."""
    statuses = [report.status if report else 2 for _, report, _ in results]
    worst = max(statuses, default=0)
    return min(worst, 1) if as_csv else worst


# --json


def _as_json(results: Sequence[Result]) -> None:
    if len(results) == 1 and results[0][1] is not None:
        return give("audit", _payload(results[0][1]))
    empty = {
        "kind": "",
        "guess": "",
        "asked": "",
        "promises": [],
        "taken": [],
        "unasked": [],
        "ok": False,
        "findings": [],
    }
    return give(
        "audits",
        {
            "ok": all(report is not None and report.ok for _, report, _ in results),
            "audits": [
                {**(_payload(report) if report else {"subject": what, **empty}), "error": error or None}
                for what, report, error in results
            ],
        },
    )


def _payload(report: "Report") -> dict[str, Any]:
    from dataclasses import asdict

    from attnlab.views.audit_card import plain

    return {
        "subject": report.subject,
        "kind": report.kind,
        "guess": report.guess,
        "asked": report.asked,
        "promises": report.promises,
        "taken": report.taken,
        "unasked": report.unasked,
        "ok": report.ok,
        "findings": [asdict(one) | {"evidence": plain(one.evidence)} for one in report.findings],
    }


# --csv


def _as_table(told: Iterator[Result]) -> list[Result]:
    """Row by row as they come: sixty take minutes."""
    say([",".join(COLUMNS)])
    results = []
    for result in told:
        say([_row(*result)])
        results.append(result)
    return results


def _row(what: str, report: "Report | None", error: str) -> str:
    if report is None:
        cells = [what, "no", "0", "", error.splitlines()[0]]
    else:
        wrong = [*report.broken, *report.failed]
        broken = " ".join(one.code for one in report.broken)
        sentence = wrong[0].sentence if wrong else report.verdict
        cells = [what, "yes" if report.ok else "no", str(len(report.kept)), broken, sentence]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([_inert(cell) for cell in cells])
    return line.getvalue()


def _inert(cell: str) -> str:
    """A spreadsheet would run what begins like a formula, and these words are a stranger's."""
    words = " ".join(cell.split())
    return f"'{words}" if words[:1] in ("=", "+", "-", "@") else words


# The card


def _as_cards(told: Iterator[Result]) -> list[Result]:
    import sys

    from attnlab.views.audit_card import audit_card

    results: list[Result] = []
    for what, report, error in told:
        if report is not None:
            say([*([""] if results else []), *_card(audit_card(report), screen())])
        else:
            print(screen(sys.stderr).spelled(f"attnlab: {what}: {error}"), file=sys.stderr)
        results.append((what, report, error))
    return results


def _card(card: "AuditCard", here: Screen) -> Iterator[str]:
    from attnlab.views.audit_card import next_step, tally

    report = card.report
    yield here.paint(report.subject, "bold")
    rows = {
        "guess": report.guess,
        "promises": ", ".join(card.claimed) or "nothing of its own; claim with --promise causal",
        "as all do": ", ".join(report.taken),
        "asked": here.paint(report.asked, "dim"),
    }
    for name, text in rows.items():
        if text:
            yield from here.beside(here.paint(name, "dim"), [text], indent=2, taken=11)
    for family, findings in card.families:
        yield ""
        yield here.paint(family, "bold")
        for finding in findings:
            yield from _finding(finding, here)
    shown = next((card.leaks[one.code] for one in report.broken if one.code in card.leaks), None)
    if shown is not None and len(shown.rows) <= DRAWN:
        yield ""
        yield from drawing([shown], here)
    yield ""
    verdict = here.paint(report.verdict, "good" if report.ok else "alarm")
    yield from here.wrapped(verdict, here.width)
    if report.unasked:
        yield from here.wrapped(f"not looked at: {', '.join(report.unasked)}", here.width)
    more = next_step(report)
    yield from here.wrapped(f"{tally(report)}.", here.width)
    if more:
        yield f"Next: {more}"


SIGNS = {"kept": "✓", "broken": "✗", "error": "!", "unclaimed": "·", "not-applicable": "·"}
LETTERS = {"kept": "+", "broken": "X", "error": "!", "unclaimed": ".", "not-applicable": "."}
PAINTS = {"kept": "good", "broken": "alarm", "error": "alarm", "unclaimed": "dim", "not-applicable": "dim"}


def _finding(finding: "Finding", here: Screen) -> Iterator[str]:
    from attnlab.views.audit_card import place, said

    paint = PAINTS[finding.status]
    sign = (SIGNS if here.can("".join(SIGNS.values())) else LETTERS)[finding.status]
    left = here.paint(f"{sign} {finding.code}", paint)
    sentence = said(finding)
    told = [sentence if finding.status == "kept" else here.paint(sentence, paint)]
    if finding.status == "broken":
        where = place(finding)
        told += [f"promised: {finding.promise}", f"usually: {finding.cause}" if finding.cause else ""]
        told += [f"where: {where}"] if where else []
    yield from here.beside(left, told, indent=2, taken=TAKEN)


# --explain


def _explain(word: str, as_json: bool) -> None:
    from attnlab.audits.audit import explained, question_of
    from attnlab.views.audit_card import FAMILIES

    probes = explained(word)
    if as_json:
        every = [
            {
                "code": one.code,
                "promise": one.promise,
                "family": one.family,
                "says": one.says,
                "measures": question_of(one),
                "cause": one.cause,
                "example": one.example,
                "quick": one.quick,
                "taken": one.taken,
            }
            for one in probes
        ]
        return give("explanation", {"checks": every})
    return say(line for place, one in enumerate(probes) for line in _explanation(one, place, FAMILIES, screen()))


def _explanation(probe: "Probe", place: int, families: Any, here: Screen) -> Iterator[str]:
    from attnlab.audits.audit import question_of

    if place:
        yield ""
    yield f"{here.paint(probe.code, 'bold')}, of {families.get(probe.family, probe.family)}"
    claimed = "every module is taken to promise it" if probe.taken else f"claimed with --promise {probe.promise}"
    promise = f"{probe.promise}: {claimed}" if probe.promise else "none, it states a fact"
    rows = {
        "says": probe.says,
        "promise": promise,
        "measures": question_of(probe),
        "usually": probe.cause,
        "example": probe.example,
        "asked": "also with --quick" if probe.quick else "in a full audit",
    }
    for name, text in rows.items():
        if text:
            yield from here.beside(here.paint(name, "dim"), [text], indent=2, taken=11)


# --html


def _target(page: str) -> Path:
    """Where the page goes; what forbids it is said before the wait."""
    path = Path(page)
    if path.is_dir():
        raise BadSetting(f"{page} is a folder; name a file in it, as in {path / 'audit.html'}")
    if not path.parent.is_dir():
        raise BadSetting(f"there is no folder {path.parent} to write {path.name} into")
    return path.resolve()


def _keep(path: Path, results: Sequence[Result]) -> None:
    """Whole or not at all: a page that is half written looks like one that was finished."""
    from attnlab.views.audit_card import audit_card
    from attnlab.views.draw.html import html

    cards = [audit_card(report) for _, report, _ in results if report is not None]
    text = html(cards, [(what, error) for what, report, error in results if report is None])
    if path.exists() and not path.is_file():  # a pipe or a device is no file to be replaced
        path.write_text(text, encoding="utf-8")
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
