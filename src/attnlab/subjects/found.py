"""Which subject is meant? From a name, a file, or an object to something that can be audited."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from attnlab.catalog import QUESTIONS
from attnlab.errors import LabError, Refused, Unknown, UserCodeError
from attnlab.randomness import seeded
from attnlab.spelling import Part, expression
from attnlab.subjects import files, pretrained
from attnlab.subjects.compose import Answer, Size, attention, from_reader
from attnlab.subjects.subject import LENGTHS, TRIED, WIDTHS, Subject, Way, guess_of, way_of
from attnlab.subjects.twin import twin
from attnlab.subjects.what import described, variant_of

KINDS = ("module", "language-model", "attention", "score", "normalizer", "merge")
SIZE = Size(d_model=16, n_heads=4, length=16)


def subject_of(
    what: Any,
    *,
    kind: str = "",
    more: Iterable[str] = (),
    arguments: Mapping[str, Any] = {},
    promises: Iterable[str] = (),
    waived: Iterable[str] = (),
    size: Size = SIZE,
) -> Subject:
    """What WHAT names, ready to be audited; `kind` says what it is where its signature does not."""
    if kind and kind not in KINDS:
        raise Unknown("kind", kind, KINDS)
    name = what if isinstance(what, str) else getattr(what, "__name__", type(what).__name__)
    if isinstance(what, str) and pretrained.is_model(what):
        return _of_module(pretrained.maker(what), name, kind or "module", promises, waived, size)
    if isinstance(what, str):
        tree = expression(what)
        one = tree if isinstance(tree, Part) else None
        if one is None or not files.is_file(one.name):
            return _of_parts(variant_of(what, more), name, promises, waived, size)
        what = files.read(one.name)
        arguments = {**dict(one.settings), **arguments}
    kind = kind or _kind(what, name)
    claimed = (*getattr(what, "promises", ()), *promises)
    if kind in QUESTIONS and kind != "mixer":
        return _of_parts({kind: what}, name, claimed, waived, size)
    make = _around(what) if kind == "attention" else _maker(what, arguments, size)
    return _of_module(make, name, kind, claimed, waived, size)


def _of_parts(
    variant: Mapping[str, Any], name: str, promises: Iterable[str], waived: Iterable[str], size: Size
) -> Subject:
    """A variant of attention: what its parts promise together, and its slow twin if all of it is of the catalog."""

    def make(draw: int) -> nn.Module:
        return attention(d_model=size.d_model, n_heads=size.n_heads, length=4 * size.length, seed=draw, **dict(variant))

    ours = all(isinstance(value, str) and ".py" not in value for value in variant.values())
    said: tuple[str, ...] = ()
    if ours:
        parts = [one.promises for one in described(variant, size)]
        said = tuple(one for one in parts[0] if all(one in other for other in parts[1:]))
    held = Size(d_model=size.d_model, n_heads=size.n_heads, length=4 * size.length)
    return Subject(
        name=name,
        kind=next(iter(variant)),
        make=make,
        sizes=size,
        way=Way(tokens=True),
        promises=_claimed(said, promises, waived),
        waived=tuple(waived),
        guess=f"{' and '.join(variant)} within causal attention of {size.n_heads} heads, {size.d_model} wide",
        twin=(lambda mixer: twin(variant, held, mixer)) if ours else None,
    )


def _of_module(
    make: Callable[[int], nn.Module],
    name: str,
    kind: str,
    promises: Iterable[str],
    waived: Iterable[str],
    size: Size,
) -> Subject:
    """A module is called in every way that its signature allows until one works, also with other widths and lengths."""
    with seeded(0, "audit"):
        first = make(0)
    said: LabError | None = None
    layers = [layer.in_features for layer in first.modules() if isinstance(layer, nn.Linear)][:1]
    widths = dict.fromkeys((size.d_model, *layers, *WIDTHS))
    for n, width in product((TRIED, size.length, *LENGTHS), widths):
        length = n if n in LENGTHS else size.length
        tried = Size(d_model=width, n_heads=1 if width % size.n_heads else size.n_heads, length=length)
        try:
            way = way_of(first.eval(), tried, n=n)
        except LabError as error:
            said = said or error
            continue
        found = "language-model" if way.ids else kind
        return Subject(
            name=name,
            kind=found,
            make=make,
            sizes=tried,
            way=way,
            promises=_claimed((), promises, waived),
            waived=tuple(waived),
            guess=guess_of(found, way, tried),
        )
    raise said or Refused(f"{name} could not be called")


def _claimed(said: Iterable[str], more: Iterable[str], waived: Iterable[str]) -> tuple[str, ...]:
    taken = set(waived)
    return tuple(dict.fromkeys(one for one in (*said, *more) if one.partition(":")[0] not in taken))


def _kind(thing: Any, name: str) -> str:
    """A part by its parameters, an attention by its q, k and v, a module otherwise; a builder as what it builds."""
    if files.is_builder(thing) and not hasattr(thing, "question"):
        thing = from_reader("", Answer(name, thing), SIZE, 0)
    if isinstance(thing, nn.Module) or (inspect.isclass(thing) and issubclass(thing, nn.Module)):
        try:
            question = files.question_of(thing, name=name)
        except LabError:
            return "module"
        return "module" if question == "mixer" else question
    if inspect.isfunction(thing):
        taken = list(inspect.signature(thing).parameters)
        if len(taken) >= 3 and [word[:1].lower() for word in taken[:3]] == ["q", "k", "v"]:
            return "attention"
    question = files.question_of(thing, name=name)
    return "module" if question == "mixer" else question


def _maker(thing: Any, arguments: Mapping[str, Any], size: Size) -> Callable[[int], nn.Module]:
    """A class is built anew for each draw; a module in memory is copied, and keeps its numbers."""
    if isinstance(thing, nn.Module):
        if arguments:
            raise Refused(f"{type(thing).__name__} is already built and takes no arguments")
        return lambda draw: copy.deepcopy(thing)
    answer = Answer(getattr(thing, "__name__", "it"), thing, dict(arguments))

    def make(draw: int) -> nn.Module:
        made = from_reader("mixer", answer, size, draw) if inspect.isclass(thing) or files.is_builder(thing) else thing
        if isinstance(made, nn.Module):
            return made
        if callable(made):
            return _Called(made)
        raise Refused(f"{answer.written} built {type(made).__name__}, and an audit needs a module or a function")

    return make


class _Called(nn.Module):
    """A function of x as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.forward = function  # its signature says how it is called


class Around(nn.Module):
    """A function of q, k and v, given three projections and heads; its layout is found by trying."""

    def __init__(self, function: Callable[..., Any], *, n_heads: int = 4, d_model: int = 16) -> None:
        super().__init__()
        self.function, self.n_heads = function, n_heads
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.layout = self._layout()

    def forward(self, x: Tensor) -> Tensor:
        return self._through([part(x) for part in (self.q, self.k, self.v)], self.layout)

    def _through(self, asked: Sequence[Tensor], layout: str) -> Tensor:
        if layout == "b n d":
            return _first(self.function(*asked))
        heads = (rearrange(t, f"b n (h d) -> {layout}", h=self.n_heads) for t in asked)
        return rearrange(_first(self.function(*heads)), f"{layout} -> b n (h d)", h=self.n_heads)

    def _layout(self) -> str:
        """(b, h, n, d) unless that mixes heads instead of tokens, or cannot be called at all."""
        said = ""
        x = torch.arange(2 * 5 * 16, dtype=torch.float64).reshape(2, 5, 16).sin().to(self.q.weight.dtype)
        other = x.clone()
        other[:, 0] += 1
        for layout in ("b h n d", "b n h d", "b n d"):
            try:
                with torch.no_grad():
                    y = self._through([x, x.cos(), x], layout)
                    moved = (self._through([x, other.cos(), other], layout) != y).any(-1)
            except Exception as error:
                said = said or files.in_one_line(error)
                continue
            if bool(moved[:, 1:].any()):
                return layout
        if said:
            raise UserCodeError(f"it could be called with q, k, v in no layout: {said}")
        return "b h n d"


def _around(function: Any) -> Callable[[int], nn.Module]:
    return lambda draw: Around(function)


def _first(returned: Any) -> Tensor:
    y: Tensor = returned if isinstance(returned, Tensor) else returned[0]
    return y
