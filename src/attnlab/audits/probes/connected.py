"""Does every parameter reach the output, and does the output's gradient reach every parameter?"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from attnlab.audits.measure import ROUNDING, Setting, as_built, dtype_of, rounding
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.errors import listed
from attnlab.randomness import stream
from attnlab.subjects.subject import Subject

# A gradient below this share of the largest is rounding, unless moving the parameter says otherwise.
FAINT = 1e-9
SIZES = (0.1, 1.0, 10.0)
# Of the rows of a layer, in a row: what a lost head leaves behind.
BLOCK = 1 / 16


class Verdict(NamedTuple):
    """What became of a parameter that no gradient reached."""

    word: str
    """learns | lost | cut | cancelled | aside"""
    moved: float = 0.0


def look(subject: Subject) -> Outcome:
    settings = [Setting(length=5), Setting(draw=1, length=7, loud=3.0), Setting(draw=2, length=subject.sizes.length)]
    settings += [Setting(draw=1, length=4, train=True), Setting(length=3 * subject.sizes.length)]
    heard: dict[str, Tensor] = {}
    built: list[tuple[Setting, nn.Module]] = []
    frozen: list[str] = []
    for at, module in as_built(subject, iter(settings)):
        names = dict(module.named_parameters())
        if not names:
            return Silent("it has no parameters")
        y = subject.ask(module, _input(subject, module, at))
        outside = _outside(module, y)
        if outside is not None:
            return Broke(
                f"a tensor of shape {tuple(outside.shape)} learns and is no parameter of the module: no optimizer that"
                " is given module.parameters() will ever move it",
                {"shape": list(outside.shape), "setting": at._asdict()},
            )
        frozen = [name for name, one in names.items() if not one.requires_grad]
        for name, gradient in _gradients(names, y).items():
            heard[name] = torch.maximum(heard[name], gradient) if name in heard else gradient
        built.append((at, module))
    loudest = max((float(one.max()) for one in heard.values() if one.numel()), default=0.0)
    noise = 10 * rounding(subject)
    quiet = [name for name, one in heard.items() if one.numel() and float(one.max()) <= max(FAINT, noise) * loudest]
    verdicts = {name: _verdict(subject, built, name, noise) for name in quiet}
    return (
        _sentence(heard, verdicts, frozen)
        or _lost_rows(subject, built, heard, loudest)
        or _held(heard, verdicts, frozen)
    )


def _sentence(heard: dict[str, Tensor], verdicts: dict[str, Verdict], frozen: list[str]) -> Broke | None:
    lost = [name for name, one in verdicts.items() if one.word == "lost" and name not in frozen]
    cut = [name for name, one in verdicts.items() if one.word == "cut" and name not in frozen]
    evidence = {"parameters": len(heard), "lost": lost, "cut": cut}
    if lost:
        return Broke(
            f"no output depends on {_some(lost)}: changed by any amount, every number stays the same", evidence
        )
    if cut:
        moved = max(verdicts[name].moved for name in cut)
        return Broke(
            f"no gradient reaches {_some(cut)}, though the output changes with it: it cannot learn",
            {**evidence, "moved": moved},
        )
    return None


def _held(heard: dict[str, Tensor], verdicts: dict[str, Verdict], frozen: list[str]) -> Held:
    said = [f"each of its {len(heard)} parameters is connected to the output"]
    for word, why in STATED.items():
        names = [name for name, one in verdicts.items() if one.word == word]
        if names:
            said.append(f"{_some(names)} {why}")
    if frozen:
        said.append(f"{_some(frozen)} is frozen")
    unused = {
        name: int((one.flatten(1).amax(1) == 0).sum()) for name, one in heard.items() if one.dim() > 1 and one.numel()
    }
    unused = {name: rows for name, rows in unused.items() if rows and name not in verdicts}
    for name, rows in list(unused.items())[:3]:
        said.append(f"{rows} of the {len(heard[name])} rows of {name} were not used by these inputs")
    stated = {name: one.word for name, one in verdicts.items()}
    return Held("; ".join(said), {"parameters": len(heard), "stated": stated, "frozen": frozen, "unused_rows": unused})


STATED = {
    "shift": "adds the same to every score of a row, which a softmax does not notice (as a key's bias)",
    "cancelled": "is cancelled by what follows it (a softmax or a norm), so that its gradient is zero",
    "aside": "reaches only what is returned beside the output",
}


def _some(names: list[str]) -> str:
    return listed(names) if len(names) <= 4 else f"{listed(names[:3])} and {len(names) - 3} more"


def _input(subject: Subject, module: nn.Module, at: Setting) -> Tensor:
    return subject.give(at.length, batch=at.batch, loud=at.loud, dtype=dtype_of(module))


def _gradients(names: dict[str, nn.Parameter], y: Tensor) -> dict[str, Tensor]:
    """How large each number's gradient is, for a random sum of the outputs."""
    learning = {name: one for name, one in names.items() if one.requires_grad}
    weight = torch.randn(y.shape, generator=stream(0, "connected"), dtype=torch.float64).to(y.dtype)
    total = (y * weight).sum()
    found = (
        torch.autograd.grad(total, list(learning.values()), allow_unused=True)
        if total.requires_grad and learning
        else [None] * len(learning)
    )
    zero = {name: torch.zeros_like(one) for name, one in names.items()}
    some = {name: one.detach().abs().nan_to_num() for name, one in zip(learning, found, strict=True) if one is not None}
    return {name: one.double() for name, one in (zero | some).items()}


def _outside(module: nn.Module, y: Tensor) -> Tensor | None:
    """A leaf that learns, takes part, and is not among the module's own."""
    known = {id(one) for one in module.parameters()}
    seen: set[Any] = set()
    left = [y.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and id(leaf) not in known:
            return leaf
        left += [one for one, _ in node.next_functions]
    return None


def _verdict(subject: Subject, built: list[tuple[Setting, nn.Module]], name: str, noise: float) -> Verdict:
    """Moved by noise of several sizes, on several inputs: what changes?"""
    bits, aside, cut = False, False, 0.0
    for at, module in built:
        x = _input(subject, module, at)
        before = _answers(subject, module, x)
        size = float(before[0].abs().max().clamp(min=1e-300))
        for amount in SIZES:
            with _noised(module, name, amount):
                after = _answers(subject, module, x)
                moved = float((after[0] - before[0]).abs().nan_to_num().max()) / size
                if moved > noise * max(amount, 1.0):
                    cut = max(cut, moved)
                    y = subject.ask(module, x)
                    reached = _gradients(dict(module.named_parameters()), y)
                    if float(reached[name].max()) > FAINT * max(float(one.max()) for one in reached.values()):
                        return Verdict("learns")
            bits = bits or not torch.equal(after[0], before[0])
            others = zip(after[1:], before[1:], strict=False)
            aside = aside or any(a.shape != b.shape or not torch.equal(a, b) for a, b in others)
    if cut:
        return Verdict("cut", cut)
    if bits:
        return Verdict("shift" if _only_shifts_rows(subject, *built[0], name) else "cancelled")
    return Verdict("aside" if aside else "lost")


def _answers(subject: Subject, module: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and whatever floating-point tensors of one row a sentence come with it."""
    returned: list[Any] = []
    hook = module.register_forward_hook(lambda _, given, answer: returned.append(answer))
    try:
        with torch.no_grad():
            y = subject.ask(module, x)
    finally:
        hook.remove()
    leaves = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return [y, *(leaf for leaf in leaves if leaf.dim() == 2)]


@contextmanager
def _noised(module: nn.Module, name: str, amount: float) -> Iterator[None]:
    parameter = module.get_parameter(name)
    kept = parameter.detach().clone()
    noise = torch.randn(parameter.shape, generator=stream(0, f"moved.{name}"), dtype=torch.float64)
    with torch.no_grad():
        parameter.add_((amount * noise).to(parameter))
    try:
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(kept)


def _only_shifts_rows(subject: Subject, at: Setting, module: nn.Module, name: str) -> bool:
    """Whether every softmax is given the scores it was given before, each row moved by a constant."""
    x = _input(subject, module, at)
    before = _softmaxed(subject, module, x)
    with _noised(module, name, 1.0):
        after = _softmaxed(subject, module, x)
    moved = False
    for (a, dim), (b, _) in zip(before, after, strict=False):
        if a.shape != b.shape:
            return False
        step = (b - a).double()
        seen = step.isfinite()
        low = step.masked_fill(~seen, torch.inf).amin(dim)
        high = step.masked_fill(~seen, -torch.inf).amax(dim)
        size = float(a.abs().masked_fill(~seen, 0).max()) + float(high.abs().nan_to_num(posinf=0, neginf=0).max())
        if float((high - low).max()) > 1e3 * ROUNDING[a.dtype] * max(size, 1e-300):
            return False
        moved = moved or bool((step[seen] != 0).any())
    return moved and len(before) == len(after)


def _softmaxed(subject: Subject, module: nn.Module, x: Tensor) -> list[tuple[Tensor, int]]:
    with _Softmaxes() as heard:
        subject.ask(module, x)
    return heard.given


class _Softmaxes(TorchFunctionMode):
    """What every softmax is given, and along which axis it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[Tensor, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, told = getattr(func, "__name__", ""), kwargs or {}
        if name == "softmax" and args:
            self.given.append((args[0].detach().clone(), args[1] if len(args) > 1 else told.get("dim", -1)))
        elif name == "scaled_dot_product_attention" and len(args) > 1:
            q, k = args[0].detach(), args[1].detach()
            shared = q.shape[-3] // k.shape[-3] if q.dim() == 4 else 1
            self.given.append((q @ (k.repeat_interleave(shared, dim=-3) if shared > 1 else k).mT, -1))
        return func(*args, **told)


def _lost_rows(
    subject: Subject, built: list[tuple[Setting, nn.Module]], heard: dict[str, Tensor], loudest: float
) -> Broke | None:
    """A block of rows of a layer that no output hears, in no draw and at no length: a head that is lost."""
    layers = {f"{name}.weight" for name, one in built[0][1].named_modules() if isinstance(one, nn.Linear)}
    for name in sorted(layers & set(heard)):
        one = heard[name]
        if not float(one.max()) > FAINT * loudest:
            continue
        dead = (one.amax(1) == 0).tolist()
        first, run = _longest_run(dead)
        if run >= max(2, BLOCK * len(dead)) and not _is_a_table(subject, built[0][1], name):
            return Broke(
                f"no output hears rows {first} to {first + run - 1} of {name}: a head, or a part of one, is lost",
                {"parameter": name, "rows": [first, first + run - 1], "of": len(dead)},
            )
    return None


def _longest_run(dead: list[bool]) -> tuple[int, int]:
    best, start = (0, 0), 0
    for place, one in enumerate([*dead, False]):
        if not one:
            if place - start > best[1]:
                best = (start, place - start)
            start = place + 1
    return best


def _is_a_table(subject: Subject, module: nn.Module, name: str) -> bool:
    """A layer with a row for every position: more of them live as the input grows."""
    counts = set()
    for length in (3, 5, subject.sizes.length):
        try:
            y = subject.ask(module, subject.give(length, dtype=dtype_of(module)))
        except Exception:  # a length that it refuses tells nothing here
            continue
        counts.add(int((_gradients(dict(module.named_parameters()), y)[name].amax(1) > 0).sum()))
    return len(counts) > 1


PROBE = Probe(
    code="connected",
    promise="trainable",
    family="learning",
    says="Every parameter changes the output, and the output's gradient reaches every parameter.",
    cause="a layer that is built and never called (or another called in its place), a detach or a no_grad on the way,"
    " or layers in a plain list instead of nn.ModuleList",
    example="attnlab audit tests/museum/unused_layer.py says: no output depends on out.weight, out.bias: changed by "
    "any amount, every number stays the same",
    look=look,
    quick=True,
    taken=True,
)
