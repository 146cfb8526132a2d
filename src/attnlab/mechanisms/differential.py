"""Can noise be taken off attention? Two softmaxes, one subtracted from the other."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab.errors import BadSetting
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.kernels import Path
from attnlab.mechanisms.normalizers import masked_softmax
from attnlab.mechanisms.parts import Position
from attnlab.mechanisms.positions import Rotary
from attnlab.mechanisms.projections import separate
from attnlab.mechanisms.scores import product
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.mechanisms.visibility import Visible
from attnlab.randomness import Stream
from attnlab.shapes import Allowed, Bias, Heads, Key, Query, Vectors, Weights

EPS = 1e-5


class Twice(nn.Module):
    """s¹_ij, s²_ij = q¹_i·k¹_j / √(d/2), q²_i·k²_j / √(d/2) of each head: the halves of its features, side by side."""

    def forward(self, q: Query, k: Key, at: Pairs, /) -> Float[Tensor, "b pairs i j"]:
        q, k = halved(q), halved(k)
        return product(q * q.shape[-1] ** -0.5, k)


class TurnedByHalf(Position):
    """The two of a pair each turned as a head of its own."""

    def __init__(self, inside: Position) -> None:
        super().__init__()
        self.inside = inside

    def turn(self, t: Tensor, tokens: Tokens) -> Tensor:
        return rearrange(self.inside.turn(halved(t), tokens), "b (h two) n d -> b h n (two d)", two=2)


class BiasedByHalf(TurnedByHalf):
    """And both given the bias of their whole head."""

    def bias(self, q: Tensor, k: Tensor, at: Pairs) -> Bias | None:
        bias = self.inside.bias(q, k, at)
        return bias if bias is None or bias.shape[1] == 1 else bias.repeat_interleave(2, dim=1)


def halved(t: Tensor) -> Tensor:
    return rearrange(t, "b h n (two d) -> b (h two) n d", two=2)


class Difference(nn.Module):
    """w = softmax(s¹) - λ softmax(s²), λ = exp(λq¹·λk¹) - exp(λq²·λk²) + begin, the same λ for all heads."""

    def __init__(self, *, d_head: int, begin: float) -> None:
        super().__init__()
        if not 0 <= begin < 1:
            raise BadSetting(f"differential(begin={begin}): λ begins at 0 or above, and below 1")
        self.begin = begin
        self.lambda_q, self.lambda_k = (nn.Parameter(torch.empty(2, d_head // 2).normal_(std=0.1)) for _ in range(2))

    def draw(self, stream: Stream) -> None:
        self.lambda_q.normal_(0.0, 0.1, generator=stream("lambda_q"))
        self.lambda_k.normal_(0.0, 0.1, generator=stream("lambda_k"))

    def factor(self) -> Tensor:
        first, second = torch.exp((self.lambda_q * self.lambda_k).sum(dim=-1))
        return first - second + self.begin

    def forward(self, scores: Float[Tensor, "#b pairs i j"], allowed: Allowed, /) -> Weights:
        first, second = (masked_softmax(half, allowed) for half in (scores[:, 0::2], scores[:, 1::2]))
        return first - self.factor().to(second.dtype) * second


class Level(nn.Module):
    """o = (1 - begin) g ⊙ oʰ / √(mean of oʰ² + ε): each head by itself, as loud as it was before the subtraction."""

    def __init__(self, *, d_head: int, begin: float) -> None:
        super().__init__()
        self.begin = begin
        self.weight = nn.Parameter(torch.ones(d_head))

    def draw(self, stream: Stream) -> None:
        self.weight.fill_(1.0)

    def forward(self, heads: Heads, x: Vectors, tokens: Tokens, /) -> Heads:
        level = F.rms_norm(heads, heads.shape[-1:], self.weight.to(heads.dtype), EPS)
        return (1 - self.begin) * level


def differential(
    *,
    d_model: int,
    n_heads: int,
    d_head: int,
    visibility: Visible,
    path: Path,
    position: Position | None = None,
    begin: float = 0.8,
) -> Attention:
    """w = softmax(q¹k¹ / √(d/2)) - λ softmax(q²k² / √(d/2)), two for each head"""
    if d_head % 2:
        raise BadSetting(f"differential halves each head and d_head={d_head} is odd; choose an even d_model / n_heads")
    if isinstance(position, Rotary) and d_head % 4:
        raise BadSetting(f"rotary turns half a head in pairs and d_head={d_head} has an odd half; take a multiple of 4")
    if position is not None:  # one that adds no bias stays so, since some paths serve only these
        position = (TurnedByHalf if type(position).bias is Position.bias else BiasedByHalf)(position)
    return Attention(
        projection=separate(d_model=d_model, n_heads=n_heads),
        out=nn.Linear(d_model, d_model),
        position=position,
        score=Twice(),
        visibility=visibility,
        normalizer=Difference(d_head=d_head, begin=begin),
        merge=Level(d_head=d_head, begin=begin),
        path=path,
    )
