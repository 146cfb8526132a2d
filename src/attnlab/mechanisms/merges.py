"""How do the heads come together?"""

from typing import ClassVar

import torch
from einops import rearrange
from torch import Tensor, nn

from attnlab.mechanisms.tokens import Tokens
from attnlab.randomness import Stream, stream
from attnlab.shapes import Heads, Vectors


class Concatenate(nn.Module):
    """o = [o¹ … oᴴ]"""

    def forward(self, heads: Heads, x: Vectors, tokens: Tokens, /) -> Heads:
        return heads


class Shuffle(nn.Module):
    """o = [oˢ⁽¹⁾ … oˢ⁽ᴴ⁾], s drawn anew in each forward."""

    whole: ClassVar[str] = "each forward draws a new order of the heads, so a step draws its own"

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        self.generator = stream(seed, "shuffle")

    def draw(self, stream: Stream) -> None:
        self.generator = stream("order")

    def forward(self, heads: Heads, x: Vectors, tokens: Tokens, /) -> Heads:
        order = torch.randperm(heads.shape[1], generator=self.generator)
        return heads[:, order.to(heads.device)]

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state)


class ShuffleFixed(nn.Module):
    """o = [oˢ⁽¹⁾ … oˢ⁽ᴴ⁾], s drawn once: a re-parametrization of the output projection."""

    order: Tensor

    def __init__(self, *, n_heads: int, seed: int = 0) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(n_heads, generator=stream(seed, "shuffle-fixed")))

    def draw(self, stream: Stream) -> None:
        self.order.copy_(torch.randperm(len(self.order), generator=stream("order")))

    def forward(self, heads: Heads, x: Vectors, tokens: Tokens, /) -> Heads:
        return heads[:, self.order]


class Shift(nn.Module):
    """o = [o² … oᴴ o¹]: a re-parametrization of the output projection."""

    def forward(self, heads: Heads, x: Vectors, tokens: Tokens, /) -> Heads:
        return heads.roll(-1, dims=1)


class ReweightToken(nn.Module):
    """o_iʰ·‖o_iʰ‖: each head of each token by its own norm, the form that keeps causality."""

    def forward(self, heads: Heads, x: Vectors, tokens: Tokens, /) -> Heads:
        return heads * heads.norm(dim=-1, keepdim=True)


class ReweightSequence(nn.Module):
    """oʰ·‖Oʰ‖, the norm over all tokens of the sequence: every token hears the future."""

    whole: ClassVar[str] = "the norm runs over the whole sequence, also over tokens that come later"

    def forward(self, heads: Heads, x: Vectors, tokens: Tokens, /) -> Heads:
        return heads * torch.linalg.vector_norm(heads, dim=(2, 3), keepdim=True)


class ReweightBatch(nn.Module):
    """oʰ·‖Oʰ‖, the norm over the whole batch: every sentence hears the others."""

    whole: ClassVar[str] = "the norm runs over the whole batch, also over tokens that come later"

    def forward(self, heads: Heads, x: Vectors, tokens: Tokens, /) -> Heads:
        return heads * torch.linalg.vector_norm(heads, dim=(0, 2, 3), keepdim=True)


class Gated(nn.Module):
    """o·σ(G x): each feature of each head is let through as the token itself decides."""

    def __init__(self, *, d_model: int, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.gate = nn.Linear(d_model, n_heads * d_head)

    def forward(self, heads: Heads, x: Vectors, tokens: Tokens, /) -> Heads:
        return heads * rearrange(torch.sigmoid(self.gate(x)), "b n (h e) -> b h n e", h=self.n_heads)
