"""What does WHAT say? A name, a spelled part or a reader's file: what it answers, how it is set, and by whose word."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnlab import catalog
from attnlab.catalog import QUESTIONS
from attnlab.errors import BadSetting, Refused, Unknown
from attnlab.spelling import Part, expression, part, parts
from attnlab.subjects import files
from attnlab.subjects.compose import Answer, Size, bound, from_reader, named
from attnlab.subjects.twin import GIVEN


class Setting(NamedTuple):
    """What may be written in parentheses, and what holds: as written, by default, or as the sizes are."""

    name: str
    value: Any
    written: bool


@dataclass(frozen=True, kw_only=True)
class Described:
    """One part of a variant and all that is known of it before it runs."""

    written: str
    question: str
    formula: str
    source: str
    settings: tuple[Setting, ...]
    brings: Mapping[str, str]
    promises: tuple[str, ...]
    breaks: tuple[str, ...]


def variant_of(what: str, more: Iterable[str] = ()) -> dict[str, str]:
    """The variant that WHAT and any further `question=value` spell together."""
    variant = {_question(what): what}
    for text in more:
        question, sign, value = text.partition("=")
        if question not in QUESTIONS and sign:
            raise Unknown("question", question, QUESTIONS)
        if not sign or not value:
            raise BadSetting(f"'{text}' answers no question; write question=value, as in position=rotary")
        if question in variant:
            raise Refused(f"{variant[question]} answers {question} already; leave {text} out")
        variant[question] = value
    return variant


def described(variant: Mapping[str, str], size: Size) -> tuple[Described, ...]:
    """Every part that the variant names, in the order of the variant."""
    spelled = (
        (question, one)
        for question, value in variant.items()
        for one in (parts(expression(value)) if question == "visibility" else [part(value)])
    )
    return tuple(_described(question, one, size) for question, one in spelled)


def _question(what: str) -> str:
    tree = expression(what)
    found = {str(one): _question_of(one) for one in parts(tree)}
    if not isinstance(tree, Part):
        for written, question in found.items():
            if question != "visibility":
                raise Refused(f"{written} answers {question}, and only visibility can be combined with & and |")
    return next(iter(found.values()))


def _question_of(one: Part) -> str:
    if not files.is_file(one.name):
        return catalog.find(one.name).question
    thing = files.read(one.name)
    if files.is_builder(thing) and not hasattr(thing, "question"):
        thing = from_reader("", named("", one), Size(), 0)  # what it answers shows when it is built
    return files.question_of(thing, name=one.name)


def _described(question: str, one: Part, size: Size) -> Described:
    answer = named(question, one)
    settings = _settings(answer, size)
    if not answer.ours:
        thing = answer.builder
        return Described(
            written=answer.written,
            question=question,
            formula=_first_line(thing),
            source=_place(thing, one.name),
            settings=settings,
            brings={},
            promises=(),
            breaks=(),
        )
    entry = catalog.find(one.name, question)
    said = {setting.name: setting.value for setting in settings}
    return Described(
        written=answer.written,
        question=question,
        formula=entry.formula,
        source=entry.source,
        settings=settings,
        brings=entry.brings,
        promises=tuple(promise.format(**said) for promise in entry.promises),
        breaks=entry.breaks,
    )


def _settings(answer: Answer, size: Size) -> tuple[Setting, ...]:
    thing = answer.builder
    if not callable(thing):
        return ()
    every = inspect.signature(thing).parameters.values()
    wanted = {one.name: one for one in every if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    if answer.ours:
        taken = [name for name in wanted if name not in GIVEN]
    elif inspect.isclass(thing) or files.is_builder(thing):
        taken = [name for name in wanted if files.SIZE_OF.get(name) in (None, "length")]
    else:
        taken = files.settings_of(thing)
    given = bound(answer, taken) if answer.settings else {}

    def holds(name: str) -> Any:
        if name in given:
            return given[name]
        default = wanted[name].default
        return getattr(size, files.SIZE_OF.get(name, ""), None) if default is inspect.Parameter.empty else default

    return tuple(Setting(name, holds(name), name in given) for name in taken)


def _first_line(thing: Any) -> str:
    """Not inherited: every module would say what torch says of modules."""
    words = inspect.cleandoc(thing.__doc__ or "").splitlines()
    return words[0] if words else ""


def _place(thing: Any, name: str) -> str:
    try:
        return f"{inspect.getsourcefile(thing)}, line {inspect.getsourcelines(thing)[1]}"
    except (TypeError, OSError):
        return name
