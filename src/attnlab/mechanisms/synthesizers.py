"""Scores that are never compared: made from the query alone, or not even from that."""

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab.errors import Refused
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.randomness import Stream
from attnlab.shapes import AnyKey, AnyQuery, Scores

SMALL = 1e-3


class Dense(nn.Module):
    """s_ij = relu(q_i)·B_h[:, j] + c_hj, j the place of the key; with one table, the same B and c for all heads."""

    def __init__(self, *, tables: int, d_head: int, length: int) -> None:
        super().__init__()
        self.second = nn.Parameter(torch.empty(tables, d_head, length).uniform_(-SMALL, SMALL))
        self.offset = nn.Parameter(torch.zeros(tables, 1, length))

    def draw(self, stream: Stream) -> None:
        self.second.uniform_(-SMALL, SMALL, generator=stream("second"))
        self.offset.zero_()

    def forward(self, q: AnyQuery, k: AnyKey, at: Pairs, /) -> Scores:
        # The offset goes along as one more feature that is always 1: adding it afterwards would walk over all pairs.
        table = at_places(torch.cat([self.second, self.offset], dim=1), at.keys)
        return F.pad(F.relu(q), (0, 1), value=1.0) @ table.to(q.dtype)


def dense(*, d_head: int, length: int) -> Dense:
    """s_ij = relu(q_i)·B[:, j] + c_j"""
    return Dense(tables=1, d_head=d_head, length=length)


def dense_per_head(*, n_heads: int, d_head: int, length: int) -> Dense:
    """s_ij = relu(q_i)·B_h[:, j] + c_hj"""
    return Dense(tables=n_heads, d_head=d_head, length=length)


class Random(nn.Module):
    """s_ij = R_h[i, j]: a learned table of places, the tokens are not asked."""

    def __init__(self, *, n_heads: int, length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(n_heads, length, length))

    def draw(self, stream: Stream) -> None:
        self.table.normal_(0.0, 0.02, generator=stream("table"))

    def forward(self, q: AnyQuery, k: AnyKey, at: Pairs, /) -> Scores:
        if at.queries.first is not None and at.keys.first is not None:
            columns = at_places(self.table, at.keys)
            return at_places(columns[0].mT, at.queries).mT.to(q.dtype)
        rows, columns = at.queries.order, at.keys.order
        fits(int(max(rows.max(), columns.max())) + 1, self.table.shape[-1])
        return rearrange(self.table[:, rows[:, :, None], columns[:, None, :]], "h b i j -> b h i j").to(q.dtype)


def random(*, n_heads: int, length: int) -> Random:
    """s_ij = R_h[i, j]"""
    return Random(n_heads=n_heads, length=length)


def at_places(table: Tensor, tokens: Tokens) -> Tensor:
    """The columns of a (h d places) table that belong to the tokens, as (#b h d n)."""
    if tokens.first is not None:
        end = tokens.first + len(tokens)
        fits(end, table.shape[-1])
        return table[None, ..., tokens.first : end]
    fits(int(tokens.order.max()) + 1, table.shape[-1])
    return rearrange(table[..., tokens.order], "h d b n -> b h d n")


def fits(places: int, length: int) -> None:
    if places > length:
        raise Refused(f"this synthesizer has length={length} places and met {places}; build it with length={places}")
