"""The scaffold passes the three tests of its assignment, against the function that torch offers."""

import pytest
import torch
from torch.nn import functional as F

from attnlab.mechanisms import scaffold
from attnlab.mechanisms.scaffold import (
    apply_causal_mask,
    attn_scaled,
    attn_softmax,
    compute_outputs,
    init_qkv_proj,
    make_causal_mask,
    merge_heads,
    pairwise_similarities,
    self_attention,
    split_heads,
    split_heads_qkv,
)

N_TOK, N_EMBD = 10, 6


def drawn():
    torch.manual_seed(447)
    K, V, Q = (torch.randn(1, N_TOK, N_EMBD) for _ in range(3))
    return Q, K, V


def expected(Q, K, V, n_heads, causal):
    Q, K, V = (t.transpose(0, 1) for t in (Q, K, V))
    y, _ = F.multi_head_attention_forward(
        Q, K, V, N_EMBD, n_heads,
        in_proj_weight=None, in_proj_bias=torch.zeros(3 * N_EMBD), bias_k=None, bias_v=None, add_zero_attn=False,
        dropout_p=0.0, out_proj_weight=torch.eye(N_EMBD), out_proj_bias=torch.zeros(N_EMBD),
        attn_mask=torch.ones(N_TOK, N_TOK).triu(1).bool() if causal else None, use_separate_proj_weight=True,
        q_proj_weight=torch.eye(N_EMBD), k_proj_weight=torch.eye(N_EMBD), v_proj_weight=torch.eye(N_EMBD),
    )  # fmt: skip
    return y.transpose(0, 1)


STAGES = pytest.mark.parametrize(
    ("n_heads", "causal"), [(1, False), (1, True), (3, True)], ids=["plain", "causal", "causal-in-three-heads"]
)


@STAGES
def test_self_attention_passes_each_stage_of_the_assignment(n_heads, causal):
    Q, K, V = drawn()
    y = self_attention(Q, K, V, n_heads=n_heads, causal=causal)
    torch.testing.assert_close(y, expected(Q, K, V, n_heads, causal), rtol=0, atol=1e-6)


def test_a_scale_by_the_width_of_the_model_fails_only_with_several_heads(monkeypatch):
    """The mistake that passes the first two stages."""
    monkeypatch.setattr(scaffold, "attn_scaled", lambda A, n_embd, n_heads: A / n_embd**0.5)
    Q, K, V = drawn()
    assert torch.allclose(self_attention(Q, K, V, 1, True), expected(Q, K, V, 1, True), atol=1e-4)
    assert not torch.allclose(self_attention(Q, K, V, 3, True), expected(Q, K, V, 3, True), atol=1e-4)


def test_attention_is_causal_with_one_head_unless_told_otherwise():
    Q, K, V = drawn()
    assert torch.equal(self_attention(Q, K, V), self_attention(Q, K, V, n_heads=1, causal=True))


def test_no_output_listens_to_its_future():
    Q, K, V = drawn()
    loud = [torch.cat([t[:, :4], 1e3 * t[:, 4:]], dim=1) for t in (Q, K, V)]
    assert torch.equal(self_attention(*loud, n_heads=3)[:, :4], self_attention(Q, K, V, n_heads=3)[:, :4])


def test_the_projections_are_three_maps_with_a_bias():
    maps = init_qkv_proj(N_EMBD)
    assert [(part.in_features, part.out_features, part.bias is not None) for part in maps] == [(6, 6, True)] * 3
    assert len({id(part) for part in maps}) == 3


def test_each_step_is_what_its_name_says():
    Q, K, V = drawn()
    A = pairwise_similarities(Q, K)
    assert A[0, 2, 5].item() == pytest.approx((Q[0, 2] @ K[0, 5]).item(), abs=1e-6)
    assert torch.equal(attn_scaled(torch.ones(2, 2), 12, 3), torch.full((2, 2), 0.5))
    torch.testing.assert_close(attn_softmax(A).sum(-1), torch.ones(1, N_TOK))
    assert torch.equal(compute_outputs(torch.eye(N_TOK), V), V)


def test_the_mask_has_ones_where_a_token_may_look():
    assert make_causal_mask(3).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    masked = apply_causal_mask(torch.zeros(2, 3, 3), make_causal_mask(3))
    assert torch.equal(masked.isneginf()[0], torch.ones(3, 3).triu(1).bool())


def test_heads_that_are_split_and_merged_are_as_before():
    Q, K, V = drawn()
    split = split_heads(Q, 3)
    assert split.shape == (1, 3, N_TOK, 2)
    assert torch.equal(split[0, 1, 4], Q[0, 4, 2:4])
    assert torch.equal(merge_heads(split), Q)
    assert all(
        torch.equal(merge_heads(t), whole) for t, whole in zip(split_heads_qkv(Q, K, V, 2), (Q, K, V), strict=True)
    )
