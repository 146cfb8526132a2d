"""Attention: six replaceable questions asked in order."""

import inspect
from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor, nn

from attnlab.errors import Refused
from attnlab.mechanisms.kernels import EXPLICIT, Path
from attnlab.mechanisms.merges import Concatenate
from attnlab.mechanisms.normalizers import Softmax
from attnlab.mechanisms.parts import Cache, Merge, Normalizer, Position, Projection, Score
from attnlab.mechanisms.projections import separate
from attnlab.mechanisms.scores import ScaledDot
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.mechanisms.visibility import EVERYTHING, Visible, Written
from attnlab.shapes import Memory, Vectors, Weights


class Attention(nn.Module):
    """y = out(merge(w v)), w = normalizer(score(q, k) + bias, allowed), q and k turned by position."""

    def __init__(
        self,
        *,
        projection: Projection,
        out: nn.Module,
        position: Position | None = None,
        score: Score | None = None,
        visibility: Visible | Callable[[Pairs], Tensor] = EVERYTHING,
        normalizer: Normalizer | None = None,
        merge: Merge | None = None,
        path: Path = EXPLICIT,
    ) -> None:
        super().__init__()
        self.projection = projection
        self.position = Position() if position is None else position
        self.score = ScaledDot() if score is None else score
        self.visibility = visibility if isinstance(visibility, Visible) else Written(visibility)
        self.normalizer = Softmax() if normalizer is None else normalizer
        self.merge = Concatenate() if merge is None else merge
        self.out = out
        self.path = path
        takes(self.score, "score", "q, k, at")
        takes(self.normalizer, "normalizer", "scores, allowed")
        takes(self.merge, "merge", "heads, x, tokens")
        reason = path.refuses(self)
        if reason is not None:
            raise Refused(f"the {path.name} path cannot serve here: {reason}")

    def forward(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Vectors:
        q, k, v, at = self._ask(x, memory, tokens, memory_tokens)
        return self._answer(q, k, v, at, x)

    def weights(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Weights:
        """The weights that the output is made with."""
        q, k, _, at = self._ask(x, memory, tokens, memory_tokens)
        return EXPLICIT.weights(self, q, k, at, self.visibility.given(at)(at))

    def start(
        self,
        like: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Cache:
        """An empty cache for a run like this one; refused where a step cannot equal the whole."""
        reason = self.whole()
        if reason:
            raise Refused(f"this attention cannot go token by token: {reason}")
        if memory is not None:
            raise Refused("a step that looks into a memory comes with the encoder-decoder")
        if self.visibility.band.ahead > 0:
            raise Refused("this attention cannot go token by token: it looks ahead; a causal one can")
        _, kept = self.projection(like[:, :0])
        none = Tokens.count(0, device=like.device) if tokens is None else tokens.last(0)
        return Cache(kept, none)

    def step(self, x: Vectors, state: Cache, *, tokens: Tokens | None = None) -> tuple[Vectors, Cache]:
        """One or more new tokens after those of the cache."""
        past = state.tokens
        new = Tokens.count(x.shape[1], first=_after(past), device=x.device) if tokens is None else tokens
        q, kept = self.projection(x)
        known = past.then(new)
        kept = tuple(torch.cat([old, more], dim=-2) for old, more in zip(state.kept, kept, strict=True))
        k, v = self.projection.open(*kept)
        at = Pairs(new, known)
        y = self._answer(self.position.turn(q, new), self.position.turn(k, known), v, at, x)
        back = self.visibility.given(at).band.back
        if back < len(known):
            reach = max(int(back), 1)
            kept, known = tuple(t[..., -reach:, :] for t in kept), known.last(reach)
        return y, Cache(kept, known)

    def whole(self) -> str | None:
        """Why a step cannot equal the whole, where a part says so."""
        for part in (self.normalizer, self.merge):
            for module in part.modules() if isinstance(part, nn.Module) else (part,):
                reason: str | None = getattr(module, "whole", None)
                if reason:
                    return reason
        return None

    def _ask(
        self, x: Tensor, memory: Tensor | None, tokens: Tokens | None, memory_tokens: Tokens | None
    ) -> tuple[Tensor, Tensor, Tensor, Pairs]:
        queries = Tokens.count(x.shape[1], device=x.device) if tokens is None else tokens
        keys = queries
        if memory is not None:
            counted = Tokens.count(memory.shape[1], device=memory.device)
            keys = counted if memory_tokens is None else memory_tokens
        q, kept = self.projection(x, memory)
        k, v = self.projection.open(*kept)
        return self.position.turn(q, queries), self.position.turn(k, keys), v, Pairs(queries, keys)

    def _answer(self, q: Tensor, k: Tensor, v: Tensor, at: Pairs, x: Tensor) -> Tensor:
        heads = self.path(self, q, k, v, at)
        merged = self.merge(heads, x, at.queries)
        y: Tensor = self.out(rearrange(merged, "b h i e -> b i (h e)"))
        return y


def plain(*, d_model: int, n_heads: int, visibility: Visible) -> Attention:
    """y = W_o [w¹v¹ … wᴴvᴴ], w_ij = exp(q_i·k_j / √d) / Σ_allowed exp(q_i·k_j' / √d)"""
    projection = separate(d_model=d_model, n_heads=n_heads)
    return Attention(projection=projection, out=nn.Linear(d_model, d_model), visibility=visibility)


def _after(tokens: Tokens) -> int:
    if len(tokens) == 0:
        return 0
    return tokens.first + len(tokens) if tokens.first is not None else int(tokens.order.max()) + 1


def takes(part: object, question: str, names: str) -> None:
    """A part that cannot be called as it will be, said now in a sentence instead of later in a TypeError."""
    call = part.forward if isinstance(part, nn.Module) else part
    if not callable(call):
        raise Refused(f"a {question} is called with ({names}), and {part!r} cannot be called")
    try:
        inspect.signature(call).bind(*names.split(", "))
    except TypeError:
        given = inspect.signature(call)
        name = getattr(part, "__name__", type(part).__name__)
        raise Refused(
            f"a {question} is called with ({names}), and {name} takes {given}; write def {name}({names})"
        ) from None
