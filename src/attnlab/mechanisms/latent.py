"""How little can be remembered of a token? A small vector from which all heads make their keys and values."""

import torch
from einops import rearrange
from torch import Tensor, nn

from attnlab.errors import BadSetting
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.kernels import Path
from attnlab.mechanisms.positions import Rotary
from attnlab.mechanisms.tokens import Tokens
from attnlab.mechanisms.visibility import Visible
from attnlab.shapes import Heads, Key, Memory, Query, Value, Vectors


class Compressed(nn.Module):
    """c = D x and r = R_k x are kept; k_h = [B_h c ; r], v_h = C_h c, q_h = [A_h x ; R_h x]."""

    def __init__(self, *, d_model: int, n_heads: int, d_head: int, latent: int, rotary: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, n_heads * d_head)
        self.query_place = nn.Linear(d_model, n_heads * rotary)
        self.latent = nn.Linear(d_model, latent)
        self.key_place = nn.Linear(d_model, rotary)
        self.key = nn.Linear(latent, n_heads * d_head)
        self.value = nn.Linear(latent, n_heads * d_head)

    def forward(self, x: Vectors, memory: Memory | None = None, /) -> tuple[Query, tuple[Tensor, ...]]:
        source = x if memory is None else memory
        q = torch.cat([self._heads(self.query(x)), self._heads(self.query_place(x))], dim=-1)
        return q, (self.latent(source), self.key_place(source))

    def open(self, *kept: Tensor) -> tuple[Key, Value]:
        latent, place = kept
        one_for_all = place[:, None].expand(-1, self.n_heads, -1, -1)
        return torch.cat([self._heads(self.key(latent)), one_for_all], dim=-1), self._heads(self.value(latent))

    def _heads(self, t: Tensor) -> Heads:
        return rearrange(t, "b n (h d) -> b h n d", h=self.n_heads)


class RotaryLast(Rotary):
    """The last features turned by their place, the others left as they are: these are made from the latent."""

    def __init__(self, *, rotary: int) -> None:
        super().__init__(d_head=rotary)
        self.rotary = rotary

    def turn(self, t: Tensor, tokens: Tokens) -> Tensor:
        still, turning = t.split([t.shape[-1] - self.rotary, self.rotary], dim=-1)
        return torch.cat([still, super().turn(turning, tokens)], dim=-1)


def latent(
    *,
    d_model: int,
    n_heads: int,
    d_head: int,
    visibility: Visible,
    path: Path,
    share: int = 4,
    rotary: int = 8,
) -> Attention:
    """k_j = [B c_j ; turned R x_j], v_j = C c_j, c_j = D x_j of width ⌈d_model / share⌉"""
    if share < 1:
        raise BadSetting(f"latent(share={share}): the latent has ⌈d_model / share⌉ features, so at least 1")
    if rotary < 2 or rotary % 2:
        raise BadSetting(f"latent(rotary={rotary}): features are turned in pairs, so an even number from 2 on")
    width = -(-d_model // share)
    return Attention(
        projection=Compressed(d_model=d_model, n_heads=n_heads, d_head=d_head, latent=width, rotary=rotary),
        out=nn.Linear(n_heads * d_head, d_model),
        position=RotaryLast(rotary=rotary),
        visibility=visibility,
        path=path,
    )
