"""Which slow twin judges a variant? Its parts' twins, asked as the variant reads, with the mixer's own parameters."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnlab import catalog
from attnlab.catalog import QUESTIONS, Entry
from attnlab.errors import Refused, Unknown
from attnlab.mechanisms.adapter import Adapted
from attnlab.mechanisms.normalizers import Dropped
from attnlab.mechanisms.positions import Placed
from attnlab.oracles.attention import Parts, attend
from attnlab.oracles.tokens import Answer as SlowAnswer
from attnlab.oracles.tokens import Parameters, Run, stacked, within
from attnlab.oracles.visibility import Rule
from attnlab.shapes import Mark, Places, Vectors
from attnlab.spelling import Both, Either, Part, Tree, expression, part, parts
from attnlab.subjects import files
from attnlab.subjects.compose import REPLACES, Size, Variant

Twin = Callable[..., SlowAnswer]
"""Called with (x, *, marks, positions). Its precision is that of x, to which the parameters are cast."""

# A position's twin says by its first parameter what it changes.
CHANGES = {"x": "token", "t": "turn", "q": "bias"}
# What a builder is given, and no one can write.
GIVEN = ("d_model", "n_heads", "d_head", "visibility", "path", "position", "normalizer")


class _Slow(NamedTuple):
    """The twin of one answer, its builder's defaults, and the settings it was written with."""

    entry: Entry
    defaults: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}

    def told(self, context: Mapping[str, Any] = {}, **more: Any) -> Callable[..., Any]:
        """The twin, told what it asks for by name."""
        function = self.entry.judge()
        told = {**self.defaults, **context, **more, **self.settings}
        asked = [name for name, one in inspect.signature(function).parameters.items() if one.kind is one.KEYWORD_ONLY]
        return partial(function, **{name: told[name] for name in asked})

    @property
    def changes(self) -> str:
        return CHANGES[next(iter(inspect.signature(self.entry.judge()).parameters))]


def twin(variant: Variant, size: Size, mixer: nn.Module, *, default_visibility: str = "causal") -> Twin:
    """What the variant's formulas say, by loops, with the parameters and the state that the mixer has when asked.

    A mixer that carries its absolute positions along has them in its twin. What is not of the catalog has no twin.
    """
    for question in variant:
        if question not in QUESTIONS:
            raise Unknown("question", question, QUESTIONS)
    answers = {question: _read(question, value) for question, value in variant.items() if question != "visibility"}
    visible = _visible(variant.get("visibility", default_visibility), default_visibility)
    sizes = {name: getattr(size, name) for name in ("d_model", "n_heads", "d_head", "length")}
    context = {"visible": visible, "looks_ahead": _looks_ahead(visible, size.length), **sizes}
    if "mixer" in answers and (len(answers) == 1 or answers["mixer"].entry.name != "attention"):
        asked = partial(_mixer, context, answers)
    else:
        asked = partial(_attention, context, _complete(answers))

    def ask(x: Vectors, *, marks: Mapping[str, Mark] = {}, positions: Places | None = None) -> SlowAnswer:
        core, runs = mixer, _runs(x, marks, positions)
        if isinstance(mixer, Placed):
            core, add = mixer.mixer, answers["position"].told(context, p=_state(mixer.absolute, x))
            x = stacked(
                [
                    [add(t, at) for t, at in zip(*one, strict=True)]
                    for one in zip(x, (run.positions for run in runs), strict=True)
                ]
            )
        core = core.inside if isinstance(core, Adapted) else core
        return asked(core, x, runs, _state(core, x))

    return ask


def _mixer(
    context: Mapping[str, Any], answers: Mapping[str, _Slow], core: nn.Module, x: Tensor, runs: list[Run], p: Parameters
) -> SlowAnswer:
    """The whole at once; a position that it may be given is around its own, so its parameters are inside."""
    position: dict[str, Any] = {"turn": None, "bias": None}
    if "position" in answers:
        position[answers["position"].changes] = answers["position"].told(context, p=within(p, "position.inside."))
    answer: SlowAnswer = answers["mixer"].told(context, p=p, **position)(x, runs)
    return answer


def _complete(answers: Mapping[str, _Slow]) -> dict[str, _Slow]:
    """The answers, those that they bring along, and the plain ones for what nobody answered."""
    plain = {"projection": "separate", "score": "scaled-dot", "normalizer": "softmax"}
    brought = [one for answer in answers.values() for one in answer.entry.brings.items()]
    read = {question: _read(question, written) for question, written in (*plain.items(), *brought)}
    return {**read, **answers}


def _attention(
    context: Mapping[str, Any], answers: Mapping[str, _Slow], core: nn.Module, x: Tensor, runs: list[Run], p: Parameters
) -> SlowAnswer:
    """The six answers in order, each with the parameters that bear its name; what is wrapped has its own inside."""

    def told(question: str, prefix: str = "", **more: Any) -> Callable[..., Any]:
        return answers[question].told(context, p=within(p, prefix or f"{question}."), **more)

    home = "normalizer.inside." if isinstance(core.normalizer, Dropped) else "normalizer."
    made = {"projection": told("projection"), "score": told("score"), "normalizer": told("normalizer", home)}
    if "merge" in answers and answers["merge"].entry.wraps:
        made["normalizer"] = told("merge", home, normalizer=told("normalizer", f"{home}inside."))
    elif "merge" in answers:
        made["merge"] = told("merge")
    if "position" in answers and answers["position"].changes != "token":
        made[answers["position"].changes] = told("position")
    return attend(x, runs, Parts(visible=context["visible"], **made), p=p)


def _read(question: str, value: Any) -> _Slow:
    """An answer as it is written: a name with settings, or the "module:name" of what an entry brings."""
    if not isinstance(value, str) or files.is_file(value):
        raise Refused(f"{question} = {value!r} is not of the catalog, and only what is has a slow twin")
    if ":" in value:
        return _Slow(Entry(value, question, value, value, "", ()))
    return _named(question, part(value))


def _named(question: str, written: Part) -> _Slow:
    if files.is_file(written.name):
        raise Refused(f"{question} = {written} is not of the catalog, and only what is has a slow twin")
    entry = catalog.find(written.name, question)
    takes = inspect.signature(entry.build()).parameters
    defaults = {name: one.default for name, one in takes.items() if one.default is not one.empty}
    free = [name for name in takes if name not in GIVEN]
    return _Slow(entry, defaults, dict(zip(free, written.positional, strict=False)) | dict(written.settings))


def _visible(value: Any, default: str) -> Rule:
    """What the visibility spells: a prefix opens what is causal, and what does not replace the default narrows it."""
    if not isinstance(value, str):
        raise Refused(f"visibility = {value!r} is not of the catalog, and only what is has a slow twin")
    tree = expression(value)
    if isinstance(tree, Part) and tree.name == "prefix":
        tree = Either(Part("causal"), tree)
    elif not any(one.name in REPLACES for one in parts(tree)):
        tree = Both(expression(default), tree)
    return _rule(tree)


def _rule(tree: Tree) -> Rule:
    if isinstance(tree, Part):
        return _named("visibility", tree).told()
    one, other = _rule(tree.left), _rule(tree.right)
    if isinstance(tree, Both):
        return lambda i, j, marks: one(i, j, marks) and other(i, j, marks)
    return lambda i, j, marks: one(i, j, marks) or other(i, j, marks)


def _looks_ahead(visible: Rule, length: int) -> bool:
    """Whether any token may see the next one: no rule of the catalog skips it to see a later one."""
    return any(visible(i, i + 1, {}) for i in range(length))


def _state(module: nn.Module, x: Tensor) -> Parameters:
    return {name: t.to(x.dtype) if t.is_floating_point() else t for name, t in module.state_dict().items()}


def _runs(x: Tensor, marks: Mapping[str, Tensor], positions: Tensor | None) -> list[Run]:
    """What is known of the tokens, for each sequence; one row may stand for all."""
    b, n, _ = x.shape
    counted = torch.arange(n)[None] if positions is None else positions
    at = counted.expand(b, n).tolist()
    marked = {name: mark.expand(b, n).tolist() for name, mark in marks.items()}
    return [Run(at[row], {name: mark[row] for name, mark in marked.items()}) for row in range(b)]
