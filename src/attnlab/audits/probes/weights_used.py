"""Are the weights that are shown the weights that the output is made with?"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from attnlab.audits.measure import Setting, asked, dtype_of, reached, rounding_of
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.weights import (
    REFUSALS,
    Passed,
    Shown,
    Situation,
    as_weights,
    attentions,
    cores,
    input_of,
    members,
    number,
    shown,
    situations,
)
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.kernels import carried
from attnlab.subjects.subject import Subject

# Against the size of the output, in float64: a right answer is off by 1e-13, another softmax by far more.
WITHIN = 1e-6
COLUMNS = 600
CARRIED = "its heads are what they carry"
SHARES = 0.05


def look(subject: Subject) -> Outcome:
    tried, how = 0, ""
    for one in situations(subject, _settings(subject.sizes.length)):
        shows = shown(subject, one.module, one.x, real=one.real)
        if shows is None:
            return Silent("it shows no weights") if not tried else Silent("it shows weights only now and then")
        tried += 1
        plain = subject.ask(one.module, one.x, real=one.real)
        apart = _apart(shows.output, plain, one)
        if not one.at.train and apart > max(1e-5, 10 * rounding_of(one.module)):
            return Broke(
                f"asked for its weights, it gives another output ({one.words()})", {"apart": apart, **one.evidence()}
            )
        said = _ours(subject, one, shows) or _inside(subject, one, shows, how == CARRIED)
        if said is None and one.real is None:
            said = _fitted(subject, one, shows)
        if isinstance(said, Broke):
            return said
        how = how or (said or "")
    if how:
        return Held(f"the output is made with the weights that are shown: {how}", {"settings": tried})
    if tried:
        return _by_reach(subject) or Silent(
            "its output is no sum of values that the weights carry, so that nothing can be said from outside"
        )
    return Silent("it shows no weights")


def _settings(full: int) -> Iterator[Setting]:
    for length in (3, 5, 7):
        yield Setting(length=length, batch=4)
    yield Setting(draw=1, length=7, batch=4, whole=3.0)
    yield Setting(length=full, batch=3, whole=3.0)
    for draw in (0, 1):
        yield Setting(draw=draw, length=7, batch=4, whole=3.0, train=True)


def _within(one: Situation) -> float:
    return max(WITHIN, 10 * rounding_of(one.module))


def _ours(subject: Subject, one: Situation, shows: Shown) -> Broke | str | None:
    """Every attention of ours inside, its answer made again from the weights that are shown."""
    inside = cores(subject, one.module, one.x, real=one.real)
    if not inside or len(inside) != len(shows.layers) or not callable(getattr(one.module, "weights", None)):
        return None
    for layer, (core, weights) in enumerate(zip(inside, shows.layers, strict=True)):
        again = _again(core.module, core.x, weights, core.tokens)
        gap = float((again - core.y).detach().abs().max() / core.y.detach().abs().max().clamp(min=1e-300))
        if not gap <= _within(one):
            return Broke(
                f"the output is not what the weights shown would carry{_layer(layer, inside)} ({one.words()})",
                {"layer": layer, "apart": number(gap), **one.evidence()},
            )
    return "made again from them, it is the same"


def _again(core: Attention, x: Tensor, weights: Tensor, tokens: Any) -> Tensor:
    _, kept = core.projection(x)
    _, v = core.projection.open(*kept)
    merged = core.merge(carried(weights, v), x, tokens)
    y: Tensor = core.out(rearrange(merged, "b h i e -> b i (h e)"))
    return y


def _inside(subject: Subject, one: Situation, shows: Shown, calm: bool) -> Broke | str | None:
    """Where values and merged heads are recognized by name, the heads are made again.

    In training mode a difference counts only where there was none in evaluation (`calm`): then dropout is between.
    """
    passed = attentions(subject, one.module, one.x, real=one.real, told=shows.asked)
    if len(passed) != len(shows.layers):
        return None
    for layer, (found, weights) in enumerate(zip(passed, shows.layers, strict=True)):
        heads, v = weights.shape[1], found.v
        if v is None or found.n_heads not in (None, heads) or not bool(found.merged.isfinite().all()):
            return None  # a mean over heads, or a row that is no number
        right = _carries(weights, v, found)
        if right is None:
            return None
        if right <= _within(one):
            continue
        for name, other in _others(weights):
            wrong = _carries(other, v, found)
            if wrong is not None and wrong <= _within(one):
                return Broke(f"{name}{_layer(layer, passed)} ({one.words()})", {"layer": layer, **one.evidence()})
        used = None if one.at.train else _solved(v, found.merged, heads)
        if (used is None and not (one.at.train and calm)) or (used is not None and _scaled(used, weights)):
            return None
        return Broke(
            f"the heads are not what the weights shown carry{_layer(layer, passed)} ({one.words()})",
            {
                "layer": layer,
                "apart": number(right),
                "used": None if used is None else used[0, 0].tolist(),
                "shown": weights[0, 0].detach().tolist(),
                **one.evidence(),
            },
        )
    return CARRIED


def _carries(weights: Tensor, v: Tensor, found: Passed) -> float | None:
    """How far the seen is from what the weights carry, head by head; None where the sizes say something else."""
    heads = weights.shape[1]
    whole = v.shape[-1] if found.q is None else found.q.shape[-1]
    if whole % heads or v.shape[-1] % (whole // heads):
        return None
    values = rearrange(v, "b n (h d) -> b h n d", d=whole // heads)
    if heads % values.shape[1]:
        return None
    try:
        made = found.after(rearrange(carried(weights.to(values.dtype), values), "b h i d -> b i (h d)"))
    except REFUSALS:
        return None
    if made.shape != found.merged.shape:
        return None
    return float((made - found.merged).detach().abs().max() / found.merged.detach().abs().max().clamp(min=1e-300))


def _others(weights: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What may be shown in place of the weights."""
    yield "the weights shown are transposed: the output is made with row and key exchanged", weights.mT
    yield "scores are shown, not weights: a softmax comes after them", weights.softmax(dim=-1)
    summed = weights.sum(dim=-1, keepdim=True)
    if bool((summed != 0).all()):
        yield (
            "the weights shown are not the shares that are used: each row is divided by its sum later",
            weights / summed,
        )


def _solved(v: Tensor, merged: Tensor, heads: int) -> Tensor | None:
    """The weights that were used, where so few tokens leave only one answer; None where the heads are no sum."""
    n, width = v.shape[1:]
    if v.shape != merged.shape or width % heads or n >= width // heads:
        return None
    values = rearrange(v.detach(), "b n (h d) -> b h d n", h=heads)
    sums = rearrange(merged.detach(), "b i (h d) -> b h d i", h=heads)
    used = torch.linalg.lstsq(values, sums).solution
    left = float((values @ used - sums).abs().max() / sums.abs().max().clamp(min=1e-300))
    return used.mT if left <= max(WITHIN, 1e3 * torch.finfo(v.dtype).eps) else None


def _scaled(used: Tensor, weights: Tensor) -> bool:
    """The same shares times a number for each row: a gate comes after them, and the weights are right."""
    total = used.sum(dim=-1, keepdim=True)
    if not bool((total.abs() > 1e-3).all()):
        return False
    shares = weights / weights.sum(dim=-1, keepdim=True)
    return torch.allclose(used / total, shares.to(used), rtol=0, atol=1e-6)


def _fitted(subject: Subject, one: Situation, shows: Shown) -> Broke | str | None:
    """Without any names: where values are linear, the output is a linear function of what the weights carry of x."""
    places = _places(subject, one.module, one.at)
    if places is None or any(place is None for place in places):
        return None
    for layer, place in enumerate(places):
        assert place is not None
        if _unexplained(place.weights, place.x, place.y) <= _within(one):
            continue
        for name, other in _others(place.weights):
            if _unexplained(other, place.x, place.y) <= _within(one):
                return Broke(f"{name}{_layer(layer, places)} ({one.words()})", {"layer": layer, **one.evidence()})
        if one.at.train:
            calm = _places(subject, subject.build(one.at.draw), one.at)
            before = calm[layer] if calm is not None and len(calm) > layer else None
            if before is not None and _unexplained(before.weights, before.x, before.y) <= _within(one):
                return Broke(
                    f"in training mode the output is made with other weights than those shown{_layer(layer, places)}"
                    f" ({one.words()})",
                    {"layer": layer, **one.evidence()},
                )
        return None
    return "it is a linear function of what they carry"


class _Spot(NamedTuple):
    weights: Tensor
    x: Tensor
    y: Tensor


def _places(subject: Subject, module: nn.Module, at: Setting) -> list[_Spot | None] | None:
    """For each layer the innermost module that returns its weights: what went in and what came out, of many runs."""
    n = at.length
    first = shown(subject, module, subject.give(n, batch=4, dtype=dtype_of(module)))
    if first is None:
        return None
    heads, width = first.layers[0].shape[1], first.output.shape[-1]
    for _ in range(2):
        columns = heads * width + heads + 1
        if columns > COLUMNS:
            return None
        batch = int(1.5 * columns / n) + 4
        batch += batch == n
        x = subject.give(n, batch=batch, loud=at.whole, dtype=dtype_of(module))
        noted: list[tuple[Any, Any, Any]] = []

        def hook(part: Any, given: Any, told: Any, returned: Any, noted: list[Any] = noted) -> None:
            noted.append((given, told, returned))

        handles = [part.register_forward_hook(hook, with_kwargs=True) for part in module.modules()]
        try:
            shows = shown(subject, module, x)
        finally:
            for handle in handles:
                handle.remove()
        if shows is None:
            return None
        spots = [_spot(weights, noted, batch, n, shows) for weights in shows.layers]
        widths = [spot.x.shape[-1] for spot in spots if spot is not None]
        if not widths or max(widths) <= width:
            return spots
        width = max(widths)
    return None


def _spot(weights: Tensor, noted: list[tuple[Any, Any, Any]], batch: int, n: int, shows: Shown) -> _Spot | None:
    for given, told, returned in noted:
        for _, t in members(returned):
            found = as_weights(t, batch, n)
            if found is None or found.data_ptr() != weights.data_ptr():
                continue
            xs = [s for _, s in members((given, told)) if s.dim() == 3 and s.is_floating_point()]
            ys = [s for _, s in members(returned) if s.dim() == 3 and s is not t]
            if xs and ys:
                x, y = (s if len(s) == batch else s.transpose(0, 1) for s in (xs[min(2, len(xs) - 1)], ys[0]))
                if x.shape[:2] == y.shape[:2] == (batch, n):
                    return _Spot(weights.detach(), x.detach(), y.detach())
    return None


def _unexplained(weights: Tensor, x: Tensor, y: Tensor) -> float:
    """The share of the output that no linear function of what is carried explains; zeros of dropout left out."""
    mixed = rearrange(weights @ x[:, None], "b h n c -> (b n) (h c)")
    rows = torch.cat([mixed, rearrange(weights.sum(-1), "b h n -> (b n) h"), torch.ones(len(mixed), 1).to(mixed)], -1)
    target = rearrange(y, "b n e -> (b n) e")
    if not bool(rows.isfinite().all() and target.isfinite().all()):
        return float("inf")
    rows, target = rows.double(), target.double()
    if bool((target == 0).any()):  # each feature by itself, without what was dropped
        left: list[float] = []
        for feature in range(min(target.shape[1], 4)):
            kept = target[:, feature] != 0
            if int(kept.sum()) < rows.shape[1] + 8:
                return float("inf") if not left else max(left)
            left.append(_left(rows[kept], target[kept, feature : feature + 1]))
        return max(left)
    return _left(rows, target)


def _left(rows: Tensor, target: Tensor) -> float:
    solution = torch.linalg.lstsq(rows, target, driver="gelsd").solution
    spread = (target - target.mean(dim=0)).square().mean().sqrt().clamp(min=1e-300)
    return float((rows @ solution - target).square().mean().sqrt() / spread)


def _by_reach(subject: Subject) -> Outcome | None:
    """What no sum explains may still show it: an output hears exactly the tokens that weigh something."""
    for at, module in asked(subject, iter([Setting(length=length, batch=2) for length in (3, 7)])):
        shows = shown(subject, module, input_of(subject, module, at))
        if shows is None or len(shows.layers) != 1:
            return None
        weights = shows.layers[0].detach().abs().amax(dim=1)
        silent = (weights == 0).all(dim=0)
        loud = (weights > SHARES).any(dim=0)
        off = ~torch.eye(at.length, dtype=torch.bool)
        if not bool((silent & off).any()):
            return None
        moved = reached(subject, module, at)
        heard = moved > rounding_of(module)
        for wrong, words in ((heard & silent, "although its weight is zero"), (~heard & loud, "although it weighs")):
            if bool((wrong & off).any()):
                i, j = (int(place) for place in (wrong & off).nonzero()[0])
                verb = "hears" if bool(heard[i, j]) else "does not hear"
                return Broke(
                    f"output {i} {verb} token {j}, {words} ({at.words()})",
                    {"output": i, "token": j, "setting": at._asdict()},
                )
    return Held("each output hears exactly the tokens that weigh something", {})


def _layer(layer: int, layers: Any) -> str:
    return f" in layer {layer}" if len(layers) > 1 else ""


def _apart(one: Tensor, other: Tensor, at: Situation) -> float:
    kept = one.detach().isfinite() & other.detach().isfinite()
    if at.real is not None:
        kept &= at.real[:, :, None]
    gap = (one - other).detach().abs().masked_fill(~kept, 0.0)
    return float(gap.max() / other.detach().abs().masked_fill(~kept, 0.0).max().clamp(min=1e-300))


PROBE = Probe(
    code="weights-used",
    promise="weights-are-used",
    family="weights",
    says="The weights that are shown are those that the output is made with.",
    cause="the weights are returned before dropout, transposed, before the softmax, or from another computation",
    example="attnlab audit tests/museum/weights_transposed.py says: the weights shown are transposed: the output is "
    "made with row and key exchanged (3 tokens, batch of 4)",
    look=look,
    meant="what is drawn from them would show something else",
)
