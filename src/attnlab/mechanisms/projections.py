"""Where do q, k and v come from?"""

from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor, nn

from attnlab.errors import BadSetting, divides
from attnlab.shapes import Heads, Key, Memory, Query, Value, Vectors

ROLES = ("query", "key", "value")


class Each(nn.Module):
    """q, k, v = A x, B m, C m, m the memory or x itself; roles that are given one and the same module share it.

    What is shared is computed and kept once. Fewer key heads than query heads are repeated after they are kept.
    """

    def __init__(
        self,
        *,
        query: nn.Module,
        key: nn.Module,
        value: nn.Module,
        n_heads: int,
        n_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        chosen = dict(zip(ROLES, (query, key, value), strict=True))
        self.n_heads = n_heads
        self.repeats = divides(n_heads, n_kv_heads or n_heads, of="n_heads", into="n_kv_heads")
        # Named after all the roles it plays, so that a module shared by two has one name in a checkpoint.
        self.plays = {role: "_".join(other for other in ROLES if chosen[other] is chosen[role]) for role in ROLES}
        self.maps = nn.ModuleDict({self.plays[role]: chosen[role] for role in ROLES})
        self.keeps_one = key is value

    def forward(self, x: Vectors, memory: Memory | None = None, /) -> tuple[Query, tuple[Tensor, ...]]:
        source = x if memory is None else memory
        q = self._heads("query", x, self.n_heads)
        kept: dict[str, Tensor] = {}
        for role in ("key", "value"):
            name = self.plays[role]
            shared = memory is None and name == self.plays["query"]
            kept[name] = q if shared else self._heads(role, source, self.n_heads // self.repeats)
        return q, tuple(kept.values())

    def open(self, *kept: Tensor) -> tuple[Key, Value]:
        opened = tuple(t if self.repeats == 1 else t.repeat_interleave(self.repeats, dim=1) for t in kept)
        return (opened[0], opened[0]) if self.keeps_one else (opened[0], opened[1])

    def _heads(self, role: str, x: Tensor, n_heads: int) -> Heads:
        return rearrange(self.maps[self.plays[role]](x), "b n (h d) -> b h n d", h=n_heads)


def linears(n: int, d_in: int, d_out: int) -> list[nn.Linear]:
    return [nn.Linear(d_in, d_out) for _ in range(n)]


def separate(*, d_model: int, n_heads: int) -> Each:
    """q, k, v = A x, B x, C x"""
    divides(d_model, n_heads, of="d_model", into="n_heads")
    query, key, value = linears(3, d_model, d_model)
    return Each(query=query, key=key, value=value, n_heads=n_heads)


def shared_qk(*, d_model: int, n_heads: int) -> Each:
    """q = k = A x, v = C x"""
    divides(d_model, n_heads, of="d_model", into="n_heads")
    both, value = linears(2, d_model, d_model)
    return Each(query=both, key=both, value=value, n_heads=n_heads)


def shared_qv(*, d_model: int, n_heads: int) -> Each:
    """q = v = A x, k = B x"""
    divides(d_model, n_heads, of="d_model", into="n_heads")
    both, key = linears(2, d_model, d_model)
    return Each(query=both, key=key, value=both, n_heads=n_heads)


def shared_kv(*, d_model: int, n_heads: int) -> Each:
    """q = A x, k = v = B x: half the cache"""
    divides(d_model, n_heads, of="d_model", into="n_heads")
    query, both = linears(2, d_model, d_model)
    return Each(query=query, key=both, value=both, n_heads=n_heads)


def shared_qkv(*, d_model: int, n_heads: int) -> Each:
    """q = k = v = A x"""
    divides(d_model, n_heads, of="d_model", into="n_heads")
    every = nn.Linear(d_model, d_model)
    return Each(query=every, key=every, value=every, n_heads=n_heads)


def mlp(*, d_model: int, n_heads: int, on: str = "qkv", widen: int = 1) -> Each:
    """t = A₂ gelu(A₁ x) for each t in `on`"""

    def small_network() -> nn.Module:
        hidden = widen * d_model
        return nn.Sequential(nn.Linear(d_model, hidden), nn.GELU(), nn.Linear(hidden, d_model))

    if widen < 1:
        raise BadSetting(f"mlp-projection(widen={widen}): at least 1")
    return _changed(small_network, d_model=d_model, n_heads=n_heads, on=on, name="mlp-projection")


def tanh(*, d_model: int, n_heads: int, on: str = "k") -> Each:
    """t = tanh(A x), for each t in `on`"""
    return _bent(nn.Tanh, d_model=d_model, n_heads=n_heads, on=on, name="tanh-projection")


def relu(*, d_model: int, n_heads: int, on: str = "k") -> Each:
    """t = max(A x, 0), for each t in `on`"""
    return _bent(nn.ReLU, d_model=d_model, n_heads=n_heads, on=on, name="relu-projection")


def sigmoid(*, d_model: int, n_heads: int, on: str = "k") -> Each:
    """t = σ(A x), for each t in `on`"""
    return _bent(nn.Sigmoid, d_model=d_model, n_heads=n_heads, on=on, name="sigmoid-projection")


def _bent(bend: Callable[[], nn.Module], *, d_model: int, n_heads: int, on: str, name: str) -> Each:
    def bent() -> nn.Module:
        return nn.Sequential(nn.Linear(d_model, d_model), bend())

    return _changed(bent, d_model=d_model, n_heads=n_heads, on=on, name=name)


def _changed(change: Callable[[], nn.Module], *, d_model: int, n_heads: int, on: str, name: str) -> Each:
    divides(d_model, n_heads, of="d_model", into="n_heads")
    if not on or set(on) - set("qkv"):
        raise BadSetting(f"{name}(on={on!r}): on is one or more of the letters q, k, v, as in on='k' or on='qk'")
    query, key, value = (change() if role[0] in on else nn.Linear(d_model, d_model) for role in ROLES)
    return Each(query=query, key=key, value=value, n_heads=n_heads)


def grouped(*, d_model: int, n_heads: int, n_kv_heads: int = 2) -> Each:
    """q_h = A_h x; k_g, v_g = B_g x, C_g x with g = ⌊h·n_kv_heads/n_heads⌋: queries share a key head"""
    d_head = divides(d_model, n_heads, of="d_model", into="n_heads")
    divides(n_heads, n_kv_heads, of="n_heads", into="n_kv_heads")
    key, value = linears(2, d_model, n_kv_heads * d_head)
    query = nn.Linear(d_model, d_model)
    return Each(query=query, key=key, value=value, n_heads=n_heads, n_kv_heads=n_kv_heads)


def multi_query(*, d_model: int, n_heads: int) -> Each:
    """q_h = A_h x; k, v = B x, C x: one key head for all"""
    return grouped(d_model=d_model, n_heads=n_heads, n_kv_heads=1)


class Keyless(nn.Module):
    """q = A x, v = C x, no key at all: for scores that never compare"""

    def __init__(self, *, d_model: int, n_heads: int, asks: bool = True) -> None:
        super().__init__()
        divides(d_model, n_heads, of="d_model", into="n_heads")
        self.n_heads = n_heads
        self.maps = nn.ModuleDict({"query": nn.Linear(d_model, d_model)} if asks else {})
        self.maps["value"] = nn.Linear(d_model, d_model)

    def forward(self, x: Vectors, memory: Memory | None = None, /) -> tuple[Query, tuple[Tensor, ...]]:
        v = self._heads("value", x if memory is None else memory)
        q = self._heads("query", x) if "query" in self.maps else torch.zeros_like(self._split(x)[..., :0])
        return q, (v,)

    def open(self, *kept: Tensor) -> tuple[Key, Value]:
        return kept[0][..., :0], kept[0]

    def _heads(self, role: str, x: Tensor) -> Heads:
        return self._split(self.maps[role](x))

    def _split(self, x: Tensor) -> Heads:
        return rearrange(x, "b n (h d) -> b h n d", h=self.n_heads)


def keyless(*, d_model: int, n_heads: int) -> Keyless:
    """q = A x, v = C x"""
    return Keyless(d_model=d_model, n_heads=n_heads)


def value_only(*, d_model: int, n_heads: int) -> Keyless:
    """v = C x"""
    return Keyless(d_model=d_model, n_heads=n_heads, asks=False)
