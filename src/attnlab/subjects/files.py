"""A reader's own file: what does it define, and which question does it answer?"""

import ast
import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from attnlab.catalog import QUESTIONS
from attnlab.errors import BadSetting, LabError, Refused, Unknown, UserCodeError, listed
from attnlab.mechanisms.parts import Position
from attnlab.mechanisms.positions import Absolute
from attnlab.mechanisms.visibility import Visible

# What a builder or a constructor may ask for; several spellings of one thing.
SIZES = {
    "d_model": ("d_model", "dim", "embed_dim", "n_embd", "hidden_size", "width"),
    "n_heads": ("n_heads", "heads", "num_heads", "n_head", "nhead", "num_attention_heads"),
    "d_head": ("d_head", "head_dim", "dim_head"),
    "length": ("length", "max_len", "max_length", "block_size"),
}
PREFIX, LONGEST = "attnlab_reader_", 200
SIZE_OF = {spelling: size for size, spellings in SIZES.items() for spelling in spellings}


def is_file(name: str) -> bool:
    return name.endswith(".py") or ".py:" in name


def read(what: str) -> Any:
    """The object that path/to/file.py:Name names; without a name, the one thing that the file defines."""
    path, _, name = what.partition(".py:")
    module = _module(str(Path(path if name else what.removesuffix(".py")).with_suffix(".py")))
    if not name:
        return _only(module, what)
    if not hasattr(module, name):
        raise Unknown(f"thing in {Path(module.__file__ or what).name}", name, _public(module))
    return getattr(module, name)


def names_of(path: str) -> Mapping[str, Any]:
    """Everything that a file holds, by name."""
    return vars(_module(path))


def _only(module: ModuleType, what: str) -> Any:
    names = _public(module)
    if len(names) == 1:
        return getattr(module, names[0])
    if not names:
        raise Refused(f"{what} defines no public function or class")
    raise Refused(f"{what} defines several things: {listed(names)}; say which, as in {what}:{names[0]}")


def _public(module: ModuleType) -> list[str]:
    """What the file itself defines, in its order; imports do not count."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    defined = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return [name for name in defined if not name.startswith("_")]


def _module(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise LabError(f"there is no file {path}")
    return _loaded(str(file.resolve()), file.stat().st_mtime_ns)


@cache
def _loaded(path: str, changed: int) -> ModuleType:
    """The file as a module. Its own folder may be imported from while it loads; its error is shown as its own."""
    name = f"{PREFIX}{hashlib.blake2b(path.encode(), digest_size=6).hexdigest()}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LabError(f"{path} cannot be loaded as Python")
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(Path(path).parent))
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[name]
        raise UserCodeError(said(error, path)) from error
    finally:
        sys.path.remove(str(Path(path).parent))
    return module


def said(error: BaseException, path: str) -> str:
    """The reader's own error at the reader's own line, as in `mine.py, line 3: NameError: …`."""
    if isinstance(error, SyntaxError) and error.filename == path:
        line = error.lineno
        what = f"SyntaxError: {error.msg}"
    else:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = lines[-1] if lines else None
        what = in_one_line(error)
    return f"{Path(path).name}{f', line {line}' if line else ''}: {what}"


def in_one_line(error: BaseException) -> str:
    """The kind of error and what it says, without the rest of a long report."""
    words = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    words = words if len(words) <= LONGEST else f"{words[:LONGEST]} …"
    return f"{type(error).__name__}: {words}".strip(": ")


# What each part answers with, said where a reader's does not fit.
ANSWERS = {
    "projection": "q and what is kept of k and v, each (b, h, n, d)",
    "position": "what it was given from turn, and (b, h, i, j) from bias",
    "score": "(b, h, i, j) for q of (b, h, i, d) and k of (b, h, j, d)",
    "visibility": "True or False as (b, h, i, j), where b and h may be 1",
    "normalizer": "weights as its scores are, (b, h, i, j)",
    "merge": "heads as it was given them, (b, h, i, e)",
    "mixer": "the shape it was given, (b, n, d_model)",
}


@contextmanager
def blamed(variant: Mapping[str, Any]) -> Iterator[None]:
    """While a variant runs: an error in a reader's file, or because of it, is told as the reader's own."""
    theirs = [(question, value) for question, value in variant.items() if not isinstance(value, str) or is_file(value)]
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        loaded = {module.__file__ for name, module in list(sys.modules.items()) if name.startswith(PREFIX)}
        path = next((frame.filename for frame in reversed(frames) if frame.filename in loaded), None)
        if path is not None:
            raise UserCodeError(said(error, path)) from error
        if not theirs:
            raise
        question, value = theirs[0]
        raise UserCodeError(
            f"{value} does not fit: {in_one_line(error)}; a {question} answers {ANSWERS[question]}"
        ) from error


def question_of(thing: Any, *, name: str = "") -> str:
    """Which question does it answer? Said by its `question`, by its type, or by the names of its parameters."""
    named = getattr(thing, "question", None)
    if named is not None:
        if named not in QUESTIONS:
            raise Unknown("question", str(named), QUESTIONS)
        return str(named)
    home = thing if inspect.isclass(thing) else type(thing)
    if issubclass(home, Visible):
        return "visibility"
    if issubclass(home, Position | Absolute) or hasattr(home, "turn") or hasattr(home, "bias_of"):
        return "position"
    if hasattr(home, "open") and not issubclass(home, type):
        return "projection"
    call = home.forward if issubclass(home, nn.Module) else home.__call__ if inspect.isclass(thing) else thing
    if not callable(call):
        raise Refused(
            f"{name or repr(thing)} is of type {home.__name__}, and a part is a function, a class or a module of torch"
        )
    taken = [one for one in _parameters(call) if one != "self"]
    question = _by_parameters(taken, [one for one in _parameters(call, required=True) if one != "self"])
    if question is None:
        raise Refused(
            f"{name or getattr(thing, '__name__', thing)} takes ({', '.join(taken)}) and answers no question of ours:"
            " write (q, k, at) for a score, (scores, allowed) for a normalizer, (heads, x, tokens) for a merge,"
            ' (at) for a visibility, a module of (x) for a mixer, or set question = "score" on it'
        )
    return question


def _by_parameters(taken: list[str], required: list[str]) -> str | None:
    if taken[:2] == ["q", "k"] and taken[2:3] in ([], ["at"]):
        return "score"
    if taken[:1] == ["scores"]:
        return "normalizer"
    if taken[:1] == ["heads"]:
        return "merge"
    if taken == ["at"]:
        return "visibility"
    alone = len(set(required) - {"memory", "tokens", "memory_tokens"}) <= 1
    return "mixer" if taken and alone and taken[0] not in ("q", "query") else None


def is_builder(thing: Any) -> bool:
    """A function that asks only for sizes and settings returns a part; it is not one."""
    if not inspect.isfunction(thing):
        return False
    wanted = inspect.signature(thing).parameters.values()
    asks = all(one.name in SIZE_OF or one.default is not one.empty for one in wanted)
    return asks and _parameters(thing) != ["heads"]  # the one size that is also what a merge is called with


def settings_of(thing: Any) -> list[str]:
    """What may be written in parentheses after a function that is a part itself: all that has a default."""
    return [one.name for one in inspect.signature(thing).parameters.values() if one.default is not one.empty]


def _parameters(call: Callable[..., Any], *, required: bool = False) -> list[str]:
    """The names it is called with in order, all or those that it cannot go without."""
    try:
        wanted = inspect.signature(call).parameters.values()
    except (TypeError, ValueError) as error:
        raise BadSetting(f"{call!r} has no signature that can be read") from error
    ordered = [one for one in wanted if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return [one.name for one in ordered if not required or one.default is one.empty]
