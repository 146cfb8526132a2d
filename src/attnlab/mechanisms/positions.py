"""Where are the tokens? Turned into q and k, or added to the scores; tables that a model adds come first."""

from math import log
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.errors import BadSetting, Refused
from attnlab.mechanisms.parts import Position
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.mechanisms.visibility import Visible
from attnlab.randomness import Stream
from attnlab.shapes import Bias, Memory, Vectors, Weights

BASE = 10_000.0


def none() -> Position:
    """s_ij says nothing of i and j"""
    return Position()


class Absolute(nn.Module):
    """A vector for each place, which a model adds once to its embeddings (cast to their type)."""

    def forward(self, tokens: Tokens, /) -> Float[Tensor, "#b n w"]:
        raise NotImplementedError


class Learned(Absolute):
    """x_i + P[i], P learned; beyond its length there is nothing to add."""

    def __init__(self, *, d_model: int, length: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, d_model)

    def forward(self, tokens: Tokens, /) -> Float[Tensor, "#b n w"]:
        within("learned", tokens, self.table.num_embeddings)
        places: Tensor = self.table(tokens.position)
        return places


class Sinusoidal(Absolute):
    """scale · P: P[i, 2c] = sin(i / 10000^(2c/d)), P[i, 2c+1] = cos of the same angle."""

    def __init__(self, *, d_model: int, scale: float = 1.0) -> None:
        super().__init__()
        self.d_model, self.scale = d_model, scale

    def exponent(self, feature: Tensor) -> Tensor:
        return (feature - feature % 2) / self.d_model

    def forward(self, tokens: Tokens, /) -> Float[Tensor, "#b n w"]:
        # In float64, whatever the model's type: a float32 angle is off by 1e-3 at place 10,000.
        feature = torch.arange(self.d_model, dtype=torch.float64, device=tokens.position.device)
        angle = tokens.position[..., None] * BASE ** -self.exponent(feature)
        return self.scale * torch.where(feature % 2 == 0, angle.sin(), angle.cos())


class SinusoidalSource(Sinusoidal):
    """The same with exponent c/d for feature c, even or odd: the two of a pair turn at different speeds."""

    def exponent(self, feature: Tensor) -> Tensor:
        return feature / self.d_model


def learned(*, d_model: int, length: int) -> Learned:
    """x_i + P[i], P learned"""
    return Learned(d_model=d_model, length=length)


def sinusoidal(*, d_model: int) -> Sinusoidal:
    """x_i + P[i], P[i, 2c] = sin(i / 10000^(2c/d)), P[i, 2c+1] = cos(i / 10000^(2c/d))"""
    return Sinusoidal(d_model=d_model)


def sinusoidal_source(*, d_model: int) -> Sinusoidal:
    """x_i + P[i], P[i, 2c] = sin(i / 10000^(2c/d)), P[i, 2c+1] = cos(i / 10000^((2c+1)/d))"""
    return SinusoidalSource(d_model=d_model)


def sinusoidal_scaled(*, d_model: int, scale: float = 0.02) -> Sinusoidal:
    """x_i + scale·P[i], P as in sinusoidal

    Unscaled it is 35 times louder than embeddings drawn from N(0, 0.02).
    """
    return Sinusoidal(d_model=d_model, scale=scale)


class Rotary(Position):
    """(t_2c, t_2c+1) turned by the angle i / 10000^(2c/d): q_i·k_j then depends on i - j."""

    def __init__(self, *, d_head: int) -> None:
        super().__init__()
        if d_head % 2:
            raise BadSetting(
                f"rotary turns features in pairs and d_head={d_head} is odd; choose an even d_model / n_heads"
            )

    def turn(self, t: Tensor, tokens: Tokens) -> Tensor:
        pair = torch.arange(0, t.shape[-1], 2, dtype=torch.float64, device=t.device)
        angle = (tokens.position[..., None] * BASE ** -(pair / t.shape[-1]))[:, None]
        cos, sin = angle.cos().to(t.dtype), angle.sin().to(t.dtype)
        even, odd = t[..., 0::2], t[..., 1::2]
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return rearrange(turned, "b h n pair two -> b h n (pair two)")


class Alibi(Position):
    """s_ij - m_h·(i - j), m_h = 2^(-8h/H): nearer keys are favored."""

    def __init__(self, *, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads

    def bias(self, q: Tensor, k: Tensor, at: Pairs) -> Bias:
        head = torch.arange(1, self.n_heads + 1, dtype=torch.float64, device=q.device)
        slope = 2.0 ** (-8.0 * head / self.n_heads)
        return at.by_distance(lambda distance: -torch.einsum("h,...->h...", slope, self.far(distance)).to(q.dtype))

    def far(self, distance: Tensor) -> Tensor:
        return distance.double()


class AlibiSymmetric(Alibi):
    """s_ij - m_h·|i - j|, m_h = 2^(-8h/H): near keys are favored on both sides."""

    def far(self, distance: Tensor) -> Tensor:
        return distance.abs().double()


def rotary(*, d_head: int) -> Rotary:
    """s_ij = (R_i q_i)·(R_j k_j), R_i turning the features (2c, 2c+1) by the angle i / 10000^(2c/d)"""
    return Rotary(d_head=d_head)


def alibi(*, n_heads: int, visibility: Visible) -> Alibi:
    """s_ij - m_h·(i - j)"""
    if visibility.band.ahead > 0:
        raise Refused("alibi is meant for keys behind the query and would favor far keys ahead; use alibi-symmetric")
    return Alibi(n_heads=n_heads)


def alibi_symmetric(*, n_heads: int) -> AlibiSymmetric:
    """s_ij - m_h·|i - j|"""
    return AlibiSymmetric(n_heads=n_heads)


class Buckets(Position):
    """s_ij + B_h[bucket(i - j)]: exact for near keys, logarithmic up to `furthest`, one bucket beyond."""

    def __init__(self, *, n_heads: int, buckets: int, furthest: int, both_ways: bool) -> None:
        super().__init__()
        exact = buckets // 4 if both_ways else buckets // 2
        if not 1 <= exact < furthest:
            raise BadSetting(
                f"t5(buckets={buckets}, furthest={furthest}): 1 ≤ {exact} exact buckets < furthest must hold"
            )
        self.furthest, self.both_ways = furthest, both_ways
        self.table = nn.Parameter(torch.zeros(n_heads, buckets))

    def draw(self, stream: Stream) -> None:
        self.table.normal_(0.0, 0.02, generator=stream("table"))

    def bias(self, q: Tensor, k: Tensor, at: Pairs) -> Bias:
        table = self.table.to(q.dtype)
        return at.by_distance(lambda distance: table[:, self.bucket(distance)])

    def bucket(self, distance: Tensor) -> Tensor:
        """Which bucket a distance falls into; with both ways, keys ahead have the upper half."""
        n = self.table.shape[1]
        side, far = torch.zeros_like(distance), distance.clamp(min=0)
        if self.both_ways:
            n //= 2
            side, far = n * (distance < 0), distance.abs()
        exact = n // 2
        beyond = torch.log(far.clamp(min=1).double() / exact) / log(self.furthest / exact) * (n - exact)
        return side + torch.where(far < exact, far, (exact + beyond.long()).clamp(max=n - 1))


def t5(*, n_heads: int, visibility: Visible, buckets: int = 32, furthest: int = 128) -> Buckets:
    """s_ij + B_h[bucket(i - j)], one bucket for all keys ahead unless the rule looks ahead"""
    both_ways = visibility.band.ahead > 0
    return Buckets(n_heads=n_heads, buckets=buckets, furthest=furthest, both_ways=both_ways)


class Relative(Position):
    """s_ij + p_h[i - j], one learned number per head and distance."""

    def __init__(self, *, n_heads: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.table = nn.Parameter(torch.zeros(n_heads, 2 * length - 1))

    def draw(self, stream: Stream) -> None:
        self.table.normal_(0.0, 0.02, generator=stream("table"))

    def bias(self, q: Tensor, k: Tensor, at: Pairs) -> Bias:
        spans("relative", at, self.length)
        table = self.table.to(q.dtype)
        return at.by_distance(lambda distance: table[:, distance + self.length - 1])


def relative(*, n_heads: int, length: int) -> Relative:
    """s_ij + p_h[i - j]"""
    return Relative(n_heads=n_heads, length=length)


class Disentangled(Position):
    """s_ij + (q_i·K_r[δ(i,j)] + k_j·Q_r[δ(j,i)]) / √(3d), δ(i,j) = i - j held between -reach and reach - 1."""

    def __init__(self, *, d_model: int, n_heads: int, d_head: int, reach: int) -> None:
        super().__init__()
        if reach < 1:
            raise BadSetting(f"deberta(reach={reach}): at least 1")
        self.n_heads, self.reach = n_heads, reach
        self.table = nn.Parameter(torch.zeros(2 * reach, d_model))
        self.query = nn.Linear(d_model, n_heads * d_head, bias=False)
        self.key = nn.Linear(d_model, n_heads * d_head, bias=False)

    def draw(self, stream: Stream) -> None:
        self.table.normal_(0.0, 0.02, generator=stream("table"))

    def bias(self, q: Tensor, k: Tensor, at: Pairs) -> Bias:
        of_query, of_key = (
            rearrange(part(self.table), "r (h d) -> h d r", h=self.n_heads).to(q.dtype)
            for part in (self.query, self.key)
        )
        distance = at.distance()
        behind, ahead = ((sign * distance).clamp(-self.reach, self.reach - 1) + self.reach for sign in (1, -1))
        shape = (len(q), self.n_heads, *distance.shape[-2:])
        content = torch.gather(q @ of_key, -1, behind.expand(shape))
        place = torch.gather(k @ of_query, -1, ahead.transpose(-1, -2).expand(*shape[:2], shape[3], shape[2]))
        return (content + place.transpose(-1, -2)) * (3 * q.shape[-1]) ** -0.5


def deberta(*, d_model: int, n_heads: int, d_head: int, reach: int = 32) -> Disentangled:
    """s_ij = (q_i·k_j + q_i·K_r[δ(i,j)] + k_j·Q_r[δ(j,i)]) / √(3d)"""
    return Disentangled(d_model=d_model, n_heads=n_heads, d_head=d_head, reach=reach)


def within(name: str, tokens: Tokens, length: int) -> None:
    """A table that is too short is an error with a sentence; clamping the index would hide it."""
    last = tokens.first + len(tokens) if tokens.first is not None else int(tokens.position.max()) + 1
    if tokens.first is None and int(tokens.position.min()) < 0:
        raise Refused(f"{name} has no place before 0 and was given position {int(tokens.position.min())}")
    if last > length:
        raise Refused(f"{name} has a table of length={length} and was given {last} tokens; build it with length={last}")


def spans(name: str, at: Pairs, length: int) -> None:
    """The same for distances."""
    q, k = at.queries, at.keys
    if q.first is not None and k.first is not None:
        ends = (q.first - k.first - len(k) + 1, q.first + len(q) - 1 - k.first)
        furthest = max(abs(end) for end in ends)
    else:
        furthest = int(at.distance().abs().max())
    if furthest >= length:
        raise Refused(
            f"{name} knows distances below length={length} and met {furthest}; build it with length={furthest + 1}"
        )


class Placed(nn.Module):
    """Absolute positions added before a mixer, where there is no model to add them."""

    def __init__(self, absolute: Absolute, mixer: Any) -> None:
        super().__init__()
        self.absolute, self.mixer = absolute, mixer

    def forward(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Vectors:
        y: Tensor = self.mixer(self.place(x, tokens), memory, tokens=tokens, memory_tokens=memory_tokens)
        return y

    def weights(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Weights:
        w: Tensor = self.mixer.weights(self.place(x, tokens), memory, tokens=tokens, memory_tokens=memory_tokens)
        return w

    def start(
        self,
        like: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> tuple[int, Any]:
        return 0, self.mixer.start(like, memory, tokens=tokens, memory_tokens=memory_tokens)

    def step(
        self, x: Vectors, state: tuple[int, Any], *, tokens: Tokens | None = None
    ) -> tuple[Vectors, tuple[int, Any]]:
        seen, inside = state
        new = Tokens.count(x.shape[1], first=seen, device=x.device) if tokens is None else tokens
        y, inside = self.mixer.step(self.place(x, new), inside, tokens=new)
        return y, (seen + x.shape[1], inside)

    def place(self, x: Tensor, tokens: Tokens | None) -> Tensor:
        counted = Tokens.count(x.shape[1], device=x.device) if tokens is None else tokens
        return x + self.absolute(counted).to(x.dtype)
