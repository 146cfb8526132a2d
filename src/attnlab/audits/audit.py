"""The audit: a subject, its probes, and the report that they write together."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from attnlab.audits.probe import Probe
from attnlab.audits.probes import probes
from attnlab.audits.run import GIBIBYTES, SECONDS, Told, contained, forks, in_process
from attnlab.audits.stages import STAGED, followed
from attnlab.errors import BadSetting, Refused, Unknown, UserCodeError
from attnlab.records.finding import Finding
from attnlab.records.report import Report
from attnlab.spelling import Part, expression
from attnlab.subjects import files, pretrained
from attnlab.subjects.compose import Size
from attnlab.subjects.found import SIZE, subject_of
from attnlab.subjects.subject import Subject

# Promises that carry a value, as they are spelled.
VALUED = {"hears-last": "hears-last:n", "cost": "cost:n^k", "agrees-with": "agrees-with:WHAT"}
ADAPTER = (
    "Write an adapter: a class with __init__(self, dim) and forward(self, x) that hands vectors x of (batch, length,"
    " dim) to it and returns as many, then audit adapter.py:Adapter."
)


def audit(
    what: Any,
    *,
    kind: str = "",
    promises: Sequence[str] = (),
    waived: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
    size: Size = SIZE,
    swap: Any = "",
    quick: bool = False,
    seconds: float = SECONDS,
    gibibytes: float = GIBIBYTES,
) -> Report:
    """Does it keep its promises? A name, `"file.py:Name"`, a class, a function, or a module in memory.

    A module in memory is asked in this process; everything else in one of its own. `swap` is put into a pretrained
    model in place of its attention.
    """
    words = audited(
        what,
        kind=kind,
        promises=promises,
        waived=waived,
        arguments=arguments,
        more=more,
        size=size,
        swap=swap,
        quick=quick,
        seconds=seconds,
        gibibytes=gibibytes,
    )
    return report_of(words)


def report_of(words: Iterator[Told | Finding]) -> Report:
    """What the words say together: the first tells what it is, the others are findings."""
    told = next(words)
    assert isinstance(told, Told)
    findings = tuple(word for word in words if isinstance(word, Finding))
    return Report(
        subject=told.name,
        kind=told.kind,
        guess=told.guess,
        asked=told.asked,
        promises=told.promises,
        taken=tuple(promise for promise in told.promises if promise in taken()),
        findings=findings,
    )


def audited(
    what: Any,
    *,
    kind: str = "",
    promises: Sequence[str] = (),
    waived: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
    size: Size = SIZE,
    swap: Any = "",
    quick: bool = False,
    seconds: float = SECONDS,
    gibibytes: float = GIBIBYTES,
) -> Iterator[Told | Finding]:
    """The same as it goes, for whoever shows progress."""
    for promise in promises:
        known(promise)
    for promise in waived:
        known(promise, valued=False)
    found = partial(
        _found,
        what,
        kind=kind,
        more=tuple(more),
        arguments=dict(arguments or {}),
        promises=tuple(promises),
        waived=tuple(waived),
        size=size,
        swap=swap,
    )
    asked = chosen(quick=quick, promises=promises)
    if isinstance(what, nn.Module):
        return in_process(found, asked, why="where alone this module exists")
    if (isinstance(what, str) and isinstance(swap, str)) or forks():
        return contained(found, asked, seconds=seconds, gibibytes=gibibytes)
    return in_process(found, asked, why="since no copy of it can be made here")


def chosen(*, quick: bool = False, promises: Sequence[str] = ()) -> tuple[Probe, ...]:
    """The probes of an audit: all, or the core and what was claimed for it in so many words."""
    claimed = {promise.partition(":")[0] for promise in promises}
    return tuple(one for one in probes() if one.quick or not quick or one.promise.partition(":")[0] in claimed)


def taken() -> tuple[str, ...]:
    """What every module is taken to promise unless it says otherwise."""
    return tuple(dict.fromkeys(one.promise for one in probes() if one.taken))


def audited_in_stages(path: str, *, seconds: float = SECONDS, gibibytes: float = GIBIBYTES) -> Iterator[Told | Finding]:
    """The steps of a file that follows the scaffold, each by itself."""
    return contained(partial(followed, path), STAGED, seconds=seconds, gibibytes=gibibytes)


def _found(what: Any, *, kind: str, promises: Sequence[str], **more: Any) -> Subject:
    """A file is read first: its own error is no reason to write an adapter."""
    tree = expression(what) if isinstance(what, str) and not pretrained.is_model(what) else None
    theirs = tree is None or (isinstance(tree, Part) and files.is_file(tree.name))
    if isinstance(tree, Part) and theirs:
        files.read(tree.name)
    try:
        subject = subject_of(what, kind=kind, promises=promises, **more)
    except (UserCodeError, Refused) as error:
        if not theirs or more.get("swap"):
            raise
        raise UserCodeError(f"{error}\n{ADAPTER}") from error
    for promise in subject.promises:
        known(promise)
    only = tuple(one for one in taken() if one not in subject.waived and not subject.claims(one))
    return replace(subject, promises=(*subject.promises, *only), taken=only)


def known(promise: str, *, valued: bool = True) -> None:
    """A promise that nobody can check is a misspelling, and one with a value says it."""
    names = {one.promise.partition(":")[0] for one in probes() if one.promise}
    name, _, value = promise.partition(":")
    if name not in names:
        raise Unknown("promise", promise, {VALUED.get(one, one) for one in names})
    if valued and (name in VALUED) != bool(value):
        right = VALUED.get(name, name)
        raise BadSetting(f"the promise '{promise}' is spelled {right}")


def explained(word: str) -> tuple[Probe, ...]:
    """The probe of a code or those of a promise, or a suggestion."""
    every = (*probes(), *STAGED)
    found = tuple(one for one in every if word and word in (one.code, one.promise, one.promise.partition(":")[0]))
    if not found:
        raise Unknown("code", word, {one.code for one in every})
    return found


def question_of(probe: Probe) -> str:
    """What it measures, as the first paragraph of its file says."""
    home = inspect.getmodule(probe.look)
    return " ".join(inspect.cleandoc((home and home.__doc__) or "").split("\n\n")[0].split())
