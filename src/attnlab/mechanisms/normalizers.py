"""How much? Scores and a mask become weights. A row that may look nowhere weighs nothing."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from attnlab.mechanisms.scores import above_zero
from attnlab.randomness import Stream
from attnlab.shapes import Allowed, Scores, Weights


def blind_rows(allowed: Tensor) -> Tensor | None:
    """The rows that may look nowhere; None where it is certain that there are none.

    Asking makes a GPU wait and breaks a compiled graph, so there it is never certain.
    """
    blind = ~allowed.any(dim=-1, keepdim=True)
    certain = blind.device.type == "cpu" and not torch.compiler.is_compiling()
    return None if certain and not blind.any() else blind


def floor(allowed: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """What to add to the scores, 0 or -∞, and the blind rows: these are let off, since no softmax has only -∞."""
    blind = blind_rows(allowed)
    hidden = ~allowed if blind is None else ~(allowed | blind)
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(hidden, -torch.inf), blind


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Softmax over the allowed keys alone; zeros where none is."""
    low, blind = floor(allowed, scores.dtype)  # added rather than filled in: adding costs nothing on the way back
    weights = torch.softmax(scores + low, dim=-1)
    return weights if blind is None else weights.masked_fill(blind, 0.0)


class Softmax(nn.Module):
    """w_ij = exp(s_ij / τ) / Σ_allowed exp(s_ij' / τ)"""

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = above_zero("softmax", temperature=temperature)

    @property
    def as_softmax(self) -> float:
        return 1.0 / self.temperature

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        return masked_softmax(scores if self.temperature == 1.0 else scores / self.temperature, allowed)


def temperature(*, t: float = 2.0) -> Softmax:
    """w = softmax(s / t): above 1 flatter, below 1 sharper."""
    return Softmax(temperature=t)


class Sink(nn.Module):
    """w_ij = exp(s_ij) / (exp(c_h) + Σ_allowed exp(s_ij')): a learned logit per head that takes what nobody should."""

    def __init__(self, *, n_heads: int) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(n_heads))

    def draw(self, stream: Stream) -> None:
        self.logit.zero_()

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        hidden = scores.masked_fill(~allowed, -torch.inf)
        sink = self.logit.to(scores.dtype)[:, None, None].expand(*hidden.shape[:-1], 1)
        return torch.softmax(torch.cat([hidden, sink], dim=-1), dim=-1)[..., :-1]


class SigmoidWeights(nn.Module):
    """w_ij = σ(s_ij - ln n_i), n_i the number of keys that i may look at."""

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        seen = _seen(allowed, scores.dtype)
        return torch.sigmoid(scores - seen.log()).masked_fill(~allowed, 0.0)


class ReluWeights(nn.Module):
    """w_ij = max(s_ij, 0) / n_i, n_i the number of keys that i may look at."""

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        return torch.relu(scores).masked_fill(~allowed, 0.0) / _seen(allowed, scores.dtype)


def _seen(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    return allowed.sum(dim=-1, keepdim=True).clamp(min=1).to(dtype)


class Sparsemax(nn.Module):
    """w_ij = max(s_ij - θ_i, 0), θ_i so that Σ_allowed w_ij = 1: the point of the simplex nearest to s_i."""

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        blind = blind_rows(allowed)
        hidden = ~allowed if blind is None else ~(allowed | blind)
        # The projection ignores a constant, so each row is moved to a maximum of 0 and hidden keys far below reach.
        raised = scores.masked_fill(hidden, -torch.inf)
        raised = raised - raised.amax(dim=-1, keepdim=True).detach()
        raised = raised.masked_fill(hidden, -2.0)
        ordered = raised.float() if raised.dtype in (torch.float16, torch.bfloat16) else raised
        ordered = ordered.sort(dim=-1, descending=True).values
        rank = torch.arange(1, ordered.shape[-1] + 1, device=scores.device, dtype=ordered.dtype)
        total = ordered.cumsum(dim=-1)
        support = (1 + rank * ordered > total).sum(dim=-1, keepdim=True)
        threshold = (total.gather(-1, support - 1) - 1) / support
        weights = torch.relu(raised - threshold.to(raised.dtype)).masked_fill(hidden, 0.0)
        return weights if blind is None else weights.masked_fill(blind, 0.0)


class TalkingHeads(nn.Module):
    """w = A·norm(B·s), A and B mixing the heads before and after the normalizer."""

    def __init__(self, *, n_heads: int, normalizer: nn.Module) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.eye(n_heads))
        self.after = nn.Parameter(torch.eye(n_heads))
        self.inside = normalizer

    def draw(self, stream: Stream) -> None:
        for name, mix in (("before", self.before), ("after", self.after)):
            mix.normal_(0.0, 0.1, generator=stream(name)).add_(torch.eye(len(mix)))

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        mixed = torch.einsum("gh,bhij->bgij", self.before.to(scores.dtype), scores)
        weights = self.inside(mixed, allowed)
        return torch.einsum("gh,bhij->bgij", self.after.to(weights.dtype), weights)


class Dropped(nn.Module):
    """Weights with some of them dropped while training, drawn from a generator of its own."""

    def __init__(self, *, normalizer: nn.Module, dropout: nn.Module) -> None:
        super().__init__()
        self.inside, self.dropout = normalizer, dropout

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        dropped: Tensor = self.dropout(self.inside(scores, allowed))
        return dropped


class ZeroAfterSoftmax(nn.Module):
    """w = softmax(s)·allowed: the denominator has already counted the hidden keys."""

    whole: ClassVar[str] = "its denominator counts hidden keys, which a step has never met"

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        return torch.softmax(scores, dim=-1) * allowed


class ZeroAfterSoftmaxRenormalized(nn.Module):
    """w = softmax(s)·allowed / Σ: the softmax in exact numbers, 0/0 as soon as a hidden key is loud."""

    whole: ClassVar[str] = "a loud hidden key, which a step has never met, rounds all others to zero"

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        kept = torch.softmax(scores, dim=-1) * allowed
        return kept / kept.sum(dim=-1, keepdim=True)


class ScoresTimesMask(nn.Module):
    """w = softmax(s·allowed): a hidden key has score 0, not -∞."""

    whole: ClassVar[str] = "a hidden key weighs exp(0), and a step has never met it"

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        return torch.softmax(scores * allowed, dim=-1)


class FiniteFloor(nn.Module):
    """w = softmax(s where allowed, else floor): a floor is reached as soon as scores are as loud as it."""

    whole: ClassVar[str] = "a hidden key weighs something once scores are as low as the floor"

    def __init__(self, *, floor: float = -1e4) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, scores: Scores, allowed: Allowed, /) -> Weights:
        return torch.softmax(scores.masked_fill(~allowed, self.floor), dim=-1)
