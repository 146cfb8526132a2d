"""Does it keep its promises? The findings of an audit by family, and each leak as a map."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from attnlab.records.finding import Finding
from attnlab.records.report import Report, counted
from attnlab.views.maps import Map

FAMILIES = {
    "sees": "what it may see",
    "independence": "what it must not depend on",
    "order": "what order does",
    "weights": "its weights",
    "agreement": "what it agrees with",
    "numbers": "its numbers",
    "learning": "whether it can learn",
    "cost": "what it costs",
}
# What names a place in a module, in the order of a sentence.
PLACES = ("part", "layer", "head", "heads", "parameter", "sentence", "row", "output", "query", "key", "token")


@dataclass(frozen=True, kw_only=True)
class AuditCard:
    """A report, laid out."""

    report: Report
    families: tuple[tuple[str, tuple[Finding, ...]], ...]
    leaks: Mapping[str, Map]
    """By the code of the finding that saw it."""

    @property
    def claimed(self) -> tuple[str, ...]:
        """What it promises beyond what every module is taken to."""
        return tuple(one for one in self.report.promises if one not in self.report.taken)


def audit_card(report: Report) -> AuditCard:
    groups: dict[str, list[Finding]] = {}
    for one in report.findings:
        groups.setdefault(FAMILIES.get(one.family, one.family), []).append(one)
    drawn = ((one.code, leak(one)) for one in report.findings)
    return AuditCard(
        report=report,
        families=tuple((name, tuple(findings)) for name, findings in groups.items()),
        leaks={code: map_ for code, map_ in drawn if map_ is not None},
    )


def leak(finding: Finding) -> Map | None:
    """Which output moved with which token, where the finding measured all of them and saw some that should not."""
    values, pairs = finding.evidence.get("map"), finding.evidence.get("pairs")
    if not values or not pairs or any(len(row) != len(values) for row in values):
        return None
    names = tuple(str(place) for place in range(len(values)))
    known = tuple(
        tuple(value if value is not None and isfinite(value) and value >= 0 else None for value in row)
        for row in values
    )
    return Map(
        title="which output hears which token",
        kind="influence",
        caption=f"{finding.code}: {counted(len(pairs), 'pair')} that should be silent",
        rows=names,
        columns=names,
        values=known,
        leaks=tuple((output, token) for output, token in pairs),
    )


def said(finding: Finding) -> str:
    """Its sentence, as it stands on a card."""
    return f"not applicable, because {finding.sentence}" if finding.status == "not-applicable" else finding.sentence


def place(finding: Finding) -> str:
    """Where it is broken, as far as its sentence does not say: `layer 1, head 2`, and how many pairs there are."""
    known = {name: _listed(finding.evidence[name]) for name in PLACES if name in finding.evidence}
    if isinstance(finding.evidence.get("heads"), int):  # how many there are
        del known["heads"]
    words = [f"{name} {value}" for name, value in known.items() if value]
    pairs = finding.evidence.get("pairs") or ()
    words += [f"{len(pairs)} pairs in all"] if len(pairs) > 1 else []
    return ", ".join(word for word in words if word not in finding.sentence)


def _listed(value: Any) -> str:
    """A number or a word, or a few of them; else nothing."""
    if isinstance(value, list | tuple):
        return " ".join(map(_listed, value))
    return str(value) if isinstance(value, int | str) else ""


def plain(value: Any) -> Any:
    """Evidence as JSON can say it: a number that is none is null, what is unknown is written as Python does."""
    if isinstance(value, Mapping):
        return {str(key): plain(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inside) for inside in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else repr(value)


def next_step(report: Report) -> str:
    """How to learn more."""
    worth = next(iter((*report.broken, *report.failed)), None) or next(iter(report.findings), None)
    return f"attnlab audit --explain {worth.code}" if worth else ""


def tally(report: Report) -> str:
    """`9 kept, 1 broken, 4 not claimed`"""

    def counts() -> Iterator[str]:
        names = ("kept", "kept"), ("broken", "broken"), ("error", "not measured"), ("unclaimed", "not claimed")
        for status, name in (*names, ("not-applicable", "not applicable")):
            number = sum(one.status == status for one in report.findings)
            if number:
                yield f"{number} {name}"

    return ", ".join(counts())
