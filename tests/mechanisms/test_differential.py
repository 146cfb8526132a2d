"""Differential attention is two softmaxes for each head, one taken off the other."""

import pytest
import torch

from attnlab.errors import BadSetting, Refused
from attnlab.mechanisms.differential import differential
from attnlab.mechanisms.kernels import BLOCKED, EXPLICIT, FUSED
from attnlab.mechanisms.positions import Disentangled, Rotary, alibi, relative
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.mechanisms.visibility import CAUSAL, EVERYTHING, padding, per_head, window
from attnlab.randomness import initialize

D, H, D_HEAD = 16, 2, 8
POSITIONS = {
    "none": lambda: None,
    "rotary": lambda: Rotary(d_head=D_HEAD),
    "alibi": lambda: alibi(n_heads=H, visibility=CAUSAL),
    "relative": lambda: relative(n_heads=H, length=32),
    "deberta": lambda: Disentangled(d_model=D, n_heads=H, d_head=D_HEAD, reach=4),
}


def made(visible=CAUSAL, position="none", path=EXPLICIT, **settings):
    place = POSITIONS[position]()
    mixer = differential(d_model=D, n_heads=H, d_head=D_HEAD, visibility=visible, position=place, path=path, **settings)
    initialize(mixer, 0)
    return mixer.double()


def run(n=9, *, batch=2, seed=0):
    return torch.randn(batch, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def factor(mixer, begin=0.8):
    q, k = mixer.normalizer.lambda_q.detach(), mixer.normalizer.lambda_k.detach()
    return float(torch.exp(q[0] @ k[0]) - torch.exp(q[1] @ k[1]) + begin)


def by_loops(mixer, x, causal, begin):
    state, half = mixer.state_dict(), D_HEAD // 2
    q, k, v = (
        x @ state[f"projection.maps.{role}.weight"].T + state[f"projection.maps.{role}.bias"]
        for role in ("query", "key", "value")
    )
    heads = []
    for h in range(H):
        first, second = (slice(h * D_HEAD + s * half, h * D_HEAD + (s + 1) * half) for s in (0, 1))
        rows = []
        for i in range(x.shape[1]):
            end = i + 1 if causal else x.shape[1]
            one, two = (
                torch.softmax((k[:, :end, f] * q[:, i : i + 1, f]).sum(-1) / half**0.5, -1) for f in (first, second)
            )
            w = one - factor(mixer, begin) * two
            rows.append((w[..., None] * v[:, :end, h * D_HEAD : (h + 1) * D_HEAD]).sum(1))
        o = torch.stack(rows, dim=1)
        level = (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        heads.append((1 - begin) * state["merge.weight"] * o / level)
    return torch.cat(heads, dim=-1) @ state["out.weight"].T + state["out.bias"]


@pytest.mark.parametrize("visible", [CAUSAL, EVERYTHING], ids=["causal", "everything"])
@pytest.mark.parametrize("begin", [0.8, 0.2])
def test_differential_attention_is_its_formula(visible, begin):
    mixer, x = made(visible, begin=begin), run()
    torch.testing.assert_close(mixer(x), by_loops(mixer, x, visible == CAUSAL, begin), rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", POSITIONS)
def test_rows_sum_to_what_is_left(position):
    mixer, x = made(position=position), run()
    w = mixer.weights(x)
    assert w.shape == (2, H, 9, 9)
    torch.testing.assert_close(w.sum(-1), torch.full((2, H, 9), 1 - factor(mixer), dtype=torch.float64))
    assert (w < 0).any()


def test_each_half_is_turned_as_a_head_of_its_own():
    mixer, x = made(position="rotary"), run()
    tokens = Tokens.count(9)
    q = mixer.projection(x)[0]
    turned = mixer.position.turn(q, tokens)
    for half in (slice(0, 4), slice(4, 8)):
        assert torch.equal(turned[..., half], Rotary(d_head=4).turn(q[..., half], tokens))


def test_a_bias_is_the_same_for_both_halves_of_a_head():
    mixer, x = made(position="alibi"), run()
    q, (k, _) = mixer.projection(x)
    at = Pairs(Tokens.count(9), Tokens.count(9))
    bias = mixer.position.bias(q, k, at)
    whole = POSITIONS["alibi"]().bias(q, k, at)
    assert torch.equal(bias[:, 0::2], whole)
    assert torch.equal(bias[:, 1::2], whole)


@pytest.mark.parametrize("position", POSITIONS)
def test_no_output_listens_to_its_future(position):
    mixer, x = made(position=position), run()
    loud = torch.cat([x[:, :4], 1e3 * run(seed=1)[:, 4:]], dim=1).requires_grad_()
    heard = mixer(loud)[:, :4]
    assert torch.equal(heard, mixer(x)[:, :4])
    heard.square().sum().backward()
    assert torch.equal(loud.grad[:, 4:], torch.zeros_like(loud[:, 4:]))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("sizes", [[1] * 9, [4, 5]])
def test_a_step_equals_the_whole(position, sizes):
    mixer, x = made(position=position), run()
    state, steps = mixer.start(x), []
    for part in x.split(sizes, dim=1):
        y, state = mixer.step(part, state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, dim=1), mixer(x), rtol=0, atol=1e-12)


def test_padding_is_not_heard():
    mixer, x, noise = made(CAUSAL & padding()), run(), run(4, seed=1)
    real = torch.arange(13).expand(2, -1) < 9
    y = mixer(torch.cat([x, noise], dim=1), tokens=Tokens.count(13, real=real))
    torch.testing.assert_close(y[:, :9], mixer(x), rtol=0, atol=1e-13)


def test_a_row_that_may_look_nowhere_carries_nothing():
    mixer, x = made(CAUSAL & padding()), run().requires_grad_()
    real = torch.ones(2, 9, dtype=torch.bool)
    real[0] = False
    with torch.autograd.set_detect_anomaly(True):
        y = mixer(x, tokens=Tokens.count(9, real=real))
        y.square().sum().backward()
    assert torch.equal(y[0], mixer.out.bias.expand(9, -1))
    assert torch.equal(x.grad[0], torch.zeros_like(x[0]))
    assert x.grad.isfinite().all()


def test_heads_may_see_differently():
    mixer, x = made(per_head(CAUSAL, EVERYTHING)), run()
    w = mixer.weights(x)
    assert (w[:, 0].triu(1) == 0).all()
    assert (w[:, 1] != 0).all()


def test_windows_may_go_in_blocks():
    x = run(70)
    for position in ("none", "rotary"):
        explicit, blocked = (made(window(last=5), position, path)(x) for path in (EXPLICIT, BLOCKED))
        torch.testing.assert_close(blocked, explicit, rtol=0, atol=1e-12)


def test_one_token_alone_is_its_value_at_level():
    mixer, x = made(), run(1)
    v = mixer.projection(x)[1][1]
    o = (1 - factor(mixer)) * v
    heads = 0.2 * o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(mixer(x), mixer.out(heads.transpose(1, 2).flatten(2)), rtol=0, atol=1e-12)


def test_every_gradient_is_that_of_the_formula():
    assert torch.autograd.gradcheck(made(), run(4, batch=1).requires_grad_())


def test_lambda_is_drawn_small_and_from_a_stream_of_its_own():
    one, other = made(), made()
    assert torch.equal(one.normalizer.lambda_q, other.normalizer.lambda_q)
    assert not torch.equal(one.normalizer.lambda_q, one.normalizer.lambda_k)
    assert 0.03 < one.normalizer.lambda_q.std() < 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_type_is_served_on_every_device(dtype):
    x = run()
    y = made().to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), made()(x), rtol=0, atol=16 * torch.finfo(dtype).eps)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made().float()(x.float()).dtype == torch.bfloat16
    assert made().to("meta")(x.to("meta")).shape == x.shape


def test_what_cannot_be_is_refused_in_a_sentence():
    sizes = {"visibility": CAUSAL, "path": EXPLICIT}
    with pytest.raises(BadSetting, match="d_head=3 is odd"):
        differential(d_model=6, n_heads=2, d_head=3, **sizes)
    with pytest.raises(BadSetting, match="take a multiple of 4"):
        differential(d_model=12, n_heads=2, d_head=6, position=Rotary(d_head=6), **sizes)
    with pytest.raises(BadSetting, match="below 1"):
        made(begin=1.0)
    with pytest.raises(Refused, match="fused path cannot serve"):
        made(path=FUSED)
