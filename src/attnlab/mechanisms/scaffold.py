"""What are the steps of self-attention, one at a time?

On purpose in plain torch and by the names of the assignment (source 001), so that a student finds each one here.
"""

import torch
from torch import Tensor, nn


def init_qkv_proj(n_embd: int) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """W_Q, W_K, W_V, each with a bias."""
    return nn.Linear(n_embd, n_embd), nn.Linear(n_embd, n_embd), nn.Linear(n_embd, n_embd)


def self_attention(Q: Tensor, K: Tensor, V: Tensor, n_heads: int = 1, causal: bool = True) -> Tensor:
    """O = softmax(QKᵀ / √(n_embd / n_heads)) V in each head, token i looking at tokens j ≤ i if causal."""
    n_tok, n_embd = Q.shape[-2:]
    Q, K, V = split_heads_qkv(Q, K, V, n_heads)
    A = attn_scaled(pairwise_similarities(Q, K), n_embd, n_heads)
    if causal:
        A = apply_causal_mask(A, make_causal_mask(n_tok))
    return merge_heads(compute_outputs(attn_softmax(A), V))


def pairwise_similarities(Q: Tensor, K: Tensor) -> Tensor:
    """A = QKᵀ: every query with every key."""
    return Q @ K.transpose(-2, -1)


def attn_scaled(A: Tensor, n_embd: int, n_heads: int) -> Tensor:
    """A / √(n_embd / n_heads): by the width of a head, not of the model."""
    return A / (n_embd / n_heads) ** 0.5


def attn_softmax(A: Tensor) -> Tensor:
    """A' = softmax over the keys: each row sums to 1."""
    return torch.softmax(A, dim=-1)


def compute_outputs(A: Tensor, V: Tensor) -> Tensor:
    """O = A'V: a weighted sum of the values."""
    return A @ V


def make_causal_mask(n_tok: int) -> Tensor:
    """Ones where token i may look, at j ≤ i, zeros ahead of it."""
    return torch.tril(torch.ones(n_tok, n_tok))


def apply_causal_mask(A: Tensor, mask: Tensor) -> Tensor:
    """-∞ ahead, before the softmax: zeros after it would have let the tokens ahead into the denominator."""
    return A.masked_fill(mask.to(A.device) == 0, float("-inf"))


def split_heads_qkv(Q: Tensor, K: Tensor, V: Tensor, n_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """All three, split."""
    return split_heads(Q, n_heads), split_heads(K, n_heads), split_heads(V, n_heads)


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(B, n_tok, n_embd) → (B, n_heads, n_tok, n_embd / n_heads)"""
    return x.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, n_heads, n_tok, n_embd / n_heads) → (B, n_tok, n_embd)"""
    return x.transpose(-3, -2).flatten(-2)
