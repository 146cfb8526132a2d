"""What if a pretrained model attended otherwise? An attention of ours or of a reader's, put in the place of its own."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab.errors import Refused, UserCodeError
from attnlab.mechanisms.kernels import carried
from attnlab.mechanisms.normalizers import Softmax
from attnlab.mechanisms.parts import Position
from attnlab.mechanisms.positions import Absolute
from attnlab.mechanisms.scores import product
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.randomness import initialize
from attnlab.spelling import Part, expression, parts
from attnlab.subjects import files
from attnlab.subjects.compose import REPLACES, Answer, Size, from_reader, separately
from attnlab.subjects.what import variant_of

NAME = "attnlab"
SWAPS = ("position", "score", "visibility", "normalizer")
# What a model's own attention may be handed besides, and no part of ours knows of.
FOREIGN = {"softcap": "caps its scores", "s_aux": "has sinks of its own"}
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")
HEAD = ("head_dim", "attention_head_size", "d_head")
# How a function of q, k and v is told what the model knows; a boolean says True where a query may look.
ADDED, KEPT = ("attention_mask",), ("mask", "attn_mask", "allowed")
SCALE, FLAG, DROPS = ("scaling", "scale"), ("is_causal", "causal"), ("dropout", "dropout_p")


def swapping(
    make: Callable[[int], nn.Module], swap: Any, more: tuple[str, ...] = ()
) -> tuple[Callable[[int], nn.Module], str]:
    """The same models with another attention in every layer, and what was understood."""
    build, said = _understood(swap, more)

    def made(draw: int) -> nn.Module:
        model = make(draw)
        for place, inside in enumerate(_attentions(model)):
            inside.swapped = build(inside, place, draw)
        _ = model.set_attn_implementation(NAME)  # type: ignore[operator]
        return model

    return made, said


def _attentions(model: nn.Module) -> list[nn.Module]:
    """Every attention that asks transformers which function computes it; from now on it can be ours."""
    if not hasattr(model, "set_attn_implementation"):
        raise Refused(
            f"--swap puts an attention into a pretrained model of Hugging Face, and {type(model).__name__} is none"
        )
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _asked)
    AttentionMaskInterface.register(NAME, _mask)  # without one, a model hands over no mask at all
    found = [part for part in model.modules() if "get_interface(" in inspect.getsource(type(part).forward)]
    if not found:
        raise Refused(
            f"the attention of {type(model).__name__} cannot be swapped: it does not go by transformers'"
            " AttentionInterface"
        )
    return found


def _mask(*sizes: Any, **told: Any) -> Tensor:
    """What is added to the scores, also where nothing is hidden: a reader need not ask whether it is None."""
    from transformers.masking_utils import eager_mask

    added: Tensor = eager_mask(*sizes, **{**told, "allow_is_bidirectional_skip": False})
    return added


def _asked(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **told: Any) -> Any:
    return module.swapped(module, q, k, v, mask, **told)  # type: ignore[operator]


def _understood(swap: Any, more: tuple[str, ...]) -> tuple[Callable[[nn.Module, int, int], nn.Module], str]:
    """What puts WHAT into a layer: a reader's function, or parts of ours."""
    name = swap if isinstance(swap, str) else getattr(swap, "__name__", type(swap).__name__)
    tree = expression(swap) if isinstance(swap, str) else None
    thing = files.read(tree.name) if isinstance(tree, Part) and files.is_file(tree.name) else swap
    taken = [] if isinstance(thing, str) else _taken(thing)
    if _is_whole(taken):
        if more:
            raise Refused(f"{name} is a whole attention and answers every question itself; leave --set out")
        settings = dict(tree.settings) if isinstance(tree, Part) else {}
        answer = Answer(name, thing, settings)
        told = [word for word in taken if word in (*ADDED, *KEPT, *FLAG)]
        said = f"told who may look by {' and '.join(told)}" if told else "told nothing of who may look"
        return lambda inside, place, draw: Theirs(from_reader("mixer", answer, _size(inside), draw), name), said
    variant = variant_of(swap, more) if isinstance(swap, str) else {files.question_of(thing, name=name): thing}
    mixer = variant.pop("mixer", "attention")
    refused = [f"{variant[one]} ({one})" for one in variant if one not in SWAPS]
    if mixer != "attention" or refused:
        raise Refused(
            f"{refused[0] if refused else f'{mixer} (mixer)'} cannot be swapped into a pretrained model, which keeps"
            f" its projections and its merge; a {', a '.join(SWAPS)}, or a function of q, k, v can"
        )
    return lambda inside, place, draw: Ours(inside, variant, seed=1000 * draw + place), ""


def _taken(thing: Any) -> list[str]:
    """The names that it is called with."""
    home = thing if inspect.isclass(thing) else type(thing)
    call = home.forward if issubclass(home, nn.Module) else home.__call__ if inspect.isclass(thing) else thing
    try:
        return [word for word in inspect.signature(call).parameters if word != "self"]
    except (TypeError, ValueError):
        return []


def _is_whole(taken: list[str]) -> bool:
    """Whether it is called with heads of queries, keys and values, after the module or not."""
    return "qkv" in ("".join(word[:1].lower() for word in taken[start : start + 3]) for start in (0, 1))


def _size(inside: nn.Module) -> Size:
    """What a layer says of its heads, itself or by its configuration."""

    def said(names: tuple[str, ...]) -> int | None:
        homes = (inside, getattr(inside, "config", None))
        return next((n for home in homes for name in names if isinstance(n := getattr(home, name, None), int)), None)

    heads = said(HEADS)
    width = said(HEAD) or (said(("hidden_size", "n_embd", "d_model")) or 0) // (heads or 1)
    if not heads or not width:
        raise Refused(f"{type(inside).__name__} does not say how many heads it has, and how wide they are")
    return Size(d_model=heads * width, n_heads=heads, length=said(("max_position_embeddings", "n_positions")) or 64)


class Ours(nn.Module):
    """Score, bias, mask and weights as a variant answers them; what it leaves open is as the model has it."""

    def __init__(self, inside: nn.Module, variant: Mapping[str, Any], *, seed: int) -> None:
        super().__init__()
        default = "causal" if getattr(inside, "is_causal", False) else "everything"
        made = separately(variant, _size(inside), seed=seed, default_visibility=default)
        self.score, self.position = made.get("score"), made.get("position", Position())
        self.normalizer = made.get("normalizer", Softmax())
        self.visibility = made["visibility"] if "visibility" in variant else None
        self.replaces = self.visibility is not None and _replaces(variant["visibility"])
        if isinstance(self.position, Absolute):
            raise Refused(f"{variant['position']} is added to a model's embeddings, and a swap does not reach these")
        initialize(self, seed)

    def forward(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **told: Any
    ) -> tuple[Tensor, Tensor]:
        for word, does in FOREIGN.items():
            if told.get(word) is not None:
                raise Refused(f"{type(module).__name__} {does} ({word}), and a part of ours cannot honor it")
        k, v = (_for_every_query(t, q) for t in (k, v))
        keys = Tokens.count(k.shape[2], device=k.device)
        at = Pairs(Tokens.count(q.shape[2], first=len(keys) - q.shape[2], device=q.device), keys)
        allowed, bias = allowed_of(module, q, k, mask, told)
        if self.visibility is not None:
            # What no query may look at is padding, and stays hidden whatever replaces the rule.
            own = allowed.any(dim=-2, keepdim=True) if self.replaces else allowed
            allowed = self.visibility.given(at)(at) & own
        q, k = self.position.turn(q, at.queries), self.position.turn(k, at.keys)
        scaling = told.get("scaling")
        plain = q * (q.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = product(plain, k) if self.score is None else self.score(q, k, at)
        for more in (bias, told.get("position_bias"), self.position.bias(q, k, at)):
            scores = scores if more is None else scores + more
        weights = self.normalizer(scores, allowed.expand(len(q), -1, -1, -1)).expand(len(q), -1, -1, -1)
        weights = F.dropout(weights, p=told.get("dropout") or 0.0, training=module.training)
        return carried(weights, v).transpose(1, 2), weights


class Theirs(nn.Module):
    """A reader's attention, as transformers calls one, or given q, k, v and the words that it takes."""

    def __init__(self, function: Any, name: str) -> None:
        super().__init__()
        self.function, self.name, self.taken = function, name, _taken(function)
        self.takes_any = any(
            one.kind is one.VAR_KEYWORD
            for one in inspect.signature(getattr(function, "forward", function)).parameters.values()
        )

    def forward(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **told: Any
    ) -> tuple[Tensor, Tensor | None]:
        if not _is_whole(self.taken[:3]):  # the module comes first
            more = told if self.takes_any else {word: told[word] for word in told if word in self.taken}
            y, weights = _both(self.function(module, q, k, v, mask, **more))
            return self._fits(y, (len(q), q.shape[2], q.shape[1])), weights
        k, v = (_for_every_query(t, q) for t in (k, v))
        allowed, _ = allowed_of(module, q, k, mask, told)
        values = {
            **dict.fromkeys(ADDED, torch.zeros_like(allowed, dtype=q.dtype).masked_fill(~allowed, -torch.inf)),
            **dict.fromkeys(KEPT, allowed),
            **dict.fromkeys(SCALE, q.shape[-1] ** -0.5 if told.get("scaling") is None else told["scaling"]),
            **dict.fromkeys(FLAG, _is_causal(module, told) and q.shape[2] == k.shape[2]),
            **dict.fromkeys(DROPS, told.get("dropout") or 0.0),
        }
        # A kernel refuses a mask beside the flag, and the mask says more.
        masked = any(word in self.taken for word in (*ADDED, *KEPT))
        more = {word: value for word, value in values.items() if word in self.taken and not (masked and word in FLAG)}
        y, weights = _both(self.function(q, k, v, **more))
        return self._fits(y, (len(q), q.shape[1], q.shape[2])).transpose(1, 2), weights

    def _fits(self, y: Any, shape: tuple[int, ...]) -> Tensor:
        if isinstance(y, Tensor) and y.dim() == 4 and y.shape[:3] == shape:
            return y
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise UserCodeError(f"{self.name} returned {got}, and the model needs {shape} and the width of a head")


def allowed_of(
    module: nn.Module, q: Tensor, k: Tensor, mask: Tensor | None, told: Mapping[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Who may look at whom, (b, h, i, j) with b and h possibly 1, and what else the mask adds to the scores."""
    i, j = q.shape[2], k.shape[2]
    if mask is None:
        allowed = torch.ones(1, 1, i, j, dtype=torch.bool, device=q.device)
        return (allowed.tril(j - i) if _is_causal(module, told) else allowed), None
    mask = mask[..., :j]
    if mask.dtype == torch.bool:
        return mask, None
    # Half of the lowest number: two masks may have been added, or a bias.
    allowed = mask > torch.finfo(mask.dtype).min / 2
    added = mask.masked_fill(~allowed, 0.0)
    return allowed, added if bool(added.any()) else None


def _is_causal(module: nn.Module, told: Mapping[str, Any]) -> bool:
    said = told.get("is_causal")
    return bool(getattr(module, "is_causal", False) if said is None else said)


def _for_every_query(t: Tensor, q: Tensor) -> Tensor:
    """Each head of keys as often as there are heads of queries that share it."""
    return t.repeat_interleave(q.shape[1] // t.shape[1], dim=1)


def _replaces(written: Any) -> bool:
    """Whether a visibility says all of it, instead of something besides the model's own."""
    return isinstance(written, str) and any(one.name in REPLACES for one in parts(expression(written)))


def _both(returned: Any) -> tuple[Any, Any]:
    return (returned[0], returned[1]) if isinstance(returned, tuple) and len(returned) > 1 else (returned, None)
