"""Where tokens are alike, do near keys weigh more than far ones?"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnlab.audits.measure import Setting, asked, dtype_of, following, rounding, weights_of
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.randomness import stream
from attnlab.subjects.subject import Subject

# Against the largest weight of a row: a difference fainter than this is none.
FAINT = 1e-9
NEAR, FLAT, FAR, LEFT, RIGHT, EDGE, MIXED = (
    "near",
    "flat",
    "far",
    "left edge",
    "right edge",
    "far or left edge",
    "mixed",
)
SAYS = {
    NEAR: "near keys are favored",
    FLAT: "no key is favored for its distance",
    FAR: "far keys are favored, on either side",
    LEFT: "keys at the left edge are favored, wherever the query stands",
    RIGHT: "keys at the right edge are favored, wherever the query stands",
    EDGE: "far keys are favored, those at the left edge",
    MIXED: "what a key weighs neither falls nor rises with its distance",
}
# What the direction says of a bias that was meant to favor near keys. Behind a causal mask a bias of the wrong sign and
# one by the key's index differ by a number per row, which a softmax does not see.
WHY = {
    FAR: ": the bias has the wrong sign",
    LEFT: ": the bias is a function of the key's index, not of the distance",
    RIGHT: ": the bias is a function of the key's index, not of the distance",
    EDGE: ": the bias has the wrong sign, or is a function of the key's index",
}


def settings(full: int) -> Iterator[Setting]:
    for draw in (0, 1, 2):
        yield Setting(draw=draw, length=9, batch=1)
    yield Setting(length=5, batch=1)
    yield Setting(length=full, batch=1)


class Seen(NamedTuple):
    """What alike tokens weigh by their places alone: (heads, queries, keys), and whether by gradient."""

    weights: Tensor
    by_gradient: bool


def look(subject: Subject) -> Outcome:
    # A mask that it would be told of would hide the side that tells a wrong sign from a key's own index.
    free = replace(subject, promises=tuple(one for one in subject.promises if one != "causal"))
    kept: Held | None = None
    faint = max(FAINT, rounding(subject))
    for at, module in asked(free, settings(subject.sizes.length)):
        seen = by_place(free, module, at)
        if seen is None:
            return Silent("it shows no weights, and no gradient can be followed to its tokens")
        toward = [direction(head, with_itself=not seen.by_gradient, faint=faint) for head in seen.weights]
        evidence = figures(seen.weights) | {"heads": toward, "setting": at._asdict()}
        evidence["by"] = "gradient" if seen.by_gradient else "weights"
        wrong = [head for head, one in enumerate(toward) if one not in (NEAR, FLAT)]
        if wrong or NEAR not in toward:
            head = wrong[0] if wrong else 0
            which = f" (head {head})" if len(toward) > 1 and len(set(toward)) > 1 else ""
            why = WHY.get(toward[head], "") if subject.claims("favors-near") else ""
            return Broke(f"{SAYS[toward[head]]}{which}{why}", evidence | {"head": head, "favors": toward[head]})
        distances = "mean distance {mean_distance:.2f} where even weights have {even_distance:.2f}".format(**evidence)
        said = f"where tokens are alike, a key weighs less the farther it is: {distances}"
        kept = kept or Held(said, evidence | {"favors": NEAR})
    assert kept is not None
    return kept


def by_place(subject: Subject, module: nn.Module, at: Setting) -> Seen | None:
    """The weights over tokens that are all alike; where none are shown, how strongly each token is felt."""
    x = subject.give(1, batch=at.batch, dtype=dtype_of(module)).repeat_interleave(at.length, dim=1)
    shown = weights_of(subject, module, x)
    if shown is not None:
        return Seen(shown[0].double(), by_gradient=False)
    with following(subject, module, x) as (given, starts):
        y = subject.ask(module, given)
    if not starts or not y.requires_grad:
        return None
    felt = torch.zeros(at.length, at.length, dtype=torch.float64)
    draws = torch.randn(8, y.shape[2], generator=stream(0, "felt"), dtype=torch.float64).to(y.dtype)
    for i in range(at.length):
        for mixed in draws:  # of a Jacobian only its size is wanted, and a few random looks give that
            leaves = [one.leaf for one in starts]
            pulls = torch.autograd.grad((y[0, i] * mixed).sum(), leaves, retain_graph=True, allow_unused=True)
            for one, pull in zip(starts, pulls, strict=True):
                if pull is not None:
                    felt[i] += (pull.transpose(0, 1) if one.turned else pull)[0].double().square().sum(dim=-1)
    return Seen(felt.sqrt()[None], by_gradient=True)


def direction(weights: Tensor, *, with_itself: bool, faint: float) -> str:
    """What one head favors by place: read along each row, to the left and to the right of the query."""
    trends: dict[str, set[int]] = {"left": set(), "right": set()}
    n = len(weights)
    for i in range(n):
        sides = {"left": weights[i, : i + 1].flip(0), "right": weights[i, i:]}
        bound = faint * float(weights[i].abs().amax())
        for side, line in sides.items():
            seen = line if with_itself else line[1:]
            change = seen[seen.abs() > bound].diff()  # what is hidden is not weighed at all
            trends[side] |= {1} if bool((change > bound).any()) else set()
            trends[side] |= {-1} if bool((change < -bound).any()) else set()
    left, right = (named(trends[side]) for side in ("left", "right"))
    if not weights.triu(1).any():
        return {"falls": NEAR, "flat": FLAT, "rises": EDGE}.get(left, MIXED)
    return {
        ("falls", "falls"): NEAR,
        ("falls", "flat"): NEAR,
        ("flat", "falls"): NEAR,
        ("flat", "flat"): FLAT,
        ("rises", "rises"): FAR,
        ("rises", "falls"): LEFT,
        ("falls", "rises"): RIGHT,
    }.get((left, right), MIXED)


def named(trend: set[int]) -> str:
    return "both" if len(trend) == 2 else "flat" if not trend else "rises" if trend == {1} else "falls"


def figures(weights: Tensor) -> dict[str, Any]:
    """Mean distance, and how the mass lies by distance and by the key's own index: averages over heads and queries."""
    share = (weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-300)).mean(dim=0)
    even = (weights.abs().sum(dim=0) > 0).double()
    even = even / even.sum(dim=-1, keepdim=True).clamp(min=1)
    n = len(share)
    places = torch.arange(n)
    distance = (places[:, None] - places[None]).abs()
    return {
        "mean_distance": float((share * distance).sum(dim=-1).mean()),
        "even_distance": float((even * distance).sum(dim=-1).mean()),
        "mass_by_distance": [float(share[distance == d].sum() / n) for d in range(n)],
        "mass_by_key": (share.sum(dim=0) / n).tolist(),
    }


PROBE = Probe(
    code="favors-near",
    promise="favors-near",
    family="order",
    says="Where tokens are alike, a key weighs less the farther it is.",
    cause="the bias of distance has the wrong sign, or is a function of the key's index instead of the distance",
    example="attnlab audit tests/museum/alibi_of_the_wrong_sign.py says: far keys are favored, those at the left "
    "edge: the bias has the wrong sign, or is a function of the key's index",
    look=look,
    meant="a fault if near keys were meant to be favored",
)
