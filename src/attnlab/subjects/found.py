"""Which subject is meant? From a name, a file, or an object to something that can be audited."""

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import product
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from attnlab.catalog import QUESTIONS
from attnlab.errors import LabError, Refused, Unknown, UserCodeError, listed
from attnlab.randomness import seeded
from attnlab.spelling import Part, expression
from attnlab.subjects import files, pretrained
from attnlab.subjects.compose import Answer, Size, attention, from_reader
from attnlab.subjects.subject import LENGTHS, TRIED, WIDTHS, Subject, Way, guess_of, turned, way_of
from attnlab.subjects.swap import swapping
from attnlab.subjects.twin import twin
from attnlab.subjects.what import described, variant_of

KINDS = ("module", "language-model", "attention", "score", "normalizer", "merge")
SIZE = Size(d_model=16, n_heads=4, length=16)
# What else a constructor may not go without, and what it is then given.
GIVEN: Mapping[str, Callable[[Size], Any]] = {
    **dict.fromkeys(("d_in", "d_out", "in_features", "out_features", "d_embed", "emb_dim"), lambda size: size.d_model),
    **dict.fromkeys(
        ("in_dim", "out_dim", "input_dim", "output_dim", "n_embed", "dim_in", "dim_out"), lambda size: size.d_model
    ),
    **dict.fromkeys(
        ("embedding_dim", "emb_size", "embed_size", "model_dim", "hidden_dim", "hidden"), lambda size: size.d_model
    ),
    **dict.fromkeys(("n_kv_heads", "num_kv_heads", "num_key_value_heads", "n_kv_head"), lambda size: size.n_heads),
    **dict.fromkeys(("num_q_heads", "n_query_heads", "nheads", "h"), lambda size: size.n_heads),
    **dict.fromkeys(("head_size", "d_k", "d_v", "d_key", "d_value"), lambda size: size.d_head),
    **dict.fromkeys(("seq_len", "context_length", "max_seq_len", "seq_length", "n_ctx"), lambda size: size.length),
    **dict.fromkeys(("max_position_embeddings", "context_size", "T", "n_positions"), lambda size: size.length),
    **dict.fromkeys(("n_layers", "num_layers", "n_layer", "depth", "layers"), lambda size: 2),
    **dict.fromkeys(("vocab_size", "vocab", "n_vocab", "num_tokens", "n_tokens"), lambda size: 16),
    **dict.fromkeys(("d_ff", "mlp_dim", "dim_feedforward", "intermediate_size"), lambda size: 2 * size.d_model),
    **dict.fromkeys(
        ("dropout", "attn_dropout", "dropout_p", "attn_pdrop", "resid_pdrop", "dropout_rate"), lambda size: 0.1
    ),
    **dict.fromkeys(("bias", "qkv_bias", "causal", "is_causal"), lambda size: True),
    **dict.fromkeys(("window", "window_size", "chunk_size"), lambda size: 4),
}
# A parameter that holds all the others.
HOLDERS = ("config", "cfg", "args", "conf", "hparams", "params", "model_args")


def subject_of(
    what: Any,
    *,
    kind: str = "",
    more: Iterable[str] = (),
    arguments: Mapping[str, Any] = {},
    promises: Iterable[str] = (),
    waived: Iterable[str] = (),
    size: Size = SIZE,
    swap: Any = "",
) -> Subject:
    """What WHAT names, ready to be audited; `kind` says what it is where its signature does not.

    `swap` is the attention that a pretrained model is given in place of its own.
    """
    if kind and kind not in KINDS:
        raise Unknown("kind", kind, KINDS)
    name = what if isinstance(what, str) else getattr(what, "__name__", type(what).__name__)
    if isinstance(what, str) and pretrained.is_model(what):
        if more and not swap:
            raise Refused(f"{what} is a model and answers every question itself; --swap puts another answer into it")
        return _of_module(pretrained.maker(what), name, kind or "module", promises, waived, size, swap, more)
    if isinstance(what, str):
        tree = expression(what)
        one = tree if isinstance(tree, Part) else None
        if one is None or not files.is_file(one.name):
            _no_model(name, swap)
            return _of_parts(variant_of(what, more), name, promises, waived, size)
        what = files.read(one.name)
        arguments = {**dict(one.settings), **arguments}
    kind = kind or _kind(what, name)
    claimed = (*getattr(what, "promises", ()), *promises)
    if kind in QUESTIONS and kind != "mixer":
        _no_model(name, swap)
        return _of_parts({kind: what}, name, claimed, waived, size)
    make = _around(what) if kind == "attention" else _maker(what, arguments, size)
    subject = _of_module(make, name, kind, claimed, waived, size, swap, more)
    given = {} if kind == "attention" else _missing(what, arguments, size)
    words = [name if name in HOLDERS else f"{name}={value}" for name, value in given.items()]
    return replace(subject, guess=f"{subject.guess}, built with {listed(words)} of ours") if words else subject


def _no_model(name: str, swap: Any) -> None:
    if swap:
        raise Refused(f"--swap puts an attention into a pretrained model of Hugging Face, and {name} is none")


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
    swap: Any = "",
    more: Iterable[str] = (),
) -> Subject:
    """A module is called in every way that its signature allows until one works, also with other widths and lengths."""
    understood = ""
    if swap:
        make, told = swapping(make, swap, tuple(more))
        written = swap if isinstance(swap, str) else getattr(swap, "__name__", type(swap).__name__)
        name, understood = f"{name} with {written}", f", {written} in place of its attention{told and f' ({told})'}"
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
        claimed = _claimed((), promises, waived)
        if way.batch_first and "causal" in claimed and "batch-independent" not in claimed:
            way = turned(first, tried, way, n=n)
        found = "language-model" if way.ids else kind
        return Subject(
            name=name,
            kind=found,
            make=make,
            sizes=tried,
            way=way,
            promises=claimed,
            waived=tuple(waived),
            guess=guess_of(found, way, tried) + understood,
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
    answer = Answer(getattr(thing, "__name__", "it"), thing, {**_missing(thing, arguments, size), **arguments})

    def make(draw: int) -> nn.Module:
        made = from_reader("mixer", answer, size, draw) if inspect.isclass(thing) or files.is_builder(thing) else thing
        if isinstance(made, nn.Module):
            return made
        if callable(made):
            return _Called(made)
        raise Refused(f"{answer.written} built {type(made).__name__}, and an audit needs a module or a function")

    return make


def _missing(thing: Any, arguments: Mapping[str, Any], size: Size) -> dict[str, Any]:
    """What a class cannot be built without, by its name; a configuration as its author's own class, or as a bag."""
    if not inspect.isclass(thing):
        return {}
    found: dict[str, Any] = {}
    for name, one in inspect.signature(thing).parameters.items():
        many = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if many or one.default is not one.empty or name in arguments or name in files.SIZE_OF:
            continue
        if name in GIVEN:
            found[name] = GIVEN[name](size)
        elif name in HOLDERS or is_dataclass(one.annotation):
            found[name] = _configuration(thing, one.annotation, size)
    return found


def _configuration(thing: Any, annotation: Any, size: Size) -> Any:
    """The dataclass that it asks for, or the only one of its file, at the audit's sizes; without one, all names."""
    known = {name: getattr(size, attribute) for name, attribute in files.SIZE_OF.items()}
    known |= {name: given(size) for name, given in GIVEN.items()}
    home = vars(sys.modules[thing.__module__])
    annotation = home.get(annotation, annotation) if isinstance(annotation, str) else annotation
    own = [
        one
        for one in home.values()
        if inspect.isclass(one) and is_dataclass(one) and one.__module__ == thing.__module__
    ]
    asked = inspect.isclass(annotation) and is_dataclass(annotation)
    if not asked and len(own) != 1:
        return _Bag(known)
    made = annotation if asked else own[0]
    # Chances and switches are as its author set them.
    kept = {one.name for one in fields(made) if isinstance(one.default, bool | float)}
    built = made(**{one.name: known[one.name] for one in fields(made) if one.name in known and one.name not in kept})
    return built if asked else _Bag(known | vars(built))


class _Bag(dict[str, Any]):
    """Asked as config.n_embd or as config["n_embd"]."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"the audit knows no {name} for a configuration; hand one over with --arg")
        return self[name]


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
