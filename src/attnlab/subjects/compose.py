"""A variant, as a recipe, a command or a Python call spells it, becomes a mixer or a model."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from attnlab import catalog
from attnlab.catalog import QUESTIONS
from attnlab.errors import BadSetting, LabError, Refused, Unknown, UserCodeError, divides, listed
from attnlab.mechanisms.adapter import adapted
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.dropout import Dropout
from attnlab.mechanisms.kernels import EXPLICIT, PATHS, Path
from attnlab.mechanisms.normalizers import Dropped, Softmax
from attnlab.mechanisms.positions import Absolute, Placed
from attnlab.mechanisms.visibility import CAUSAL, Visible, Written
from attnlab.models.decoder import SIZES as MODEL_SIZES
from attnlab.models.decoder import Decoder
from attnlab.randomness import initialize, seeded, undisturbed
from attnlab.spelling import Both, Part, Tree, expression, part, parts
from attnlab.subjects import files

# A visibility that names one of these says all of it; any other is and-ed with the model's own.
REPLACES = ("everything", "causal", "prefix")
Variant = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The sizes that a mechanism is built for."""

    d_model: int = 64
    n_heads: int = 4
    length: int = 64

    @property
    def d_head(self) -> int:
        return divides(self.d_model, self.n_heads, of="d_model", into="n_heads")


class Built(NamedTuple):
    """A mixer, and the absolute positions that a model adds to its embeddings, if the variant asks for any."""

    mixer: Any
    absolute: Absolute | None


class Answer(NamedTuple):
    """What answers one question: a builder and the settings it was written with."""

    written: str
    builder: Any
    settings: Mapping[str, Any] = {}
    ours: bool = False
    brings: Mapping[str, str] = {}
    wraps: str = ""


def attention(
    *,
    d_model: int = 64,
    n_heads: int = 4,
    length: int = 64,
    seed: int = 0,
    path: str = "explicit",
    default_visibility: str = "causal",
    **variant: Any,
) -> nn.Module:
    """Attention with the questions answered as named: `attention(score="cosine", position="rotary")`.

    An answer is a name, `"name(setting=literal)"`, `"file.py:Name"`, or the part itself: a function, a class, a module.
    """
    size = Size(d_model=d_model, n_heads=n_heads, length=length)
    built = compose(variant, size, seed=seed, path=path, default_visibility=default_visibility)
    return built.mixer if built.absolute is None else Placed(built.absolute, built.mixer)


def decoder(
    *,
    vocab: int,
    size: str = "nano",
    length: int = 128,
    seed: int = 0,
    dropout: float = 0.0,
    path: str = "explicit",
    **variant: Any,
) -> Decoder:
    """The decoder of a stated size with the variant in every layer; learned positions unless it says others."""
    if size not in MODEL_SIZES:
        raise Unknown("size", size, MODEL_SIZES)
    n_layers, n_heads, d_model = MODEL_SIZES[size]
    variant = {"position": "learned"} | variant
    sizes = Size(d_model=d_model, n_heads=n_heads, length=length)
    layers = [compose(variant, sizes, seed=seed, path=path, dropout=dropout) for _ in range(n_layers)]
    return Decoder(
        vocab=vocab,
        d_model=d_model,
        mixers=[layer.mixer for layer in layers],
        absolute=layers[0].absolute,
        d_hidden=4 * d_model,
        dropout=dropout,
        seed=seed,
    )


def compose(
    variant: Variant,
    size: Size,
    *,
    seed: int = 0,
    path: str = "explicit",
    dropout: float = 0.0,
    default_visibility: str = "causal",
) -> Built:
    """One mixer for the variant; every parameter of ours drawn from streams of the seed."""
    for question in variant:
        if question not in QUESTIONS:
            raise Unknown("question", question, QUESTIONS)
    if path not in PATHS:
        raise Unknown("path", path, PATHS)
    answers = {question: answer_of(question, value) for question, value in variant.items() if question != "visibility"}
    visible = _visible(variant.get("visibility", default_visibility), default_visibility, size, seed)
    maker = _Maker(size, visible, PATHS[path], seed)
    mixer = answers.pop("mixer", None)
    with undisturbed():
        if mixer is not None and mixer.written != "attention":
            built = _mixer(mixer, answers, maker, stated="visibility" in variant)
        else:
            built = _attention(_with_brought(answers), maker, dropout)
    initialize(built.mixer, seed)
    if built.absolute is not None:
        initialize(built.absolute, seed, prefix="absolute.")
    return built


def separately(variant: Variant, size: Size, *, seed: int = 0, default_visibility: str = "causal") -> dict[str, Any]:
    """The parts that a variant names and those that they bring, for a model that brings the rest."""
    visible = _visible(variant.get("visibility", default_visibility), default_visibility, size, seed)
    answers = {question: answer_of(question, value) for question, value in variant.items() if question != "visibility"}
    maker = _Maker(size, visible, EXPLICIT, seed)
    complete = _with_brought(answers)
    alien = [answer.written for name, answer in complete.items() if name in ("projection", "merge")]
    if alien:
        raise Refused(f"{listed(variant.values())} brings {listed(alien)}, and the model keeps its projections")
    with undisturbed():
        made = {name: maker.make(name, answer) for name, answer in complete.items()}
    return {**made, "visibility": visible}


def _attention(answers: dict[str, Answer], maker: "_Maker", dropout: float) -> Built:
    made = {name: maker.make(name, answer) for name, answer in answers.items() if not answer.wraps}
    if "projection" not in made:
        made["projection"] = maker.make("projection", answer_of("projection", "separate"))
    for name, answer in answers.items():
        if answer.wraps:
            made[answer.wraps] = maker.make(name, answer, **{answer.wraps: made.get(answer.wraps, Softmax())})
    if dropout:
        made["normalizer"] = Dropped(normalizer=made.get("normalizer", Softmax()), dropout=Dropout(dropout))
    absolute = made.pop("position") if isinstance(made.get("position"), Absolute) else None
    out = nn.Linear(maker.size.d_model, maker.size.d_model)
    return Built(Attention(**made, out=out, visibility=maker.visible, path=maker.path), absolute)


def _mixer(answer: Answer, others: dict[str, Answer], maker: "_Maker", *, stated: bool) -> Built:
    """A mixer answers every question itself, except those its builder asks for; absolute positions go with any."""
    position = others.pop("position", None)
    placed = None if position is None else maker.make("position", position)
    asks = inspect.signature(answer.builder).parameters if answer.ours else {}
    absolute = placed if isinstance(placed, Absolute) else None
    suits = placed is None or absolute is not None or ("position" in asks and position and not position.brings)
    refused = [*others, *([] if suits else ["position"])]
    if stated and "visibility" not in asks and maker.visible != CAUSAL:
        refused.append("visibility")
    if refused:
        what = f"cannot be given a {listed(refused)} of its own"
        raise Refused(f"{answer.written} answers every question itself and {what}")
    if maker.path is not EXPLICIT and "path" not in asks:
        raise Refused(f"{answer.written} goes a path of its own, and {maker.path.name} is none of it; leave path out")
    given = {} if absolute is not None or placed is None else {"position": placed}
    return Built(adapted(maker.make("mixer", answer, **given)), absolute)


def _with_brought(answers: dict[str, Answer]) -> dict[str, Answer]:
    """The parts that others bring along; two answers to one question are a conflict unless they say the same."""
    complete = dict(answers)
    for answer in answers.values():
        for question, written in answer.brings.items():
            other = complete.get(question)
            if other is not None and other.written != written:
                raise Refused(
                    f"{answer.written} brings its own {question}, and {other.written} answers it too; leave one out"
                )
            complete[question] = answer_of(question, written)
    return complete


class _Maker:
    """Builds parts: hands each builder the sizes it asks for and the settings it was written with."""

    def __init__(self, size: Size, visible: Visible, path: Path, seed: int) -> None:
        self.size, self.visible, self.path, self.seed = size, visible, path, seed

    def make(self, question: str, answer: Answer, **parts_it_may_ask_for: Any) -> Any:
        if not answer.ours:
            return from_reader(question, answer, self.size, self.seed)
        offered = {"visibility": self.visible, "path": self.path, **parts_it_may_ask_for}
        signature = inspect.signature(answer.builder).parameters
        wanted = [name for name, one in signature.items() if one.kind is one.KEYWORD_ONLY]
        structure = {name: offered[name] for name in wanted if name in offered}
        context = {name: getattr(self.size, name) for name in wanted if name in files.SIZES}
        settings = bound(
            answer,
            [name for name in wanted if name not in structure and name not in ("d_model", "n_heads", "d_head")],
        )
        return answer.builder(**{**structure, **context, **settings})


def from_reader(question: str, answer: Answer, size: Size, seed: int) -> Any:
    """A reader's part as it is, built where it is a class or a builder, in the state its name gives chance."""
    thing = answer.builder
    if not (inspect.isclass(thing) or files.is_builder(thing)):
        if not answer.settings:
            return thing
        if isinstance(thing, nn.Module) or not callable(thing):
            raise BadSetting(f"{answer.written}: this is already built and takes no settings")
        return partial(thing, **bound(answer, files.settings_of(thing)))
    wanted = inspect.signature(thing).parameters
    context = {name: getattr(size, files.SIZE_OF[name]) for name in wanted if name in files.SIZE_OF}
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    settings = bound(answer, [name for name, one in wanted.items() if one.kind not in many])
    missing = [
        name
        for name, one in wanted.items()
        if one.default is one.empty
        and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        and name not in context
        and name not in settings
    ]
    if missing:
        raise BadSetting(f"{answer.written} needs {listed(missing)}; write {answer.written}({missing[0]}=…)")
    try:
        with seeded(seed, question):
            return thing(**{**context, **settings})
    except LabError:
        raise
    except Exception as error:
        path = inspect.getsourcefile(thing) or ""
        raise UserCodeError(files.said(error, path)) from error


def bound(answer: Answer, taken: list[str]) -> dict[str, Any]:
    """The written settings by name, or the sentence that lists those that exist."""
    name = answer.written.split("(")[0]
    wanted = inspect.signature(answer.builder).parameters
    free = [one for one in taken if one not in files.SIZE_OF or one == "length"]
    unnamed = [value for key, value in answer.settings.items() if key.isdigit()]
    if len(unnamed) > len(free):
        raise BadSetting(f"{answer.written}: {name} takes {_settings(free, wanted)}")
    settings = dict(zip(free, unnamed, strict=False))
    for key, value in answer.settings.items():
        if key.isdigit():
            continue
        if key not in taken:
            raise BadSetting(f"{name} has no setting '{key}'; it takes {_settings(free, wanted)}")
        if key in settings:
            raise BadSetting(f"{answer.written} gives {key} twice")
        settings[key] = value
    for key, value in settings.items():
        kind = wanted[key].annotation
        whole_as_real = kind is float and isinstance(value, int) and not isinstance(value, bool)
        wrong = kind in (int, float, str, bool) and type(value) is not kind and not whole_as_real
        if wrong:
            raise BadSetting(
                f"{name}({key}={value!r}): {key} is {_a(kind.__name__)}; it takes {_settings(free, wanted)}"
            )
    return settings


def _a(kind: str) -> str:
    return {"int": "a whole number", "float": "a number", "str": "a text in quotes", "bool": "True or False"}[kind]


def _settings(names: list[str], wanted: Mapping[str, inspect.Parameter]) -> str:
    shown = (
        name if wanted[name].default is inspect.Parameter.empty else f"{name}={wanted[name].default!r}"
        for name in names
    )
    return listed(shown) if names else "no settings"


def answer_of(question: str, value: Any) -> Answer:
    """What a value of a variant says."""
    if not isinstance(value, str):
        return Answer(getattr(value, "__name__", type(value).__name__), value)
    if ":" in value and not files.is_file(value):  # what an entry brings and nobody else may ask for
        return Answer(value, catalog.builder(value), ours=True)
    return named(question, part(value))


def named(question: str, written: Part) -> Answer:
    """What one written part says: an entry of the catalog, or what stands in a reader's file."""
    settings = {str(place): value for place, value in enumerate(written.positional)} | dict(written.settings)
    if files.is_file(written.name):
        return Answer(str(written), files.read(written.name), settings)
    entry = catalog.find(written.name, question)
    return Answer(str(written), entry.build(), settings, ours=True, brings=entry.brings, wraps=entry.wraps)


def _visible(value: Any, default: str, size: Size, seed: int) -> Visible:
    """The visibility a value spells: and-ed with the default unless it says all of it."""
    if isinstance(value, Visible):
        return value
    if not isinstance(value, str):
        return Written(value)
    tree = expression(value)
    names = [one.name for one in parts(tree)]
    if isinstance(tree, Part) and tree.name == "prefix":
        return CAUSAL | _rule(tree, size, seed)
    if not any(name in REPLACES for name in names):
        return _rule(expression(default), size, seed) & _rule(tree, size, seed)
    return _rule(tree, size, seed)


def _rule(tree: Tree, size: Size, seed: int) -> Visible:
    if isinstance(tree, Part):
        answer = named("visibility", tree)
        if not answer.ours:
            made = from_reader("visibility", answer, size, seed)
            return made if isinstance(made, Visible) else Written(made)
        made = answer.builder(**bound(answer, list(inspect.signature(answer.builder).parameters)))
        assert isinstance(made, Visible)
        return made
    left, right = _rule(tree.left, size, seed), _rule(tree.right, size, seed)
    return left & right if isinstance(tree, Both) else left | right
