"""Is it the attention of PyTorch, with its own projections? And if not, which one is it?"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from attnlab.audits.measure import Setting
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.weights import Passed, Situation, attentions, number, situations
from attnlab.subjects.subject import Subject

# A softmax taken in float32 is off by 1e-7.
WITHIN = 1e-6


@dataclass(frozen=True)
class Form:
    """How heads are made of q, k and v. Each field is one thing that may have gone another way."""

    heads: int
    causal: bool
    scale: str = "d_head"
    axis: str = "keys"
    split: str = "features"
    merge: str = "features"
    ask: str = "q k"
    carry: str = "v"
    mask: str = "before"


WORDS = {
    ("scale", "d_model"): "the scores are divided by √{width} (√d_model), not by √{d_head} (√d_head)",
    ("scale", "none"): "the scores are not divided by √{d_head} (√d_head)",
    ("scale", "whole"): "the scores are divided by {d_head} (d_head), not by its root",
    ("scale", "times"): "the scores are multiplied by √{d_head} (√d_head), not divided",
    ("axis", "queries"): "the softmax runs over the queries (dim=-2), not over the keys (dim=-1)",
    ("axis", "heads"): "the softmax runs over the heads (dim=1), not over the keys (dim=-1)",
    ("axis", "nothing"): "there is no softmax",
    ("split", "places"): "the heads are split by a reshape without a transpose, which mixes tokens",
    ("merge", "places"): "the heads are merged by a reshape without a transpose, which mixes tokens",
    ("ask", "k q"): "queries and keys are exchanged",
    ("ask", "q q"): "keys are made by the query projection",
    ("ask", "k k"): "queries are made by the key projection",
    ("carry", "k"): "values are made by the key projection",
    ("carry", "q"): "values are made by the query projection",
    ("mask", "none"): "the causal mask is missing",
    ("mask", "after"): "the causal mask is applied after the softmax",
    ("mask", "times"): "the scores are multiplied by the causal mask",
    ("mask", "strict"): "the causal mask hides the token itself",
    ("mask", "wide"): "the causal mask shows one token ahead",
    ("mask", "inverted"): "the causal mask is inverted",
    ("causal", "True"): "it is causal",
    ("causal", "False"): "it is not causal",
}
OTHERWISE: dict[str, tuple[str, ...]] = {
    name: tuple(value for field, value in WORDS if field == name)
    for name in ("scale", "axis", "split", "merge", "ask", "carry", "mask")
}


class Compared(NamedTuple):
    """What one attention did, beside PyTorch's with the same projections."""

    form: Form
    apart: float


def look(subject: Subject) -> Outcome:
    """Small first; where it differs, the forms it may have taken instead are tried on more tokens."""
    lengths: set[int] = set()
    furthest, said = 0.0, ""
    for one in situations(subject, _settings(subject.sizes.length)):
        found = [at for at in attentions(subject, one.module, one.x, real=one.real) if _enough(at)]
        if not found:
            return Silent("no query, key and value projections are recognized in it")
        for layer, passed in enumerate(found):
            if passed.cross and one.real is not None:  # what was told of padding is told of the other run
                continue
            unused = [name for name, t in (("query", passed.q), ("key", passed.k), ("value", passed.v)) if t is None]
            compared = None if unused else _nearest(subject, one, passed)
            if compared is None or compared.apart > _within(passed.merged):
                where = f" in layer {layer} ({passed.name})" if len(found) > 1 else ""
                return _named(subject, one, passed, layer, where, unused, compared)
            furthest = max(furthest, compared.apart)
            said = f"{compared.form.heads} heads, {'causal' if compared.form.causal else 'not causal'}"
        lengths.add(one.at.length)
    if not lengths:
        return Silent("no query, key and value projections are recognized in it")
    return Held(
        f"with its own projections it equals PyTorch's attention, {said}, to {furthest:.0e} of its size",
        {"furthest": furthest, "lengths": sorted(lengths), "form": said},
    )


def _within(t: Tensor) -> float:
    return WITHIN if t.dtype is torch.float64 else 1e-4


def _settings(full: int) -> Iterator[Setting]:
    for length in (2, 5, 7):
        yield Setting(length=length, batch=3)
    yield Setting(draw=1, length=7, batch=3, whole=3.0)
    yield Setting(length=full, batch=2)


def _enough(passed: Passed) -> bool:
    """At least the queries: what is never called is a finding, what is not recognized is none."""
    return sum(t is not None for t in (passed.q, passed.k, passed.v)) >= 2


def _nearest(subject: Subject, one: Situation, passed: Passed) -> Compared | None:
    """PyTorch's answer, for the heads that it says it has, causal if it claims to be; otherwise the nearer of both."""
    q, k, v = passed.q, passed.k, passed.v
    assert q is not None
    assert k is not None
    assert v is not None
    tried: list[Compared] = []
    for heads in _head_counts(passed):
        for causal in (False,) if passed.cross else (True,) if subject.claims("causal") else (False, True):
            y = standard(q, k, v, heads, causal=causal, real=one.real)
            if y is not None:
                tried.append(Compared(Form(heads, causal), _apart(passed, y, one.real)))
    return min(tried, key=lambda found: found.apart) if tried else None


def _head_counts(passed: Passed) -> list[int]:
    if passed.n_heads is not None:
        return [passed.n_heads]
    assert passed.q is not None
    width = passed.q.shape[-1]
    return [h for h in range(1, width + 1) if width % h == 0]


def standard(q: Tensor, k: Tensor, v: Tensor, heads: int, *, causal: bool, real: Tensor | None = None) -> Tensor | None:
    """torch.nn.functional.multi_head_attention_forward on projections that are made already."""
    n, width = q.shape[1], q.shape[-1]
    if width % heads:
        return None
    k, v = (_repeated(t, width, heads) for t in (k, v))
    if not q.shape == k.shape == v.shape:
        return None
    same, zero = torch.eye(width, dtype=q.dtype), torch.zeros(width, dtype=q.dtype)
    y, _ = F.multi_head_attention_forward(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), width, heads,
        in_proj_weight=None, in_proj_bias=zero.repeat(3), bias_k=None, bias_v=None, add_zero_attn=False,
        dropout_p=0.0, out_proj_weight=same, out_proj_bias=zero, need_weights=False,
        attn_mask=torch.ones(n, n).triu(1).bool() if causal else None,
        key_padding_mask=None if real is None else ~real,
        use_separate_proj_weight=True, q_proj_weight=same, k_proj_weight=same, v_proj_weight=same,
    )  # fmt: skip
    return y.transpose(0, 1)


def _repeated(t: Tensor, width: int, heads: int) -> Tensor:
    """A few key-value heads, each for several query heads."""
    d_head = width // heads
    if t.shape[-1] == width or t.shape[-1] % d_head or heads % (t.shape[-1] // d_head):
        return t
    return rearrange(t, "b n (h d) -> b n h d", d=d_head).repeat_interleave(width // t.shape[-1], dim=2).flatten(-2)


def written(q: Tensor, k: Tensor, v: Tensor, form: Form) -> Tensor:
    """The same written out, in another form."""
    b, n, width = q.shape
    q, k = {"q k": (q, k), "k q": (k, q), "q q": (q, q), "k k": (k, k)}[form.ask]
    v = {"v": v, "k": k, "q": q}[form.carry]
    d_head = width // form.heads
    if form.split == "features":
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=form.heads) for t in (q, k, v))
    else:
        q, k, v = (t.reshape(b, form.heads, n, d_head) for t in (q, k, v))
    scale = {"d_head": d_head**-0.5, "d_model": width**-0.5, "none": 1.0, "whole": 1 / d_head, "times": d_head**0.5}
    scores = q @ k.mT * scale[form.scale]
    ones = torch.ones(n, n, dtype=torch.bool)
    allowed = ones
    if form.causal:
        ahead = {"strict": -1, "wide": 1}.get(form.mask, 0)
        allowed = {"none": ones, "inverted": ones.triu()}.get(form.mask, ones.tril(ahead))
    if form.mask == "times":
        scores = scores * allowed
    elif form.mask != "after":
        scores = scores.masked_fill(~allowed, -torch.inf)
    if form.axis == "nothing":
        weights = scores.masked_fill(~allowed, 0.0)
    else:
        weights = scores.softmax({"keys": -1, "queries": -2, "heads": 1}[form.axis])
    weights = weights.nan_to_num(0.0)
    if form.mask == "after":
        weights = weights * allowed
    heads = weights @ v
    if form.merge == "places":
        return heads.reshape(b, n, width)
    return rearrange(heads, "b h n d -> b n (h d)")


def forms(form: Form, width: int) -> Iterator[tuple[Form, list[str]]]:
    """Everything that may have gone another way, alone and then two at a time, with its words."""
    changes: list[dict[str, object]] = [
        {name: value} for name, values in OTHERWISE.items() for value in values if name != "mask" or form.causal
    ]
    changes += [{"heads": h} for h in range(1, width + 1) if width % h == 0 and h != form.heads]
    if not form.causal:
        changes.append({"causal": True})
    singles = [(change,) for change in changes]
    doubles = [two for two in combinations(changes, 2) if not two[0].keys() & two[1].keys()]
    for together in (*singles, *doubles):
        merged: dict[str, object] = {name: value for change in together for name, value in change.items()}
        changed = replace(form, **merged)  # type: ignore[arg-type]
        yield changed, [_words(name, value, form, width) for name, value in merged.items()]


def _words(name: str, value: object, form: Form, width: int) -> str:
    if name == "heads":
        return f"it works with {value} heads, not {form.heads}"
    return WORDS[name, str(value)].format(width=width, d_head=width // form.heads)


def recognized(passed: Passed, form: Form) -> tuple[Form, list[str]] | None:
    """The form that it took, if it is one that is known; the one that changes least comes first."""
    q, k, v = passed.q, passed.k, passed.v
    q = k if q is None else q
    k = q if k is None else k
    assert q is not None
    assert k is not None
    v = k if v is None else v
    if q.shape[-1] % form.heads:
        return None
    k, v = (_repeated(t, q.shape[-1], form.heads) for t in (k, v))
    if not q.shape == k.shape == v.shape:
        return None
    for other, words in forms(form, q.shape[-1]):
        if _apart(passed, written(q, k, v, other), None) <= _within(q):
            return other, words
    return None


def _named(
    subject: Subject,
    one: Situation,
    passed: Passed,
    layer: int,
    where: str,
    unused: list[str],
    compared: Compared | None,
) -> Broke:
    """Which form it is, asked on tokens enough to tell the forms apart."""
    evidence = {"layer": layer, "name": passed.name, "apart": number(compared.apart) if compared else None}
    evidence |= one.evidence()
    if unused:
        names = " and ".join(unused)
        return Broke(
            f"its {names} projection is never used{where}, so it is not PyTorch's attention",
            {**evidence, "unused": unused},
        )
    if one.real is not None:
        return Broke(
            f"with padding it is not PyTorch's attention{where}, though without it is ({one.words()})", evidence
        )
    x = subject.give(7, batch=3, dtype=one.x.dtype)
    again = [at for at in attentions(subject, one.module, x) if _enough(at)]
    telling = again[layer] if len(again) > layer else passed
    heads = compared.form.heads if compared else (passed.n_heads or 1)
    found = recognized(telling, Form(heads, subject.claims("causal") or bool(compared and compared.form.causal)))
    if found is None and not subject.claims("causal"):
        found = recognized(telling, Form(heads, False))
    far = evidence["apart"]
    off = "" if far is None else f" by {far:.1e} of the whole"
    if found is None:
        return Broke(
            f"it differs from PyTorch's attention with the same projections{where}{off} ({one.words()})", evidence
        )
    form, words = found
    return Broke(
        f"it would equal PyTorch's attention{where}, but {' and '.join(words)} ({one.words()})",
        {**evidence, "form": {part.name: getattr(form, part.name) for part in fields(form)}, "because": words},
    )


def _apart(passed: Passed, heads: Tensor, real: Tensor | None) -> float:
    try:
        y = passed.after(heads)
    except RuntimeError:
        return float("inf")
    if y.shape != passed.merged.shape:
        return float("inf")
    gap = (y - passed.merged).detach().abs().masked_fill(y.isfinite() != passed.merged.isfinite(), torch.inf)
    gap = gap.nan_to_num(0.0, torch.inf)
    if real is not None:
        gap = gap.masked_fill(~real[:, :, None], 0.0)
    size = passed.merged.detach().abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1e-300)
    return float(gap.max() / size)


PROBE = Probe(
    code="standard-attention",
    promise="standard-attention",
    family="agreement",
    says="With its own projections it is PyTorch's multi-head attention.",
    cause="the scale, the axis of the softmax, the mask, or how heads are split and merged",
    example="attnlab audit tests/museum/scaled_by_the_model.py says: it would equal PyTorch's attention, but the "
    "scores are divided by √16 (√d_model), not by √4 (√d_head) (2 tokens, batch of 3)",
    look=look,
    meant="something of its own, if that is meant",
)
