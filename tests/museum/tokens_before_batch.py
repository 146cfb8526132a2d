"""Sentences are handed to a layer that expects the tokens first: tokens attend across the batch."""

from torch import Tensor, nn


class TokensBeforeBatch(nn.Module):
    promises = ("batch-independent",)

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attention(x, x, x)
        return y
