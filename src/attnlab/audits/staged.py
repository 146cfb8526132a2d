"""How far has a student come? The three stages of the scaffold, each function looked at by itself."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnlab.audits.probes.standard_attention import Form, forms, standard, written
from attnlab.audits.weights import number
from attnlab.errors import LabError
from attnlab.randomness import seeded
from attnlab.records.finding import Finding
from attnlab.subjects.files import in_one_line

SEED, TOKENS, DIMS = 447, 10, 6
WITHIN = 1e-4
# A floor that a loud score can reach is no mask.
LOUD = 1e6


class Fault(NamedTuple):
    """What is wrong with one function, and the line on which it stands."""

    name: str
    line: int | None
    says: str

    def sentence(self) -> str:
        return f"{self.name}{f' (line {self.line})' if self.line else ''} {self.says}"


class Stage(NamedTuple):
    """One test of the assignment, and the functions that it needs."""

    code: str
    title: str
    heads: int
    causal: bool
    functions: Mapping[str, Callable[["Names"], str | None]]


class Names:
    """The scaffold's names as a student's file defines them."""

    def __init__(self, home: Any) -> None:
        self.home = home

    def __contains__(self, name: str) -> bool:
        return callable(self.find(name))

    def find(self, name: str) -> Any:
        return self.home.get(name) if isinstance(self.home, Mapping) else getattr(self.home, name, None)

    def line(self, name: str) -> int | None:
        try:
            return inspect.getsourcelines(self.find(name))[1]
        except (TypeError, OSError):
            return None

    def call(self, name: str, **given: Any) -> Any:
        """By the names that the function gives its parameters, in any order; by place where it has names of its own."""
        function = self.find(name)
        taken = list(inspect.signature(function).parameters)
        by_name = {one.lower(): one for one in taken}
        copies = {key: value.clone() if isinstance(value, Tensor) else value for key, value in given.items()}
        if all(key.lower() in by_name for key in copies):
            return function(**{by_name[key.lower()]: value for key, value in copies.items()})
        return function(*copies.values())


def staged(names: Any) -> list[Finding]:
    """A finding for each stage: a module, a mapping or anything else that holds the scaffold's names."""
    known = Names(names)
    return [_finding(known, stage) for stage in STAGES]


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """The assignment's q, k and v: drawn in the order key, value, query."""
    generator = torch.Generator().manual_seed(SEED)
    k, v, q = (torch.randn(1, TOKENS, DIMS, generator=generator) for _ in range(3))
    return q, k, v


def _finding(names: Names, stage: Stage) -> Finding:
    faults = [fault for name, look in stage.functions.items() if (fault := _fault(names, name, look)) is not None]
    whole = _fault(names, "self_attention", lambda known: _stitched(known, stage))
    faults += [whole] if whole is not None else []
    setting = f"{stage.heads} head{'s' if stage.heads > 1 else ''}, {'causal' if stage.causal else 'not causal'}"
    if not faults:
        sentence = f"{stage.title}: equals PyTorch's multi_head_attention_forward ({setting})"
    else:
        sentence = f"{stage.title}: {'; '.join(fault.sentence() for fault in faults)} ({setting})"
    return Finding(
        code=stage.code,
        promise="standard-attention",
        family="agreement",
        status="broken" if faults else "kept",
        sentence=sentence,
        cause="a function of this stage, or how self_attention uses it" if faults else "",
        evidence={
            "heads": stage.heads,
            "causal": stage.causal,
            "seed": SEED,
            "tokens": TOKENS,
            "dims": DIMS,
            "faults": [fault._asdict() for fault in faults],
        },
    )


def _fault(names: Names, name: str, look: Callable[[Names], str | None]) -> Fault | None:
    if name not in names:
        return Fault(name, None, "is missing")
    try:
        with seeded(0, "staged"):
            says = look(names)
    except LabError:
        raise
    except NotImplementedError:
        says = "is not written yet"
    except Exception as error:
        says = f"fails: {in_one_line(error)}"
    return None if says is None else Fault(name, names.line(name), says)


def _stitched(names: Names, stage: Stage) -> str | None:
    """The assignment's own test, and which form of attention it is instead."""
    q, k, v = drawn()
    y = names.call("self_attention", Q=q, K=k, V=v, n_heads=stage.heads, causal=stage.causal)
    expected = standard(q, k, v, stage.heads, causal=stage.causal)
    assert expected is not None
    wrong = _unlike(y, expected)
    if wrong is None:
        return None
    if isinstance(y, Tensor) and y.shape == expected.shape:
        for form, words in forms(Form(stage.heads, stage.causal), DIMS):
            if _unlike(y, written(q, k, v, form)) is None:
                return f"differs from PyTorch's attention: {' and '.join(words)}"
    return wrong


def _unlike(y: Any, expected: Tensor, within: float = WITHIN) -> str | None:
    """What is wrong with an answer, in words."""
    if y is None:
        return "returns nothing"
    if not isinstance(y, Tensor):
        return f"returns {type(y).__name__}, not a tensor"
    if y.shape != expected.shape:
        return f"returns {tuple(y.shape)}, and {tuple(expected.shape)} is expected"
    gap = (y.double() - expected.double()).abs()
    if bool((y.isfinite() == expected.isfinite()).all()) and float(gap.nan_to_num(0.0, 0.0).max()) <= within:
        return None
    if bool(y.isnan().any()):
        return "returns NaN"
    far = number(gap.nan_to_num(0.0, torch.inf).max())
    return "is off" if far is None else f"is off by {far:.2g}"


def _similarities(names: Names) -> str | None:
    q, k, _ = drawn()
    a = names.call("pairwise_similarities", Q=q, K=k)
    wrong = _unlike(a, q @ k.mT)
    return "gives K Qᵀ, not Q Kᵀ" if wrong and _unlike(a, k @ q.mT) is None else wrong


def _scaled(heads: int) -> Callable[[Names], str | None]:
    def look(names: Names) -> str | None:
        q, k, _ = drawn()
        a, d_head = q @ k.mT, DIMS / heads
        scaled = names.call("attn_scaled", A=a, n_embd=DIMS, n_heads=heads)
        wrong = _unlike(scaled, a / d_head**0.5)
        if wrong is None:
            return None
        said = {
            "does not scale": a,
            f"divides by √{DIMS} (n_embd), not by √{d_head:g} (n_embd / n_heads)": a / DIMS**0.5,
            f"divides by {d_head:g}, not by its root": a / d_head,
            f"divides by √{heads} (n_heads), not by √{d_head:g} (n_embd / n_heads)": a / heads**0.5,
            f"multiplies by √{d_head:g} and does not divide": a * d_head**0.5,
        }
        return next((words for words, other in said.items() if _unlike(scaled, other) is None), wrong)

    return look


def _softmax(names: Names) -> str | None:
    q, k, _ = drawn()
    a = q @ k.mT
    shares = names.call("attn_softmax", A=a)
    wrong = _unlike(shares, a.softmax(dim=-1))
    if wrong is not None:
        across = _unlike(shares, a.softmax(dim=-2)) is None
        return "runs over the queries (dim=-2), not over the keys (dim=-1)" if across else wrong
    loud = names.call("attn_softmax", A=1e3 * a)
    return None if bool(loud.isfinite().all()) else "gives no numbers for loud scores; take the largest off first"


def _outputs(names: Names) -> str | None:
    q, k, v = drawn()
    a = (q @ k.mT).softmax(dim=-1)
    return _unlike(names.call("compute_outputs", A=a, V=v), a @ v)


def _mask(names: Names) -> str | None:
    mask = names.call("make_causal_mask", n_tok=5)
    if not isinstance(mask, Tensor) or mask.shape[-2:] != (5, 5):
        return _unlike(mask, torch.ones(5, 5))
    shows, ones = mask.reshape(-1, 5, 5)[0], torch.ones(5, 5, dtype=torch.bool)
    if bool(torch.isneginf(shows).any()):
        shows = shows == 0  # a mask that is added
    said = {
        "is upside down: it shows what comes later": ones.triu(),
        "hides the token itself": ones.tril(-1),
        "shows one token ahead": ones.tril(1),
        "hides nothing": ones,
        "shows ones where a token may not look": ones.triu(1),
    }
    if torch.equal(shows != 0, ones.tril()):
        return None
    for words, other in said.items():
        if torch.equal(shows != 0, other):
            if words.endswith("not look") and "apply_causal_mask" in names and _applied(names) is None:
                return None  # the other polarity, and applied as such
            return words
    return "is no lower triangle of ones"


def _applied(names: Names) -> str | None:
    """Judged by what is left after the softmax, with the student's own mask if there is one that works."""
    q, k, _ = drawn()
    ones = torch.ones(TOKENS, TOKENS)
    mask = ones.tril()
    if "make_causal_mask" in names:
        mask = names.call("make_causal_mask", n_tok=TOKENS)
    for loud in (1.0, LOUD):
        a = loud * (q @ k.mT)
        masked = names.call("apply_causal_mask", A=a, mask=mask)
        if not isinstance(masked, Tensor) or masked.shape[-2:] != a.shape[-2:]:
            return _unlike(masked, a)
        expected = a.masked_fill(ones.tril() == 0, -torch.inf).softmax(dim=-1)
        if _unlike(masked.reshape(a.shape).softmax(dim=-1), expected) is None:
            continue
        if loud == 1 and _unlike(masked.reshape(a.shape), a * ones.tril()) is None:
            return "sets hidden scores to 0, which a softmax counts as exp(0); set them to -∞"
        if loud == 1:
            return "does not hide what comes later"
        return "hides what comes later under a finite floor that loud scores reach; use -∞"
    return None


def _split(names: Names) -> str | None:
    x, heads = drawn()[0], 3
    split = names.call("split_heads", x=x, n_heads=heads)
    wrong = _unlike(split, x.unflatten(-1, (heads, -1)).transpose(-3, -2))
    if wrong and _unlike(split, x.reshape(1, heads, TOKENS, -1)) is None:
        return "reshapes without a transpose, which mixes tokens"
    if wrong and _unlike(split, x.unflatten(-1, (heads, -1))) is None:
        return "leaves the heads behind the tokens; transpose them"
    return wrong


def _merged(names: Names) -> str | None:
    x, heads = drawn()[0], 3
    split = x.unflatten(-1, (heads, -1)).transpose(-3, -2)
    merged = names.call("merge_heads", x=split)
    wrong = _unlike(merged, x)
    if wrong and _unlike(merged, split.reshape(1, TOKENS, DIMS)) is None:
        return "reshapes without a transpose, which mixes tokens"
    return wrong


STAGES = (
    Stage(
        "stage-1",
        "stage 1, the core",
        1,
        False,
        {
            "pairwise_similarities": _similarities,
            "attn_scaled": _scaled(1),
            "attn_softmax": _softmax,
            "compute_outputs": _outputs,
        },
    ),
    Stage("stage-2", "stage 2, the causal mask", 1, True, {"make_causal_mask": _mask, "apply_causal_mask": _applied}),
    Stage(
        "stage-3",
        "stage 3, several heads",
        3,
        True,
        {"attn_scaled": _scaled(3), "split_heads": _split, "merge_heads": _merged},
    ),
)
