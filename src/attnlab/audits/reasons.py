"""Why does an output hear a later token? Told by when the leak goes away, and by who hears whom."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnlab.audits.measure import Cell, Setting, asked, dtype_of, future, place_of, reached, weights_of
from attnlab.subjects.subject import Subject

# Long enough that blocks, bands and strides show; the second for a module that takes few lengths.
SEEN_AT = (13, 8)


class Remedy(NamedTuple):
    """A leak that is gone in such a setting has this reason."""

    applies: Callable[[Setting], bool]
    instead: Callable[[Setting], tuple[Setting, ...]]
    reason: str


REMEDIES = (
    Remedy(
        lambda at: at.length > max(SEEN_AT),
        lambda at: tuple(at._replace(length=n) for n in (*SEEN_AT, 5)),
        "it leaks only in long inputs: a branch or a block for those does not apply the mask, or the last of a chunk"
        " sees the next",
    ),
    Remedy(
        lambda at: not at.train,
        lambda at: (at._replace(train=True, dropout=0.0),),
        "it leaks in evaluation and not in training mode: the mask hangs on self.training, as in"
        " is_causal=self.training",
    ),
    Remedy(
        lambda at: at.train,
        lambda at: (at._replace(train=False, dropout=None),),
        "it leaks in training mode and not in evaluation: the branch for training, or for dropout, does not apply the"
        " mask",
    ),
    Remedy(
        lambda at: not at.tracked,
        lambda at: (at._replace(tracked=True),),
        "it leaks only where no gradients are recorded: the fast path for inference does not apply the mask",
    ),
    Remedy(
        lambda at: at.batch == 1,
        lambda at: (at._replace(batch=2), at._replace(batch=3)),
        "it leaks only for a batch of one: the mask is applied only for batches larger than one, where an axis was"
        " squeezed away, say",
    ),
    Remedy(
        lambda at: at.batch > 1,
        lambda at: (at._replace(batch=1),),
        "it leaks only for batches larger than one: the mask fits one sentence, or is laid along the batch",
    ),
    Remedy(
        lambda at: at.whole > 1,
        lambda at: (at._replace(whole=1.0),),
        "it leaks only where scores are loud: the mask is not low enough, a finite number such as -1e4 that loud"
        " scores climb over, where minus infinity belongs; or a stabilizer (a maximum) runs over the whole sequence",
    ),
    Remedy(
        lambda at: at.loud > 1,
        lambda at: (at._replace(loud=1.0),),
        "only a loud token is heard by earlier outputs: a stabilizer (a maximum), a top-k or another statistic runs"
        " over the whole sequence; or the mask is not low enough",
    ),
)


def reason_of(subject: Subject, at: Setting, *, within: float) -> str:
    """What the leak of this setting comes from, or nothing where its behavior does not tell."""
    for remedy in REMEDIES:
        if remedy.applies(at) and _quiet(subject, remedy.instead(at), within=within):
            return remedy.reason
    if at.loud > 1 or at.whole > 1:
        return ""
    for n in (at.length, *SEEN_AT) if at.length in range(9, 25) else SEEN_AT:
        for seen, module in _answered(subject, (at._replace(length=n, draw=max(1, at.draw)),)):
            moved = reached(subject, module, seen)
            found = future(moved, within=within)
            every = len(found) == seen.length * (seen.length - 1) // 2
            told = _columns(subject, module, seen) or (_early(subject, module, seen, found, within) if every else "")
            return told or read(moved, within=within)
    return ""


def read(moved: Tensor, *, within: float) -> str:
    """A reason from the map of who hears whom, (outputs, tokens)."""
    n = len(moved)
    found = future(moved, within=within)
    if not found:
        return ""
    hears = moved > within
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    outputs, tokens = {cell.output for cell in found}, {cell.token for cell in found}
    ahead = {i: max(cell.token for cell in found if cell.output == i) - i for i in outputs}
    every = bool(hears[later].all())
    if every and not bool(hears[:-1][later.T[:-1]].any()):
        return _upside_down(hears)
    if every:
        return _everyone(moved, later)
    if outputs == {0}:
        return (
            "only output 0 hears later tokens: it may look nowhere, not even at itself, and a softmax over equal low"
            " scores weighs every key alike"
        )
    if tokens == {n - 1}:
        return "every earlier output hears the last token: it is read from the end (as [:, -1]), or wraps around (roll)"
    inner = {i for i in range(n) if i + max(ahead.values()) < n}
    if inner <= outputs and len({ahead[i] for i in inner}) == 1:
        return _band(max(ahead.values()))
    if all(bool(hears[:j, j].all()) for j in tokens):
        return (
            "only some later tokens are heard, and each by everyone before it: a maximum or a choice (top-k, routing)"
            " is taken among all tokens, or those positions are looked at by all"
        )
    return _blocks(outputs, ahead, n) or (
        "some outputs hear some later tokens: an index counts the wrong axis or from the wrong end, tokens and heads"
        " are mixed by a reshape without a transpose, or a maximum or a choice (top-k, routing) is taken among all"
        " tokens"
    )


def _upside_down(hears: Tensor) -> str:
    """An inverted mask leaves the last output blind, where a transposed one lets it hear itself."""
    blind = not bool(hears[-1].any()) or bool(hears[-1, :-1].any()) or not bool(hears[-2, -2])
    if blind:
        return (
            "outputs hear what comes later and nothing before: the polarity of the mask is inverted (True blocks"
            " in one function and keeps in another)"
        )
    return (
        "outputs hear themselves and what comes later, and nothing before: the mask lies on the wrong axis, over (keys,"
        " queries) instead of (queries, keys), or its polarity is inverted; or the sequence runs backwards (a flip)"
    )


def _everyone(moved: Tensor, later: Tensor) -> str:
    """Without a mask the future is heard as loudly as the past; through a statistic it is fainter."""
    fainter = float(moved[later].median()) / max(float(moved[later.T].median()), 1e-300)
    if fainter > 0.7:
        return (
            "every output hears the future as it hears the past: the mask is missing, or the scores are multiplied by"
            " it (a score of 0 still has weight), or a statistic runs over the whole sequence, or tokens are mixed in"
            " both directions (a bidirectional recurrence, a circular convolution)"
        )
    if fainter > 0.35:
        return (
            "every output hears the future, though fainter than the past: the mask damps and does not hide (0 and 1"
            " added to the scores instead of minus infinity and 0, say), or the scores are multiplied by it"
        )
    return (
        "every output hears every later token, but much fainter than earlier ones: a statistic (a norm, a mean, a sum"
        " over queries) runs over the whole sequence, or a hidden key still carries weight (the mask is applied after"
        " the softmax, whose sum has counted it)"
    )


def _band(ahead: int) -> str:
    if ahead == 1:
        return (
            "every output hears the next token and none beyond: the mask, a shift or an index is off by one (tril(1),"
            " triu(2)), or a convolution of 3 pads both sides"
        )
    return (
        f"every output hears the next {ahead} tokens and none beyond: a window or a convolution reaches to both sides"
        " instead of back alone, or the mask is shifted"
    )


def _blocks(outputs: set[int], ahead: dict[int, int], n: int) -> str:
    for size in range(2, n // 2 + 1):
        ends = {i for i in range(n - 1) if i % size == size - 1}
        if outputs == ends:
            return f"the last output of each block of {size} hears the next: a chunk whose last block sees the next"
        inside = {i for i in range(n - 1) if i not in ends}
        if outputs == inside and all((i + ahead[i]) // size == i // size for i in outputs):
            return f"outputs hear to the end of their block of {size}: a block is masked as a whole and not inside"
    return ""


def _early(subject: Subject, module: nn.Module, at: Setting, found: list[Cell], within: float) -> str:
    """A linear layer that answers first, and already hears the future, was given tokens mixed before it."""
    place = place_of(subject, module, at, found[0].output, found[0].token, within=within)
    leaves = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if place is None or len(leaves) < 2 or place.part != leaves[0][0]:
        return ""
    return (
        f"what {place.part} is given hears every later token already: a statistic (a norm, a mean, a transform) runs"
        " over the whole sequence before it"
    )


def _columns(subject: Subject, module: nn.Module, at: Setting) -> str:
    """Weights that sum to one over the queries and not over the keys say so themselves."""
    weights = weights_of(subject, module, subject.give(at.length, batch=at.batch, dtype=dtype_of(module)))
    if weights is None:
        return ""
    ones = torch.ones((), dtype=weights.dtype)
    down, along = (torch.allclose(weights.sum(dim=dim), ones, atol=1e-4) for dim in (-2, -1))
    if down and not along:
        return "the weights sum to one over the queries, not over the keys: the softmax runs along the wrong axis"
    return ""


def _quiet(subject: Subject, settings: tuple[Setting, ...], *, within: float) -> bool:
    """Whether nothing leaks in any of the settings, as far as they can be asked."""
    maps = [reached(subject, module, at, _tokens(at)) for at, module in _answered(subject, settings)]
    return bool(maps) and not any(future(moved, within=within) for moved in maps)


def _tokens(at: Setting) -> range:
    return range(max(1, at.length - 24), at.length)


def _answered(subject: Subject, settings: tuple[Setting, ...]) -> list[tuple[Setting, nn.Module]]:
    try:
        return list(asked(subject, settings))
    except Exception:
        return []
