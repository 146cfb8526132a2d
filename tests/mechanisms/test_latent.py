"""Latent attention keeps a small vector for each token and equals attention on the keys and values made from it."""

import pytest
import torch

from attnlab.errors import BadSetting, Refused
from attnlab.mechanisms.attention import plain
from attnlab.mechanisms.kernels import BLOCKED, EXPLICIT, FUSED
from attnlab.mechanisms.latent import latent
from attnlab.mechanisms.positions import Rotary
from attnlab.mechanisms.tokens import Tokens
from attnlab.mechanisms.visibility import CAUSAL, EVERYTHING, padding, window
from attnlab.randomness import initialize

D, H, D_HEAD, TURNED = 16, 2, 8, 4


def made(visible=CAUSAL, path=EXPLICIT, **settings):
    mixer = latent(d_model=D, n_heads=H, d_head=D_HEAD, visibility=visible, path=path, **{"rotary": TURNED} | settings)
    initialize(mixer, 0)
    return mixer.double()


def run(n=9, *, batch=2, seed=0):
    return torch.randn(batch, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def turned(t, places):
    """One vector for each place, pair by pair as complex numbers."""
    t = torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous())
    speed = 10_000.0 ** -(torch.arange(0, TURNED, 2, dtype=torch.float64) / TURNED)
    return torch.view_as_real(t * torch.polar(torch.ones_like(speed), places[:, None] * speed)).flatten(-2)


def by_loops(mixer, x, causal):
    state, places = mixer.state_dict(), torch.arange(x.shape[1])

    def mapped(name, t):
        return t @ state[f"projection.{name}.weight"].T + state[f"projection.{name}.bias"]

    c, r = mapped("latent", x), turned(mapped("key_place", x), places)
    q, asks, k, v = mapped("query", x), mapped("query_place", x), mapped("key", c), mapped("value", c)
    heads = []
    for h in range(H):
        wide, small = slice(h * D_HEAD, (h + 1) * D_HEAD), slice(h * TURNED, (h + 1) * TURNED)
        a = turned(asks[..., small], places)
        s = (q[..., wide] @ k[..., wide].mT + a @ r.mT) / (D_HEAD + TURNED) ** 0.5
        if causal:
            s = s.masked_fill(places[:, None] < places, -torch.inf)
        heads.append(torch.softmax(s, -1) @ v[..., wide])
    return torch.cat(heads, -1) @ state["out.weight"].T + state["out.bias"]


@pytest.mark.parametrize("visible", [CAUSAL, EVERYTHING], ids=["causal", "everything"])
def test_latent_attention_is_its_formula(visible):
    mixer, x = made(visible), run()
    torch.testing.assert_close(mixer(x), by_loops(mixer, x, visible == CAUSAL), rtol=0, atol=1e-12)


def test_the_cache_is_smaller_than_that_of_plain_attention():
    def numbers_of_a_token(mixer):
        _, state = mixer.step(run(5, batch=1), mixer.start(run(5, batch=1)))
        return sum(t.numel() for t in state.kept) / 5

    assert numbers_of_a_token(plain(d_model=D, n_heads=H, visibility=CAUSAL).double()) == 2 * D
    assert numbers_of_a_token(made()) == D // 4 + TURNED
    assert numbers_of_a_token(made(share=16)) == 1 + TURNED


def test_only_the_last_features_are_turned():
    t, tokens = torch.randn(2, H, 9, D_HEAD + TURNED, dtype=torch.float64), Tokens.count(9)
    y = made().position.turn(t, tokens)
    assert torch.equal(y[..., :D_HEAD], t[..., :D_HEAD])
    assert torch.equal(y[..., D_HEAD:], Rotary(d_head=TURNED).turn(t[..., D_HEAD:], tokens))


def test_all_heads_read_the_same_turned_key():
    mixer, x = made(), run()
    k, _ = mixer.projection.open(*mixer.projection(x)[1])
    assert torch.equal(k[:, 0, :, D_HEAD:], k[:, 1, :, D_HEAD:])
    assert not torch.equal(k[:, 0, :, :D_HEAD], k[:, 1, :, :D_HEAD])


def test_only_distances_count():
    mixer, x = made(), run()
    moved = Tokens.place(torch.arange(9)[None] + 1000)
    torch.testing.assert_close(mixer(x, tokens=moved), mixer(x), rtol=0, atol=1e-11)
    stretched = Tokens.place(torch.arange(9)[None] * 3)
    assert not torch.allclose(mixer(x, tokens=stretched), mixer(x))


def test_no_output_listens_to_its_future():
    mixer, x = made(), run()
    loud = torch.cat([x[:, :4], 1e3 * run(seed=1)[:, 4:]], dim=1).requires_grad_()
    heard = mixer(loud)[:, :4]
    assert torch.equal(heard, mixer(x)[:, :4])
    heard.square().sum().backward()
    assert torch.equal(loud.grad[:, 4:], torch.zeros_like(loud[:, 4:]))


@pytest.mark.parametrize("visible", [CAUSAL, window(last=3)])
@pytest.mark.parametrize("sizes", [[1] * 9, [4, 5]])
def test_a_step_equals_the_whole(visible, sizes):
    mixer, x = made(visible), run()
    state, steps = mixer.start(x), []
    for part in x.split(sizes, dim=1):
        y, state = mixer.step(part, state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, dim=1), mixer(x), rtol=0, atol=1e-12)


def test_padding_is_not_heard():
    mixer, x, noise = made(CAUSAL & padding()), run(), run(4, seed=1)
    real = torch.arange(13).expand(2, -1) >= 4
    y = mixer(torch.cat([noise, x], dim=1), tokens=Tokens.count(13, real=real))
    torch.testing.assert_close(y[:, 4:], mixer(x), rtol=0, atol=1e-12)


def test_a_row_that_may_look_nowhere_carries_nothing():
    mixer, x = made(EVERYTHING & padding()), run().requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        y = mixer(x, tokens=Tokens.count(9, real=torch.zeros(2, 9, dtype=torch.bool)))
        y.square().sum().backward()
    assert torch.equal(y, mixer.out.bias.expand(2, 9, -1))
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_every_path_says_the_same():
    x = run(70)
    torch.testing.assert_close(made(path=FUSED)(x), made()(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(made(window(), BLOCKED)(x), made(window())(x), rtol=0, atol=1e-12)


def test_another_run_can_be_attended_to():
    mixer, x, memory = made(EVERYTHING), run(4), run(7, seed=1)
    w = mixer.weights(x, memory)
    assert w.shape == (2, H, 4, 7)
    assert mixer(x, memory).shape == x.shape


def test_every_gradient_is_that_of_the_formula():
    assert torch.autograd.gradcheck(made(), run(4, batch=1).requires_grad_())


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
    with pytest.raises(BadSetting, match="turned in pairs"):
        made(rotary=3)
    with pytest.raises(BadSetting, match="at least 1"):
        made(share=0)
    with pytest.raises(Refused, match="looks ahead"):
        made(EVERYTHING).start(run())
