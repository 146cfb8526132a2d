"""How far does a change reach? The measurements that several probes share."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnlab.errors import Refused
from attnlab.randomness import stream
from attnlab.subjects import files
from attnlab.subjects.subject import Subject

# Against the size of the output: above what rounding does to it, below the faintest leak worth a name.
ROUNDING = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
# A gradient is a sum of products without the output's cancellation, and a hidden token's is zero.
GRADIENT = 1e-2
# The largest map that is kept as evidence, and above which a change is looked for by cuts.
DRAWN = 24
# A word of a call that asks for the weights, or leaves them out.
WEIGHT_WORDS = (
    "need_weights",
    "output_attentions",
    "return_weights",
    "return_attn",
    "return_attention",
    "return_attentions",
    "return_attn_weights",
    "return_attention_weights",
    "with_weights",
    "output_weights",
)


class Setting(NamedTuple):
    """One way to ask: what a fault may hide behind."""

    draw: int = 0
    length: int = 8
    batch: int = 2
    train: bool = False
    loud: float = 1.0
    """How loud the changed tokens are."""
    whole: float = 1.0
    """How loud every token is; ids cannot shout, so there it is every matrix."""
    dropout: float | None = None
    """Another chance of dropout than the one that it was built with."""
    tracked: bool = True
    """Whether gradients are recorded: some modules take another path where they are not."""
    padded: int = 0
    """So many of the tokens are padding."""

    def words(self) -> str:
        said = [f"{self.length} tokens" if self.length > 1 else "1 token", f"batch of {self.batch}"]
        said += [f"{self.padded} of the tokens padding"] if self.padded else []
        said += ["in training mode"] if self.train else []
        said += [f"dropout of {self.dropout:g}"] if self.dropout is not None else []
        said += [f"the change {self.loud:g} times as loud"] if self.loud != 1 else []
        said += [f"everything {self.whole:g} times as loud"] if self.whole != 1 else []
        said += ["without gradients"] if not self.tracked else []
        return ", ".join(said)


PLAIN = Setting()


class Cell(NamedTuple):
    """Output i moved when token j changed, by so much of its size."""

    output: int
    token: int
    moved: float


def reached(subject: Subject, module: nn.Module, at: Setting, tokens: Iterable[int] | None = None) -> Tensor:
    """How far output i moves, against the size of all outputs, when token j alone changes: (i, j)."""
    x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
    y = told(subject, module, x, at)
    moved = torch.zeros(at.length, at.length, dtype=torch.float64)
    for j in range(at.length) if tokens is None else tokens:
        z = told(subject, module, subject.other(x, (slice(None), j), loud=at.loud * at.whole), at)
        moved[:, j] = gap(z, y) / size_of(z, y)
    return moved


def crossed(subject: Subject, module: nn.Module, at: Setting, cuts: Iterable[int], *, within: float) -> int | None:
    """The first cut whose earlier outputs move when all its later tokens change: one call a cut, for long inputs."""
    x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
    y = told(subject, module, x, at)
    for cut in cuts:
        z = told(subject, module, subject.other(x, (slice(None), slice(cut, None)), loud=at.loud * at.whole), at)
        if bool((gap(z, y)[:cut] / size_of(z, y) > within).any()):
            return cut
    return None


def told(subject: Subject, module: nn.Module, x: Tensor, at: Setting = PLAIN, *, real: Tensor | None = None) -> Tensor:
    """Its output, gradients recorded or not as the setting says."""
    with torch.set_grad_enabled(at.tracked):
        return subject.ask(module, x, real=real).detach()


def felt(subject: Subject, module: nn.Module, at: Setting, outputs: Iterable[int] | None = None) -> Tensor | None:
    """How strongly output i depends on token j by its gradient, against the strongest: (i, j).

    None where no gradient can be followed: nothing differentiable stands between the tokens and the output.
    """
    x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
    with following(subject, module, x) as (given, starts):
        y = subject.ask(module, given)
    if not starts or not y.requires_grad:
        return None
    heard = torch.zeros(at.length, at.length, dtype=torch.float64)
    for i in range(at.length) if outputs is None else outputs:
        heard[i] = pulled(y, starts, (slice(None), i)).amax(dim=0)
    return heard / heard.amax().clamp(min=1e-300)


class Start(NamedTuple):
    """Where a gradient is taken: vectors in (batch, tokens), or turned around."""

    leaf: Tensor
    turned: bool = False


@contextmanager
def following(subject: Subject, module: nn.Module, x: Tensor) -> Iterator[tuple[Tensor, list[Start]]]:
    """x, and where its gradients can be taken: in itself, or for ids in what its embeddings answer."""
    if not subject.way.ids:
        given = x.detach().clone().requires_grad_()
        yield given.clone(), [Start(given)]  # a module may write into what it is given
        return
    starts: list[Start] = []

    def start(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        ids = inputs[0] if inputs else None
        for turned in (False, True):
            if isinstance(ids, Tensor) and torch.equal(ids.long(), x.T if turned else x):
                leaf = output.detach().requires_grad_()
                starts.append(Start(leaf, turned))
                return leaf
        return None

    hooks = [part.register_forward_hook(start) for part in module.modules() if isinstance(part, nn.Embedding)]
    try:
        yield x, starts
    finally:
        for hook in hooks:
            hook.remove()


def pulled(y: Tensor, starts: Sequence[Start], where: Any) -> Tensor:
    """How strongly y[where], summed with random signs and sizes, depends on each token: (batch, tokens).

    A gradient that is no number says nothing here: it counts as none.
    """
    mixed = torch.randn(y.shape, generator=stream(0, "pulled"), dtype=torch.float64).to(y.dtype)
    total = (y[where] * mixed[where]).sum()
    leaves = [one.leaf for one in starts]
    found = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
    felt_by = torch.zeros(y.shape[:2], dtype=torch.float64)
    for gradient, one in zip(found, starts, strict=True):
        if gradient is not None:
            strength = gradient.double().abs().nan_to_num(nan=0.0, posinf=0.0).flatten(2).amax(dim=2)
            felt_by = felt_by + (strength.T if one.turned else strength)
    return felt_by


def moved_at(one: Tensor, other: Tensor) -> Tensor:
    """The largest difference at each token of each sentence; endless where only one of them is a number."""
    difference = (one.detach().double() - other.detach().double()).abs()
    unlike = one.isfinite() != other.isfinite()
    return difference.nan_to_num(nan=0.0, posinf=torch.inf).masked_fill(unlike, torch.inf).amax(dim=2)


def gap(one: Tensor, other: Tensor) -> Tensor:
    """The largest difference at each token; endless where one of them is a number and the other is not."""
    return moved_at(one, other).amax(dim=0)


def size_of(*outputs: Tensor) -> float:
    """The largest number among them."""
    sizes = [y.detach().double().abs().nan_to_num(nan=0.0, posinf=0.0).flatten() for y in outputs]
    return max([1e-300, *(float(size.amax()) for size in sizes if size.numel())])


def future(moved: Tensor, *, within: float) -> list[Cell]:
    """The outputs that moved with a later token, the most moved first."""
    return cells(torch.triu(moved, diagonal=1), within=within)


def cells(moved: Tensor, *, within: float) -> list[Cell]:
    found = [Cell(int(i), int(j), float(moved[i, j])) for i, j in (moved > within).nonzero().tolist()]
    return sorted(found, key=lambda cell: -cell.moved)


def leak(found: Sequence[Cell], moved: Tensor, at: Setting) -> dict[str, Any]:
    """A leak as evidence: its worst cell, every cell, and the whole map where it can be drawn."""
    worst = found[0]
    kept: dict[str, Any] = {
        "output": worst.output,
        "token": worst.token,
        "moved": number(worst.moved),
        "pairs": [[cell.output, cell.token] for cell in found],
        "setting": at._asdict(),
    }
    return kept | ({"map": map_of(moved)} if len(moved) <= DRAWN else {})


def number(value: float) -> float | str:
    """As evidence keeps it: a plain number, or the word for what is none."""
    return value if abs(value) < torch.inf else "not a number"


def map_of(moved: Tensor) -> list[list[float]]:
    """As evidence keeps it: -1 where something turned into no number."""
    return torch.where(moved.isfinite(), moved, -1.0).tolist()


def dtype_of(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float64)


def rounding_of(module: nn.Module) -> float:
    """What rounding may do at the precision of its parameters; `rounding` also sees a lower one inside."""
    return ROUNDING[dtype_of(module)]


def rounding(subject: Subject) -> float:
    """What rounding may do to its output, by the lowest precision that its input passes through."""
    lengths = (5, subject.sizes.length, 4, 8, 64)
    for at, module in asked(subject, (Setting(length=length) for length in lengths)):
        x = subject.give(at.length, batch=at.batch, dtype=dtype_of(module))
        passed = _Passed(x)
        with passed:
            subject.ask(module, x)
        return max((ROUNDING.get(dtype, 0.0) for dtype in passed.dtypes), default=0.0) or rounding_of(module)
    return ROUNDING[torch.float64]


class _Passed(TorchFunctionMode):
    """Follows what is made of x and notes its precisions; a constant of low precision adds no noise."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.made = {id(x): x}  # held, so that no other tensor takes its place in memory
        self.dtypes = {x.dtype}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        if any(id(one) in self.made for one in _tensors((args, kwargs))):
            written = args[:1] if getattr(func, "__name__", "").endswith("_") else ()
            for one in (*_tensors(returned), *_tensors(written)):
                self.made[id(one)] = one
                if one.is_floating_point():
                    self.dtypes.add(one.dtype)
        return returned


def _tensors(held: Any) -> Iterator[Tensor]:
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, Mapping):
        for one in held.values():
            yield from _tensors(one)
    elif isinstance(held, list | tuple):
        for one in held:
            yield from _tensors(one)


def asked(
    subject: Subject, settings: Iterable[Setting], *, refused: list[tuple[Setting, str]] | None = None
) -> Iterator[tuple[Setting, nn.Module]]:
    """Every setting that the subject accepts, with a module of that draw that has been called once to warm up.

    In float64 where the module can, else in float32. What it refuses is stepped over, and noted in `refused`; if it
    refuses everything, its last word is raised. A module that changes as it is called is given back as it was built.
    """
    made: dict[Any, nn.Module] = {}
    seen: set[Setting] = set()
    dtypes = [torch.float64, torch.float32]
    accepted, refusal = 0, None
    for at in settings:
        if subject.way.ids:
            at = at._replace(loud=1.0)
        if at in seen:
            continue
        seen.add(at)
        for dtype in tuple(dtypes):
            try:
                module = _ready(subject, at, dtype, made)
            except Exception as error:
                refusal = error
                continue
            dtypes, accepted, refusal = [dtype], accepted + 1, None
            yield at, module
            break
        else:
            if refused is not None and refusal is not None:
                refused.append((at, files.in_one_line(refusal)))
    if not accepted and refusal is not None:
        raise refusal


def lengths_of(refused: Sequence[tuple[Setting, str]]) -> dict[str, str]:
    """The lengths that were stepped over and why, as evidence names them."""
    return {str(at.length): why for at, why in refused}


def tried(settings: Iterable[Setting], refused: Sequence[tuple[Setting, str]]) -> dict[str, Any]:
    """What was asked and what was refused, as evidence names it."""
    lengths = sorted({at.length for at in settings})
    stepped = {length: why for length, why in lengths_of(refused).items() if int(length) not in lengths}
    return {"lengths": lengths} | ({"refused": stepped} if stepped else {})


def _ready(subject: Subject, at: Setting, dtype: torch.dtype, made: dict[Any, nn.Module]) -> nn.Module:
    """The module of a setting, warmed up; it must answer the same input alike, or nothing can be compared."""
    shouts = at.whole if subject.way.ids else 1.0
    key = (dtype, at.draw, at.train, at.dropout, shouts)
    x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype)
    if key in made:
        y = told(subject, made[key], x, at)
    else:
        module = subject.build(at.draw, dtype=dtype, train=at.train)
        if at.dropout is not None:
            dropping(module, at.dropout)
        if shouts != 1:
            _steeper(module, shouts)
        told(subject, module, x, at)
        y = told(subject, module, x, at)
        if not _alike(told(subject, module, x, at), y):
            module = Fresh(module)
            y = told(subject, module, x, at)
            if not _alike(told(subject, module, x, at), y):
                raise Refused("it answers the same input differently from call to call, so nothing can be compared")
        made[key] = module
    if not bool(y.isfinite().any()):
        raise Refused("its answer holds no finite number, so nothing can be seen to move")
    return made[key]


class Fresh(nn.Module):
    """A module that changes as it is called, as it was after one call to warm up."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside
        self.train(inside.training)

    def forward(self, *args: Any, **told: Any) -> Any:
        # What it kept of a graph cannot be copied, but what it holds can.
        held = (one for part in self.inside.modules() for one in _tensors(vars(part)))
        known = {id(one): one.detach().clone() for one in held if not one.is_leaf}
        return copy.deepcopy(self.inside, known)(*args, **told)


def _alike(one: Tensor, other: Tensor) -> bool:
    return bool((moved_at(one, other) <= 1e-12 * size_of(one, other)).all())


def dropping(module: nn.Module, p: float) -> None:
    """Every dropout of the module, given as a layer or kept as a number, set to p."""
    for part in module.modules():
        for name, value in list(vars(part).items()):
            chance = isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value < 1
            if chance and ("drop" in name or (name == "p" and "drop" in type(part).__name__.lower())):
                setattr(part, name, p)


def _steeper(module: nn.Module, times: float) -> None:
    """Every matrix but the embeddings' so many times as large: scores grow although ids cannot shout."""
    tables = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2 and id(parameter) not in tables:
                parameter.mul_(times)


class Asking(nn.Module):
    """A module called with one more word."""

    def __init__(self, inside: nn.Module, **words: Any) -> None:
        super().__init__()
        self.inside, self.words = inside, words
        self.train(inside.training)

    def forward(self, *args: Any, **told: Any) -> Any:
        return self.inside(*args, **{**told, **self.words})


def weight_words(module: nn.Module) -> tuple[str, ...]:
    """The words of its call that ask for the weights, or leave them out."""
    wanted = inspect.signature(module.forward).parameters
    found = tuple(word for word in WEIGHT_WORDS if word in wanted)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in wanted.values())
    if not found and takes_any and hasattr(getattr(module, "config", None), "output_attentions"):
        return ("output_attentions",)
    return found


def weights_of(subject: Subject, module: nn.Module, x: Tensor) -> Tensor | None:
    """Its weights (batch, heads, queries, keys), where it can show them: of its first layer, if there are several."""
    shape = (x.shape[0], x.shape[1], x.shape[1])

    def fits(found: Any) -> Tensor | None:
        for one in _tensors(found):
            if one.dim() in (3, 4) and (one.shape[0], *one.shape[-2:]) == shape:
                return one.detach().reshape(shape[0], -1, *shape[1:])
        return None

    shows: Any = getattr(module, "weights", None)
    if callable(shows):
        try:
            return fits(shows(x))
        except (Refused, TypeError, RuntimeError, ValueError):
            return None
    ways = (*(Asking(module, **{word: True}) for word in weight_words(module)), module)
    for way in ways:  # some return them unasked
        try:
            returned = subject.call(way, x)
        except (Refused, TypeError, RuntimeError, ValueError):
            continue
        shown = getattr(returned, "attentions", None)
        if shown is None and isinstance(returned, list | tuple):
            shown = returned[1:]
        found = fits(shown)
        if found is not None:
            return found
    return None


class Place(NamedTuple):
    """Where inside a module a difference is first seen: the part by its name, its heads where it has some."""

    part: str
    heads: tuple[int, ...] = ()

    def words(self) -> str:
        heads = f", head {', '.join(map(str, self.heads))}" if self.heads else ""
        return f"first seen in {self.part}{heads}"


def place_of(
    subject: Subject, module: nn.Module, at: Setting, output: int, token: int, *, within: float
) -> Place | None:
    """The first part of the module, in the order in which they answer, whose row `output` moves with a later token."""
    n = at.length
    at = at._replace(batch=at.batch + 1) if at.batch == n else at  # or one axis could be taken for another
    if n == subject.sizes.n_heads:
        return None
    x = subject.give(n, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
    changed = subject.other(x, (slice(None), token), loud=at.loud * at.whole)
    before, after = (_answers(subject, module, given, at) for given in (x, changed))
    for (name, one), (other_name, other) in zip(before, after, strict=False):
        if name != other_name or one.shape != other.shape:
            return None
        rows = _rows(one, output, n, subject.way.batch_first), _rows(other, output, n, subject.way.batch_first)
        if rows[0] is None or rows[1] is None:
            continue
        moved = (rows[0] - rows[1]).abs().nan_to_num(nan=0.0).amax(dim=(0, 2)) > within * size_of(one, other)
        if bool(moved.any()):
            some = moved.nonzero().flatten().tolist() if one.dim() == 4 and not moved.all() else []
            return Place(name, tuple(some))
    return None


def _answers(subject: Subject, module: nn.Module, x: Tensor, at: Setting) -> list[tuple[str, Tensor]]:
    """What each part of the module answers, in order."""
    said: list[tuple[str, Tensor]] = []

    def hear(name: str) -> Callable[..., None]:
        def keep(_: nn.Module, inputs: Any, output: Any) -> None:
            said.extend((name, one.detach().clone()) for one in list(_tensors(output))[:1])

        return keep

    hooks = [part.register_forward_hook(hear(name)) for name, part in module.named_modules() if name]
    try:
        told(subject, module, x, at)
    except Exception:
        return []
    finally:
        for hook in hooks:
            hook.remove()
    return said


def _rows(t: Tensor, i: int, n: int, batch_first: bool) -> Tensor | None:
    """Row i of what a part answered, (batch, heads, features); of weights and scores only the keys up to i."""
    if not t.is_floating_point():
        return None
    if t.dim() == 3 and not batch_first:
        t = t.transpose(0, 1)
    if t.dim() not in (3, 4) or t.shape[-2] != n:
        return None
    rows = (t[:, None] if t.dim() == 3 else t).double()[:, :, i]
    return rows[..., : i + 1] if t.shape[-1] == n else rows


def as_built(subject: Subject, settings: Iterable[Setting]) -> Iterator[tuple[Setting, nn.Module]]:
    """Every setting that the subject accepts, with a module of its own that has been called once.

    Unlike `asked`, a module that changes as it is called is given as it then is.
    """
    dtypes = [torch.float64, torch.float32]
    accepted, refusal = 0, None
    for at in settings:
        for dtype in tuple(dtypes):
            try:
                module = subject.build(at.draw, dtype=dtype, train=at.train)
                told(subject, module, subject.give(at.length, batch=at.batch, dtype=dtype), at)
            except Exception as error:
                refusal = error
                continue
            dtypes, accepted = [dtype], accepted + 1
            yield at, module
            break
    if not accepted and refusal is not None:
        raise refusal
