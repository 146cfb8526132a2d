"""Fastformer is as published when it sees everything, and when causal every sum stops at its token."""

import pytest
import torch

from attnlab.costs import mixer_cost
from attnlab.errors import Refused
from attnlab.mechanisms.fastformer import fastformer
from attnlab.mechanisms.tokens import Tokens
from attnlab.mechanisms.visibility import CAUSAL, EVERYTHING, padding, window
from attnlab.randomness import initialize

D, H = 6, 2
both = pytest.mark.parametrize("visible", [CAUSAL, EVERYTHING], ids=["causal", "everything"])


def made(visible):
    mixer = fastformer(d_model=D, n_heads=H, visibility=visible)
    initialize(mixer, 0)
    return mixer.double()


def run(n=23, *, batch=2, seed=0):
    return torch.randn(batch, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_loops(mixer, x, causal):
    """The formula for one run and one head at a time."""
    state, d = mixer.state_dict(), D // H

    def mapped(name, t):
        return t @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    y = torch.zeros_like(x)
    for b, tokens in enumerate(x):
        q, k, v = (mapped(f"projection.maps.{role}", tokens) for role in ("query", "key", "value"))
        u = torch.zeros_like(v)
        for h in range(H):
            some = slice(h * d, (h + 1) * d)
            ends = [i + 1 if causal else len(tokens) for i in range(len(tokens))]
            ask = q[:, some] @ state["query_readout"][h] / d**0.5
            g = torch.stack([torch.softmax(ask[:end], 0) @ q[:end, some] for end in ends])
            p = g * k[:, some]
            tell = p @ state["key_readout"][h] / d**0.5
            u[:, some] = torch.stack([torch.softmax(tell[:end], 0) @ p[:end] for end in ends]) * v[:, some]
        y[b] = q + mapped("out", u)
    return y


@both
@pytest.mark.parametrize("n", [1, 2, 8, 23])
def test_fastformer_is_its_formula(visible, n):
    mixer, x = made(visible), run(n)
    torch.testing.assert_close(mixer(x), by_loops(mixer, x, visible == CAUSAL), rtol=0, atol=1e-13)


def test_the_last_token_of_two_that_see_everything_hears_what_the_causal_one_does_not():
    """p_j is made with the global query of position j, so even the last row differs from the published form."""
    x = run(2)
    assert not torch.allclose(made(CAUSAL)(x)[:, -1], made(EVERYTHING)(x)[:, -1])


def test_no_output_listens_to_its_future():
    mixer, x, cut = made(CAUSAL), run(), 9
    loud = torch.cat([x[:, :cut], 1e3 * run(seed=1)[:, cut:]], dim=1).requires_grad_()
    heard = mixer(loud)[:, :cut]
    assert torch.equal(heard, mixer(x)[:, :cut])
    heard.square().sum().backward()
    assert torch.equal(loud.grad[:, cut:], torch.zeros_like(loud[:, cut:]))


def test_the_published_form_listens_to_its_future():
    mixer, x = made(EVERYTHING), run()
    assert not torch.equal(mixer(x)[:, :9], mixer(torch.cat([x[:, :9], -x[:, 9:]], dim=1))[:, :9])


@both
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_not_heard(visible, side):
    mixer, x, noise = made(visible & padding()), run(), run(9, seed=1)
    parts = [(noise, False), (x, True)] if side == "left" else [(x, True), (noise, False)]
    real = torch.cat([torch.full(part.shape[:2], kind) for part, kind in parts], dim=1)
    tokens = Tokens.count(32, real=real)
    y = mixer(torch.cat([part for part, _ in parts], dim=1), tokens=tokens)
    torch.testing.assert_close(y[real], mixer(x).flatten(0, 1), rtol=0, atol=1e-13)
    louder = mixer(torch.cat([part if kind else 1e3 * part for part, kind in parts], dim=1), tokens=tokens)
    assert torch.equal(louder[real], y[real])


@pytest.mark.parametrize("sizes", [[1] * 23, [5, 1, 17]])
def test_a_step_equals_the_whole(sizes):
    mixer, x = made(CAUSAL), run()
    state, steps = mixer.start(x), []
    for part in x.split(sizes, dim=1):
        y, state = mixer.step(part, state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, dim=1), mixer(x), rtol=0, atol=1e-13)


@both
def test_a_row_that_may_look_nowhere_is_its_query(visible):
    mixer, x = made(visible & padding()), run().requires_grad_()
    real = torch.ones(2, 23, dtype=torch.bool)
    real[0] = False
    with torch.autograd.set_detect_anomaly(True):
        y = mixer(x, tokens=Tokens.count(23, real=real))
        y.square().sum().backward()
    torch.testing.assert_close(y[0], mixer.projection.maps["query"](x[0]) + mixer.out.bias, rtol=0, atol=1e-14)
    assert x.grad.isfinite().all()


@both
def test_every_gradient_is_that_of_the_formula(visible):
    assert torch.autograd.gradcheck(made(visible), run(6, batch=1).requires_grad_())


@both
def test_the_cost_grows_as_the_length(visible):
    short, long = (mixer_cost(made(visible).float(), d_model=D, length=n).forward.total for n in (64, 128))
    assert long < 2.2 * short


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_type_is_served_on_every_device(visible, dtype):
    x = run()
    y = made(visible).to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), made(visible)(x), rtol=0, atol=40 * torch.finfo(dtype).eps)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(visible).float()(x.float()).dtype == torch.bfloat16
    assert made(visible).to("meta")(x.to("meta")).shape == x.shape


def test_what_cannot_be_is_refused_in_a_sentence():
    with pytest.raises(Refused, match="can be causal or see everything"):
        fastformer(d_model=D, n_heads=H, visibility=window())
    with pytest.raises(Refused, match="cannot attend to a memory"):
        made(EVERYTHING)(run(3), run(3))
    with pytest.raises(Refused, match="looks ahead; a causal one can"):
        made(EVERYTHING).start(run(3))
