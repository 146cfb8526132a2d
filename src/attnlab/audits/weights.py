"""Which weights does a subject show, and where inside does it make and use them?"""

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnlab.audits.measure import Setting, asked, dtype_of
from attnlab.errors import LabError
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.tokens import Tokens
from attnlab.subjects.found import Around
from attnlab.subjects.subject import Subject

REFUSALS = (LabError, RuntimeError, ValueError, IndexError, AssertionError, TypeError, KeyError, AttributeError)
ASKS_FOR_WEIGHTS = re.compile(
    r"^(need|return|output|get|with|show|give)_.*(weight|attn|attention|map|prob|intermediate)"
)
SAYS_WEIGHTS = re.compile(r"attn|attention|weight|prob")
SAYS_OTHERWISE = re.compile(r"cross|pre_?soft|logit|score|simil")
HEADS = ("n_heads", "num_heads", "n_head", "heads", "nhead", "num_attention_heads", "n_h", "h", "H")


class Shown(NamedTuple):
    """The weights that came with an output, a layer each: (b, h, i, j), h = 1 where a mean over heads is shown."""

    layers: tuple[Tensor, ...]
    output: Tensor
    asked: Mapping[str, Any] = MappingProxyType({})
    """The words with which it was asked for them."""


class Place(NamedTuple):
    """One number among the weights."""

    layer: int
    sentence: int
    head: int
    row: int
    key: int | None = None

    def words(self, layers: int, heads: int) -> str:
        said = [f"layer {self.layer}"] if layers > 1 else []
        said += [f"head {self.head}"] if heads > 1 else []
        return ", ".join([*said, f"row {self.row}"])


class Situation(NamedTuple):
    """A setting, its module and input, and which tokens are real where padding is told."""

    at: Setting
    module: nn.Module
    x: Tensor
    real: Tensor | None = None

    def words(self) -> str:
        return f"{self.at.words()}{', with padding' if self.real is not None else ''}"

    def evidence(self) -> dict[str, Any]:
        return {"setting": self.at._asdict(), "real": None if self.real is None else self.real.tolist()}


class Told(nn.Module):
    """A module told something more; it remembers what was returned."""

    def __init__(self, inside: nn.Module, more: Mapping[str, Any]) -> None:
        super().__init__()
        self.inside, self.more = inside, dict(more)
        self.returned: Any = None

    def forward(self, *given: Any, **told: Any) -> Any:
        self.returned = self.inside(*given, **{**told, **self.more})
        return self.returned


class Weighing(nn.Module):
    """Asks for `weights(…)` where an output is expected, and keeps them."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside
        self.returned: Any = None

    def forward(self, *given: Any, **told: Any) -> Tensor:
        method: Callable[..., Any] = self.inside.weights  # type: ignore[assignment]
        wanted = inspect.signature(method).parameters
        self.returned = method(*given, **{name: value for name, value in told.items() if name in wanted})
        return torch.zeros(*given[0].shape[:2], 1)


def number(value: Any) -> float | None:
    """A plain number for the evidence; None where it is none."""
    found = float(value)
    return found if abs(found) < float("inf") else None


def real_of(batch: int, n: int, *, left: bool = False) -> Tensor:
    """Which tokens are real: the first sentence whole, each next one shorter by one, never empty."""
    short = torch.arange(batch) % max(n, 1)
    place = torch.arange(n)[None]
    return place >= short[:, None] if left else place < n - short[:, None]


def settings(full: int) -> Iterator[Setting]:
    """Small first; then loud ones, other draws, one sentence alone."""
    for length in (2, 3, 5, full):
        yield Setting(length=length, batch=3)
    for loud in (30.0, 1e3):
        yield Setting(length=5, batch=3, whole=loud)
    for draw in (1, 2):
        yield Setting(draw=draw, length=7, batch=3, whole=3.0)
    yield Setting(length=6, batch=1)


def situations(subject: Subject, at_all: Iterator[Setting] | None = None) -> Iterator[Situation]:
    """Every setting that the subject accepts, without padding and with padding that differs between sentences."""
    for at, module in asked(subject, settings(subject.sizes.length) if at_all is None else at_all):
        x = input_of(subject, module, at)
        yield Situation(at, module, x)
        if subject.hears_padding and at.batch > 1 and at.length > 1:
            real = real_of(at.batch, at.length)
            with suppress(*REFUSALS):
                subject.ask(module, x, real=real)
                yield Situation(at, module, x, real)


def input_of(subject: Subject, module: nn.Module, at: Setting) -> Tensor:
    """The input of a setting, at the precision of the module that it is for."""
    return subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))


def weighed(subject: Subject) -> Iterator[tuple[Situation, Shown]]:
    """The same with the weights that are shown; nothing where none are."""
    for one in situations(subject):
        found = shown(subject, one.module, one.x, real=one.real)
        if found is None:
            return
        yield one, found


def shown(subject: Subject, module: nn.Module, x: Tensor, *, real: Tensor | None = None) -> Shown | None:
    """The weights, by `weights(…)` or beside the output; None where it shows none."""
    if inspect.ismethod(getattr(module, "weights", None)):
        asking = Weighing(module)
        try:
            subject.ask(asking, x, real=real)
        except (LabError, TypeError, AttributeError):
            return None
        returned = asking.returned
        layers = tuple(returned) if isinstance(returned, list | tuple) else (returned,)
        if not all(isinstance(one, Tensor) and one.dim() == 4 for one in layers):
            return None
        return Shown(layers, subject.ask(module, x, real=real))
    with explicit(module):
        for more in ways_to_ask(module):
            told = Told(module, more)
            try:
                with _remembered(module) as inner:
                    output = subject.ask(told, x, real=real)
            except REFUSALS:
                continue
            layers = weights_in((told.returned, inner), output, batch=x.shape[0], n=x.shape[1])
            if layers:
                return Shown(layers, output, more)
    return None


def weights_in(returned: Any, output: Tensor, *, batch: int, n: int) -> tuple[Tensor, ...]:
    """The members of what was returned that have the shape of weights."""
    every = [(name, t) for name, t in members(returned) if t.is_floating_point() and t is not output]
    like = [(name, found) for name, t in every if (found := as_weights(t, batch, n)) is not None]
    named = [(name, t) for name, t in like if SAYS_WEIGHTS.search(name) and not SAYS_OTHERWISE.search(name)]
    return tuple(t for _, t in named or like)


def members(thing: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside, with the names on the way to it."""
    if isinstance(thing, Tensor):
        yield name, thing
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from members(value, f"{name}.{key}")
    elif isinstance(thing, Sequence) and not isinstance(thing, str):
        for key, value in zip(getattr(thing, "_fields", range(len(thing))), thing, strict=True):
            yield from members(value, f"{name}.{key}")


def as_weights(t: Tensor, batch: int, n: int) -> Tensor | None:
    """As (b, h, i, j), if it can be."""
    if t.dim() < 3 or t.shape[-2:] != (n, n):
        return None
    if t.dim() == 4:
        return t if len(t) == batch else t.transpose(0, 1) if t.shape[1] == batch else None
    if t.dim() == 3 and len(t) == batch:
        return t[:, None]
    return t.unflatten(0, (batch, -1)) if t.dim() == 3 and len(t) % batch == 0 else None


@contextmanager
def explicit(module: nn.Module, form: str = "eager") -> Iterator[bool]:
    """A Hugging Face model with the attention that can show its weights; whether there was a choice."""
    choose = getattr(module, "set_attn_implementation", None)
    before = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if choose is None or before not in ("eager", "sdpa"):  # any other was put there to be audited
        yield False
        return
    try:
        choose(form)
    except REFUSALS:
        yield False
        return
    try:
        yield True
    finally:
        choose(before)


class Core(NamedTuple):
    """One of our attentions inside, with what it was given and what it answered."""

    name: str
    module: Attention
    x: Tensor
    tokens: Tokens
    y: Tensor


def cores(subject: Subject, module: nn.Module, x: Tensor, *, real: Tensor | None = None) -> list[Core]:
    """Every attention of ours inside, in the order in which they answer."""
    found: list[Core] = []

    def note(name: str) -> Callable[..., None]:
        def hook(part: Any, given: Any, told: Any, y: Tensor) -> None:
            tokens = told.get("tokens") or Tokens.count(given[0].shape[1])
            found.append(Core(name, part, given[0], tokens, y))

        return hook

    ours = [(name, part) for name, part in module.named_modules() if isinstance(part, Attention)]
    handles = [part.register_forward_hook(note(name), with_kwargs=True) for name, part in ours]
    try:
        if ours:
            subject.ask(module, x, real=real)
    finally:
        for handle in handles:
            handle.remove()
    return found


ROLES = {
    "query": {"q", "query", "queries", "wq", "qs"},
    "key": {"k", "key", "keys", "wk", "ks"},
    "value": {"v", "value", "values", "wv", "vs", "val"},
    "packed": {"qkv", "wqkv", "query_key_value"},
    "pair": {"kv", "wkv", "key_value"},
    "out": {"o", "out", "output", "wo", "outs"},
}
WHOLE_NAMES = {
    "c_attn": "packed",
    "in_proj": "packed",
    "in_proj_weight": "packed",
    "c_proj": "out",
    "proj": "out",
    "projection": "out",
    "dense": "out",
    "final": "out",
    "fc": "out",
    "unify": "out",
    "unify_heads": "out",
    "unifyheads": "out",
}
FILLER = {"w", "weight", "proj", "projection", "lin", "linear", "layer", "fc", "to", "map", "net", "in", "attn", "self"}
FILLER |= {"attention", "c", "matrix", "mat", "head", "heads", "all", "mha", "dense", "projections"}


def role_of(name: str) -> str | None:
    """What a part makes, by the last word of its name: query, key, value, all three packed, out."""
    last = next((word for word in reversed(name.split(".")) if not word.isdigit()), "")
    plain = re.sub(r"([a-z])([A-Z])", r"\1_\2", last).lower()
    if plain in WHOLE_NAMES:
        return WHOLE_NAMES[plain]
    left = "_".join(word for word in plain.split("_") if word and word not in FILLER and not word.isdigit())
    return next((role for role, names in ROLES.items() if left in names), None)


class Passed(NamedTuple):
    """What went through one attention: its projections, and what came of them; (b, n, width) each."""

    name: str
    q: Tensor | None
    k: Tensor | None
    v: Tensor | None
    merged: Tensor
    n_heads: int | None
    after: Callable[[Tensor], Tensor]
    """What still lies between the merged heads and what was seen."""
    cross: bool = False
    """Its keys are those of another run."""


def attentions(
    subject: Subject, module: nn.Module, x: Tensor, *, real: Tensor | None = None, told: Mapping[str, Any] | None = None
) -> list[Passed]:
    """Every attention inside whose projections are recognized by their names, as it works in one call."""
    b, n = x.shape[:2]
    found = _recognized(module)
    seen: dict[str, list[tuple[list[Tensor], Any]]] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(part: Any, given: Any, more: Any, returned: Any) -> None:
            tensors = [one for one in (*given, *more.values()) if isinstance(one, Tensor) and one.is_floating_point()]
            seen.setdefault(name, []).append((tensors, returned))

        return hook

    parts = dict(module.named_modules())
    wanted = {name for one in found for name in (one.owner, *one.parts.values()) if name in parts}
    handles = [parts[name].register_forward_hook(note(name), with_kwargs=True) for name in wanted]
    try:
        with explicit(module):
            subject.ask(Told(module, told or {}), x, real=real)
    finally:
        for handle in handles:
            handle.remove()
    passed = [_passed(one, module, parts, seen, b, n) for one in found]
    return [one for one in passed if one is not None]


class _Recognized(NamedTuple):
    owner: str
    parts: Mapping[str, str]


def _recognized(module: nn.Module) -> list[_Recognized]:
    roles: dict[str, str] = {}
    for name, part in module.named_modules():
        under = any(name.startswith(f"{known}.") for known in roles)
        role = role_of(name) if name and not under and not isinstance(part, nn.Dropout) else None
        if role in ("query", "key", "value", "packed", "pair"):
            roles[name] = role
    for name, parameter in module.named_parameters():
        under = any(name.startswith(f"{known}.") for known in roles)
        role = role_of(name) if not under and parameter.dim() == 2 else None
        last = name.rpartition(".")[2]
        if role in ("query", "key", "value", "packed") and last not in ("weight", "bias") and role_of(last) == role:
            roles[name] = role
    outs: list[str] = []
    for name, _ in module.named_modules():
        nested = any(name.startswith(f"{known}.") for known in (*roles, *outs))
        if name and not nested and role_of(name) == "out" and not any(one.startswith(f"{name}.") for one in roles):
            outs.append(name)
    found: dict[str, _Recognized] = {}
    for name, role in roles.items():
        if role not in ("query", "packed"):
            continue
        owner = name
        while owner:
            owner = owner.rpartition(".")[0]
            inside = [(other, kind) for other, kind in roles.items() if _within(other, owner)]
            kinds = sorted(kind for _, kind in inside)
            if kinds in (["packed"], ["key", "query", "value"], ["pair", "query"]):
                mine = {kind: other for other, kind in inside}
                found[owner] = _Recognized(owner, {**mine, **_out(owner, roles, outs)})
                break
            if len(kinds) > 3:
                break
    return list(found.values())


def _out(owner: str, roles: Mapping[str, str], outs: Sequence[str]) -> dict[str, str]:
    """The output map next to these projections, upwards as long as no others are among them."""
    mine = {name for name in roles if _within(name, owner)}
    while True:
        near = [name for name in outs if _within(name, owner)]
        if near:
            return {"out": near[0]} if len(near) == 1 else {}
        if not owner:
            return {}
        owner = owner.rpartition(".")[0]
        if {name for name in roles if _within(name, owner)} != mine:
            return {}


def _within(name: str, owner: str) -> bool:
    return not owner or name.startswith(f"{owner}.")


def _passed(
    one: _Recognized,
    module: nn.Module,
    parts: Mapping[str, nn.Module],
    seen: Mapping[str, list[tuple[list[Tensor], Any]]],
    b: int,
    n: int,
) -> Passed | None:
    """From what was noted on the way: projections as they came out, or made again from bare parameters."""
    called = one.owner
    while called not in seen and called:
        called = called.rpartition(".")[0]
    given = [t for t in seen[called][0][0] if t.dim() == 3] if called in seen else []
    parameters = dict(module.named_parameters())
    q: Tensor | None
    k: Tensor | None
    v: Tensor | None

    def made(role: str, place: int = 0) -> Tensor | None:
        name = one.parts.get(role)
        if name is None:
            return None
        if name in parameters and given:
            weight, x = parameters[name], given[min(place, len(given) - 1)]
            if name.rpartition(".")[2].endswith("weight"):
                bias = parameters.get(f"{name.removesuffix('weight')}bias")
                return _ordered(nn.functional.linear(x, weight, bias), b, n)
            return _ordered(x @ weight, b, n) if weight.shape[0] == x.shape[-1] else None
        made_here = seen.get(name)
        return _ordered(_first(made_here[0][1]), b, n) if made_here else None

    if one.parts.get("packed") in parameters:  # each third may be given an input of its own
        thirds = [made("packed", place) for place in range(3)]
        if any(third is None or third.shape[-1] % 3 for third in thirds):
            return None
        q, k, v = [third.chunk(3, dim=-1)[place] for place, third in enumerate(thirds) if third is not None]
    elif "packed" in one.parts:
        whole = made("packed")
        if whole is None or whole.shape[-1] % 3:
            return None
        q, k, v = whole.chunk(3, dim=-1)
    elif "pair" in one.parts:
        pair, q = made("pair"), made("query")
        if pair is None or q is None or pair.shape[-1] % 2:
            return None
        k, v = pair.chunk(2, dim=-1)
    else:
        q, k, v = made("query", 0), made("key", 1), made("value", 2)
    out = one.parts.get("out")
    after: Callable[[Tensor], Tensor] = _as_it_is
    if out is not None and out in seen:
        merged = _ordered(_first(seen[out][0][0]), b, n)
    else:
        merged = _ordered(_first(seen[called][0][1]), b, n) if called in seen else None
        after = parts[out] if out is not None else _as_it_is
    if merged is None:
        return None
    entered = [seen[name][0][0] for role in ("query", "key", "pair") if (name := one.parts.get(role, "")) in seen]
    asks, told = (t[0] if t else None for t in entered[:2]) if len(entered) > 1 else (given + given)[:2]
    cross = asks is not None and told is not None and not _same(asks, told)
    return Passed(one.owner, q, k, v, merged, _heads(module, one.owner), after, cross)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _as_it_is(t: Tensor) -> Tensor:
    return t


def _first(thing: Any) -> Any:
    return next((t for _, t in members(thing) if t.dim() in (2, 3)), None)


def _ordered(t: Tensor | None, b: int, n: int) -> Tensor | None:
    """As (b, n, width), if it can be."""
    if t is None:
        return None
    if t.dim() == 3 and t.shape[:2] == (b, n):
        return t
    if t.dim() == 3 and t.shape[:2] == (n, b):
        return t.transpose(0, 1)
    return t.unflatten(0, (b, n)) if t.dim() == 2 and len(t) == b * n else None


def _heads(module: nn.Module, owner: str) -> int | None:
    """The number of heads that is written nearest to the projections."""
    parts = dict(module.named_modules())
    while True:
        here = parts.get(owner)
        if isinstance(here, Around) and here.layout == "b n d":
            return 1
        for holder in (here, getattr(here, "config", None)):
            for name in HEADS:
                value = getattr(holder, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        if not owner:
            return None
        owner = owner.rpartition(".")[0]


def louder(module: nn.Module, by: float) -> nn.Module | None:
    """A copy whose queries and keys shout, so that norms before them cannot hush the scores; None if none is known."""
    changed = copy.deepcopy(module)
    names = [name for name, _ in changed.named_parameters() if _asks(name)]
    with torch.no_grad():
        for name, parameter in changed.named_parameters():
            if name in names:
                parameter.mul_(by)
    return changed if names else None


def _asks(name: str) -> bool:
    words = name.split(".")
    return any(role_of(word) in ("query", "key", "packed") for word in words[-3:])


def ways_to_ask(module: nn.Module) -> Iterator[dict[str, Any]]:
    """With every word that asks for weights, with each alone, and as it is called anyway."""
    call = module.function if isinstance(module, Around) else module.forward
    try:
        wanted = inspect.signature(call).parameters
    except (TypeError, ValueError):
        wanted = {}  # type: ignore[assignment]
    words = [name for name in wanted if ASKS_FOR_WEIGHTS.match(name) and "mask" not in name]
    if hasattr(getattr(module, "config", None), "output_attentions") and "output_attentions" not in words:
        words.append("output_attentions")
    each = {"average_attn_weights": False} if "average_attn_weights" in wanted else {}
    if words and not isinstance(module, Around):
        yield {**dict.fromkeys(words, True), **each}
        for word in words if len(words) > 1 else ():
            yield {word: True, **each}
    yield {}


@contextmanager
def _remembered(module: nn.Module) -> Iterator[list[Any]]:
    """What a function of q, k and v returns besides its output, which its module leaves behind."""
    kept: list[Any] = []
    if not isinstance(module, Around):
        yield kept
        return
    function = module.function
    words = [name for name in inspect.signature(function).parameters if ASKS_FOR_WEIGHTS.match(name)]

    def told(*given: Any, **more: Any) -> Any:
        kept.append(function(*given, **more, **{name: True for name in words if "mask" not in name}))
        return kept[-1]

    module.function = told
    try:
        yield kept
    finally:
        module.function = function
