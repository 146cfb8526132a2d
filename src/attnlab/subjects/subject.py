"""What is audited? Anything that mixes tokens, built anew for each draw and called with what it can be told."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnlab.errors import LabError, Refused, UserCodeError, listed
from attnlab.mechanisms.tokens import Tokens
from attnlab.randomness import seeded, stream
from attnlab.subjects import files
from attnlab.subjects.compose import Size
from attnlab.subjects.twin import Twin

TRIPLE = ({"q", "query", "queries"}, {"k", "key", "keys"}, {"v", "value", "values"})
# A word that tells of padding, and whether True means hidden (False: real); None: to be found by trying.
PADDING = {
    "key_padding_mask": True,
    "src_key_padding_mask": True,
    "tgt_key_padding_mask": True,
    "attention_mask": False,
    "padding_mask": None,
    "pad_mask": None,
    "key_mask": None,
    "mask": None,
}
# A word that asks for the causal form, and how: a flag, or a mask of pairs whose polarity is found by trying.
CAUSAL = {
    "is_causal": "flag",
    "tgt_is_causal": "flag",
    "causal": "flag",
    "attn_mask": "mask",
    "src_mask": "mask",
    "tgt_mask": "mask",
    "causal_mask": "mask",
}
FORMS = {True: "hides", False: "keeps"}
# A mask of pairs as (queries, keys), or with one or two axes of length one before them; "adds": 0 and minus infinity.
SHAPES = {"": 0, " per sentence": 1, " per head": 2}
SAID = {"hides": "True hides", "keeps": "True may look", "adds": "added to the scores"}
# What a call may not go without although it says nothing to a whole input: where it starts.
STARTS = ("start_pos", "start_position", "pos_offset", "offset", "past_length", "cache_position_start")
# So many tokens are tried first; a module that was made for one length takes no other.
TRIED = 5
LENGTHS = (8, 32, 64, 128)
WIDTHS = (16, 32, 64, 48, 128, 256, 512, 768, 8, 4)
VOCAB = 11


class Way(NamedTuple):
    """How it is called: found by its signature, and by trying."""

    ids: bool = False
    triple: bool = False
    memory: bool = False
    batch_first: bool = True
    tokens: bool = False
    padding: tuple[str, bool] | None = None
    causal: tuple[tuple[str, str], ...] = ()
    needed: tuple[str, ...] = ()
    """Masks that it must be given, if only None."""
    starts: tuple[str, ...] = ()
    """Where it starts, which it must be told: at 0."""
    targets: str = ""
    """A word for the ids to be predicted, without which it answers for the last token alone."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A thing under audit: built anew for each draw, and asked as it wants to be asked."""

    name: str
    kind: str
    make: Callable[[int], nn.Module]
    """The module of a draw, as its author would build it; ours by its seed, others' from the global generators."""
    sizes: Size
    way: Way
    promises: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    """Those promises that nobody made in so many words."""
    waived: tuple[str, ...] = ()
    guess: str = ""
    vocab: int = VOCAB
    twin: Callable[[nn.Module], Twin] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    """What a probe may need besides: the WHAT that it should agree with, say."""

    def claims(self, promise: str) -> bool:
        """Whether it promises this; a promise with a value, hears-last:4, is claimed by its name."""
        return any(said.partition(":")[0] == promise.partition(":")[0] for said in self.promises)

    def value_of(self, promise: str) -> str:
        """What stands behind the colon of a promise."""
        return next((said.partition(":")[2] for said in self.promises if said.partition(":")[0] == promise), "")

    def build(self, draw: int = 0, *, dtype: torch.dtype = torch.float64, train: bool = False) -> nn.Module:
        """Draw 0 is as its author builds it; in any other, what begins at a constant has left it.

        A gate that begins at zero would hide whatever stands behind it.
        """
        with seeded(draw, "audit"):
            module = self.make(draw).to(dtype)
        if draw:
            generator = stream(draw, "shaken")
            with torch.no_grad():
                for parameter in module.parameters():
                    if parameter.is_floating_point() and parameter.numel() and parameter.std(unbiased=False) == 0:
                        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                        parameter.add_((0.3 * noise).to(parameter))
        return module.train(train)

    def give(
        self, n: int, *, batch: int = 2, seed: int = 0, loud: float = 1.0, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """A random input."""
        generator = stream(seed, "input")
        if self.way.ids:
            return torch.randint(self.vocab, (batch, n), generator=generator)
        return loud * torch.randn(batch, n, self.sizes.d_model, generator=generator, dtype=dtype)

    def other(self, x: Tensor, where: Any, *, seed: int = 1, loud: float = 1.0) -> Tensor:
        """x with other tokens at x[where]; loud ones shout."""
        changed = x.clone()
        if self.way.ids:
            shift = torch.randint(1, self.vocab, x[where].shape, generator=stream(seed, "other"))
            changed[where] = (x[where] + shift) % self.vocab
        else:
            fresh = torch.randn(x[where].shape, generator=stream(seed, "other"), dtype=torch.float64)
            changed[where] = (loud * fresh).to(x.dtype)
        return changed

    def ask(self, module: nn.Module, x: Tensor, *, real: Tensor | None = None) -> Tensor:
        """Its output (batch, tokens, features). Chance is the same in every call, so that only the input differs."""
        with seeded(0, "ask"), _same_draws(module), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return answer_of(self.call(module, x, real=real), self.way, x)

    def call(self, module: nn.Module, x: Tensor, *, real: Tensor | None = None) -> Any:
        """Whatever it returns, called as it wants to be called and told what it can be told."""
        return called(module, self.way, x, real=real, causal=self.claims("causal"))

    @property
    def hears_padding(self) -> bool:
        """Whether it can be told which tokens are padding."""
        return self.way.tokens or self.way.padding is not None


@contextmanager
def _same_draws(module: nn.Module) -> Iterator[None]:
    """Generators that modules hold draw alike in every call, too."""
    held = [part for part in module.modules() if isinstance(getattr(part, "generator", None), torch.Generator)]
    states = [part.generator.get_state() for part in held]  # type: ignore[union-attr, operator]
    try:
        yield
    finally:
        for part, state in zip(held, states, strict=True):
            part.generator.set_state(state)  # type: ignore[union-attr, operator]


def called(module: nn.Module, way: Way, x: Tensor, *, real: Tensor | None = None, causal: bool = False) -> Any:
    n = x.shape[1]
    told: dict[str, Any] = dict.fromkeys(way.needed) | dict.fromkeys(way.starts, 0)
    if way.targets:
        told[way.targets] = x
    if real is not None and way.tokens:
        told["tokens"] = Tokens.count(n, real=real)
    elif real is not None and way.padding is not None:
        word, hides = way.padding
        told[word] = (~real if hides else real).long() if word == "attention_mask" else (~real if hides else real)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    told |= {word: _formed(form, future, module) for word, form in way.causal if causal}
    told |= {
        word: _formed(form, future & False, module) for word, form in way.causal if word in way.needed and not causal
    }
    given = x if way.batch_first else x.transpose(0, 1)
    if way.triple:
        return module(given, given, given, **told)
    if way.memory:
        # The same for every sentence and every length, so that the input alone differs.
        memory = torch.randn(1, 7, *given.shape[2:], generator=stream(0, "memory"), dtype=torch.float64)
        memory = memory.to(given.dtype).expand(len(x), *memory.shape[1:])
        memory = memory if way.batch_first else memory.transpose(0, 1)
        return module(given, memory, **told)
    return module(given, **told)


def _formed(form: str, hidden: Tensor, module: nn.Module) -> Any:
    """A mask that hides these pairs, as the module wants it."""
    if form == "flag":
        return True
    kind, _, shape = form.partition(" ")
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float64)
    added = torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)
    made = {"hides": hidden, "keeps": ~hidden, "adds": added}[kind]
    return made.reshape(*[1] * SHAPES[f" {shape}" if shape else ""], *made.shape)


def answer_of(returned: Any, way: Way, x: Tensor) -> Tensor:
    """The output among what was returned: itself, the first of several, or what Hugging Face calls it."""
    for name in ("logits", "last_hidden_state"):
        if hasattr(returned, name):
            returned = getattr(returned, name)
    if isinstance(returned, Mapping):
        returned = tuple(returned.values())
    if isinstance(returned, list | tuple) and returned:
        returned = next((one for one in returned if isinstance(one, Tensor) and one.dim() == 3), returned[0])
    if not isinstance(returned, Tensor) or returned.dim() != 3:
        what = tuple(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
        raise Refused(f"for {tuple(x.shape)} it returned {what}; an audit needs (batch, tokens, features)")
    y = returned if way.batch_first else returned.transpose(0, 1)
    if y.shape[:2] != x.shape[:2]:
        raise Refused(f"for {tuple(x.shape)} it returned {tuple(y.shape)}; an audit needs an output for every token")
    return y


def way_of(module: nn.Module, sizes: Size, *, n: int = TRIED) -> Way:
    """How the module wants to be called: by the names it takes, then by trying vectors and ids, n of them."""
    wanted = inspect.signature(module.forward).parameters
    names = [name for name, one in wanted.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.POSITIONAL_ONLY)]
    triple = len(names) >= 3 and all(name in known for name, known in zip(names, TRIPLE, strict=False))
    memory = names[:2] in (["tgt", "memory"], ["x", "context"]) and wanted[names[1]].default is inspect.Parameter.empty
    # Torch's own layers keep it in the attention inside; anybody else's may turn the axes around on the way.
    torchs = module.modules() if type(module).__module__.startswith("torch.nn.") else (module,)
    batch_first = next((bool(part.batch_first) for part in torchs if hasattr(part, "batch_first")), True)
    needed = tuple(name for name in names if "mask" in name and wanted[name].default is inspect.Parameter.empty)
    starts = tuple(name for name in names if name in STARTS and wanted[name].default is inspect.Parameter.empty)
    way = Way(
        triple=triple, memory=memory, batch_first=batch_first, tokens="tokens" in wanted, needed=needed, starts=starts
    )
    targets = next((name for name in ("targets", "labels", "target") if name in wanted), "")
    way = _called_at_all(module, way, sizes, n, targets)
    x = _trial(module, sizes, n, ids=way.ids)
    if way.causal:
        return way
    pairs, each = torch.ones(n, n, dtype=torch.bool), torch.ones(2, n, dtype=torch.bool)
    told: list[tuple[str, str]] = []
    # What is called as a mask of tokens, and does not take one, may be one of pairs.
    wrong = [
        word
        for word in PADDING
        if word in wanted and PADDING[word] is not None and not _takes(module, way, x, word, each)
    ]
    formed = {word: _added(module, way, sizes, n, x, word) for word in ("mask", *CAUSAL, *wrong) if word in wanted}
    added = {word: form for word, form in formed.items() if form}
    for word in (word for word in CAUSAL if word in wanted and word not in added):
        hides = _polarity(module, way, x, word, pairs) if CAUSAL[word] == "mask" else None
        told += [(word, "flag")] if CAUSAL[word] == "flag" else [] if hides is None else [(word, FORMS[hides])]
    way = way._replace(causal=tuple(told))
    way = way._replace(causal=(*way.causal, *added.items()))
    for word in (word for word in PADDING if word in wanted and not way.tokens and word not in (*added, *wrong)):
        hides = _polarity(module, way, x, word, each) if PADDING[word] is None else PADDING[word]
        if hides is not None:
            return way._replace(padding=(word, hides))
        hides = _polarity(module, way, x, word, pairs) if word == "mask" else None
        if hides is not None:
            way = way._replace(causal=(*way.causal, (word, FORMS[hides])))
    return way


def _called_at_all(module: nn.Module, way: Way, sizes: Size, n: int, targets: str) -> Way:
    """As it is; with the ids to predict, if it answers for the last token otherwise; or with a mask it cannot lack."""
    try:
        return _tried(module, way, sizes, n)
    except LabError:
        if targets:
            with suppress(LabError):
                return _tried(module, way._replace(targets=targets), sizes, n)
        for word in way.needed:
            found = _form(module, way, sizes, n, word)
            if found is not None:
                return found
        raise


def _added(module: nn.Module, way: Way, sizes: Size, n: int, x: Tensor, word: str) -> str | None:
    """The form of an optional mask of pairs that no mask of True and False fits, and that hides as it should.

    Added to scores, a mask that is True throughout changes as little as one that is False throughout.
    """
    if CAUSAL.get(word) == "flag":
        return None
    causally = _form(module, way, sizes, n, word)
    form = dict(causally.causal).get(word, "") if causally else ""
    if form in ("", "hides", "keeps"):
        return None
    hidden = torch.zeros(n, n, dtype=torch.bool)
    with suppress(Exception), torch.no_grad(), seeded(0, "ask"), _same_draws(module):
        plain = answer_of(called(module, way, x), way, x)
        opened = answer_of(called(_Told(module, {word: _formed(form, hidden, module)}), way, x), way, x)
        return form if _alike(plain, opened) else None
    return None


def _form(module: nn.Module, way: Way, sizes: Size, n: int, word: str) -> Way | None:
    """The form of a mask of pairs in which a hidden key is heard least."""
    heard: dict[float, Way] = {}
    for form in (kind + shape for shape in SHAPES for kind in SAID):
        told = way._replace(causal=((word, form),))
        with suppress(Exception):
            told = _tried(module, told, sizes, n)
            x = _trial(module, sizes, n, ids=told.ids)
            other = x.clone()
            other[:, -1] = x[:, 0] if told.ids else -x[:, -1]
            with torch.no_grad(), seeded(0, "ask"):
                one, two = (answer_of(called(module, told, given, causal=True), told, given) for given in (x, other))
            heard.setdefault(float((one - two)[:, :-1].abs().amax()), told)
    quiet = [moved for moved in heard if moved == moved]
    return heard[min(quiet)] if quiet else None


def turned(module: nn.Module, sizes: Size, way: Way, *, n: int = TRIED) -> Way:
    """Tokens before batch, where sentences hear one another and no token ever hears another one."""
    if any(hasattr(part, "batch_first") for part in module.modules()):
        return way
    generator = stream(0, "turned")

    def moves(axis: int) -> bool:
        x = torch.randint(VOCAB, (n, n), generator=generator) if way.ids else _trial(module, sizes, n, ids=False)[:1]
        x = x if way.ids else torch.randn(n, n, x.shape[-1], generator=generator).to(x.dtype)
        moved = False
        for at in range(n):
            other = x.clone()
            other.select(axis, at).copy_((x.select(axis, at) + 1) % VOCAB if way.ids else -x.select(axis, at))
            with torch.no_grad(), seeded(0, "ask"):
                one, two = (answer_of(called(module, way, given), way, given) for given in (x, other))
            changed = ((one - two).abs() > 1e-6).any(dim=-1)
            changed.select(axis, at).zero_()
            moved = moved or bool(changed.any())
        return moved

    with suppress(Exception):
        if moves(0) and not moves(1):
            return way._replace(batch_first=False)
    return way


def _tried(module: nn.Module, way: Way, sizes: Size, n: int) -> Way:
    """Vectors, or else ids."""
    said: list[str] = []
    for ids in (False, True):
        x = _trial(module, sizes, n, ids=ids)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer_of(called(module, way, x), way, x)
        except LabError as error:
            said.append(str(error))
        except Exception as error:
            said.append(files.in_one_line(error))
        else:
            return way._replace(ids=ids)
    raise UserCodeError(f"it could be called with neither vectors ({said[0]}) nor ids ({said[1]})")


def _trial(module: nn.Module, sizes: Size, n: int, *, ids: bool) -> Tensor:
    if ids:
        return torch.arange(2 * n).reshape(2, n) % VOCAB
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    return torch.randn(2, n, sizes.d_model, generator=stream(0, "try")).to(dtype)


def _takes(module: nn.Module, way: Way, x: Tensor, word: str, real: Tensor) -> bool:
    """Whether it can be called with every token real."""
    way = way._replace(padding=(word, bool(PADDING[word])))
    with suppress(Exception), torch.no_grad(), seeded(0, "ask"), _same_draws(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer_of(called(module, way, x, real=real), way, x)
        return True
    return False


def _polarity(module: nn.Module, way: Way, x: Tensor, word: str, mask: Tensor) -> bool | None:
    """Whether True hides: a mask that hides nothing, and only it, leaves the answer as it is without one."""

    def asked(**told: Tensor) -> Tensor | None:
        try:
            with torch.no_grad(), seeded(0, "ask"), _same_draws(module), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return answer_of(called(_Told(module, told), way, x), way, x)
        except Exception:
            return None

    plain, full, empty = asked(), asked(**{word: mask}), asked(**{word: ~mask})
    if plain is None:
        return None
    keeps = full is not None and _alike(plain, full)
    hides = empty is not None and _alike(plain, empty)
    return hides if keeps or hides else None  # True, too, where it is not listened to


def _alike(one: Tensor, other: Tensor) -> bool:
    """With a mask it may go another way, and round otherwise."""
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5)


class _Told(nn.Module):
    """A module that is told a word more."""

    def __init__(self, module: nn.Module, told: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.module, self.told = module, told

    def forward(self, *given: Tensor, **told: Any) -> Any:
        return self.module(*given, **{**told, **self.told})


def guess_of(kind: str, way: Way, sizes: Size) -> str:
    """What was found out about how it is called, as a sentence."""
    takes = "ids" if way.ids else f"vectors of {sizes.d_model}"
    said = [f"taken as {'an' if kind[0] in 'aeiou' else 'a'} {kind} of {takes}"]
    if way.triple:
        said.append("called with (x, x, x)")
    if not way.batch_first:
        said.append("tokens before batch")
    if way.padding:
        said.append(f"told of padding by {way.padding[0]} ({'True hides' if way.padding[1] else 'True is real'})")
    said += [
        f"told who may look where by {word} ({SAID[form.split()[0]]})" for word, form in way.causal if form != "flag"
    ]
    if way.targets:
        said.append(f"given its ids as {way.targets}, too, since it answers for the last token alone without")
    return listed(said)
