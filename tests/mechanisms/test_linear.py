"""Linear attention is an attention of shares, computed from sums that never hear what comes later."""

import pytest
import torch
from torch.nn import functional as F

from attnlab.costs import mixer_cost
from attnlab.errors import Refused
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.linear import linear
from attnlab.mechanisms.projections import separate
from attnlab.mechanisms.tokens import Tokens
from attnlab.mechanisms.visibility import CAUSAL, EVERYTHING, documents, padding, window
from attnlab.randomness import initialize

D, H = 6, 3
both = pytest.mark.parametrize("visible", [CAUSAL, EVERYTHING], ids=["causal", "everything"])


def made(visible, *, n_heads=H):
    mixer = linear(d_model=D, n_heads=n_heads, visibility=visible)
    initialize(mixer, 0)
    return mixer.double()


def run(n, *, batch=2, seed=0):
    return torch.randn(batch, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_loops(mixer, x, causal):
    state = mixer.state_dict()
    q, k, v = (
        (x @ state[f"projection.maps.{role}.weight"].T + state[f"projection.maps.{role}.bias"]).unflatten(-1, (H, -1))
        for role in ("query", "key", "value")
    )
    q, k = F.elu(q) + 1, F.elu(k) + 1
    heads = torch.zeros_like(v)
    for i in range(x.shape[1]):
        end = i + 1 if causal else x.shape[1]
        weight = (q[:, i : i + 1] * k[:, :end]).sum(-1, keepdim=True)
        heads[:, i] = (weight * v[:, :end]).sum(1) / weight.sum(1)
    return heads.flatten(-2) @ state["out.weight"].T + state["out.bias"]


@both
@pytest.mark.parametrize("n", [1, 7, 64, 65, 150])
def test_linear_attention_is_its_formula(visible, n):
    mixer, x = made(visible), run(n)
    torch.testing.assert_close(mixer(x), by_loops(mixer, x, visible == CAUSAL), rtol=0, atol=1e-12)


@both
def test_linear_attention_is_an_attention_with_a_score_of_its_own(visible):
    mixer, x = made(visible), run(20)

    def shares(scores, allowed):
        kept = scores * allowed
        return kept / kept.sum(dim=-1, keepdim=True)

    twin = Attention(
        projection=separate(d_model=D, n_heads=H),
        out=torch.nn.Linear(D, D),
        score=lambda q, k, at: (F.elu(q) + 1) @ (F.elu(k) + 1).mT,
        normalizer=shares,
        visibility=visible,
    ).double()
    twin.load_state_dict(mixer.state_dict())
    torch.testing.assert_close(mixer(x), twin(x), rtol=0, atol=1e-13)
    torch.testing.assert_close(mixer.weights(x), twin.weights(x), rtol=0, atol=1e-13)


@both
def test_the_output_is_made_with_the_weights_that_it_shows(visible):
    mixer, x = made(visible & padding()), run(90)
    real = torch.rand(2, 90, generator=torch.Generator().manual_seed(1)) > 0.4
    real[:, 0] = False
    tokens = Tokens.count(90, real=real)
    torch.testing.assert_close(mixer(x, tokens=tokens), Attention.forward(mixer, x, tokens=tokens), rtol=0, atol=1e-13)
    w = mixer.weights(x, tokens=tokens)
    sums = w.sum(-1)
    assert (w >= 0).all()
    assert ((sums - 1).abs() < 1e-14).logical_or(sums == 0).all()


def test_no_output_listens_to_its_future():
    mixer, x, cut = made(CAUSAL), run(150), 70
    loud = torch.cat([x[:, :cut], 1e3 * run(150, seed=1)[:, cut:]], dim=1).requires_grad_()
    heard = mixer(loud)[:, :cut]
    assert torch.equal(heard, mixer(x)[:, :cut])
    heard.square().sum().backward()
    assert torch.equal(loud.grad[:, cut:], torch.zeros_like(loud[:, cut:]))


def test_a_sum_taken_off_again_would_listen():
    """The check can fail: the sum before a chunk as the sum after it less the chunk."""
    x = run(4, batch=1)[0]
    loud = torch.cat([x[:2], 1e3 * x[2:]])
    before = [t.sum(0) - t[2:].sum(0) for t in (x, loud)]
    assert not torch.equal(*before)


@both
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_not_heard(visible, side):
    mixer, x, noise = made(visible & padding()), run(70), run(9, seed=1)
    parts = [(noise, False), (x, True)] if side == "left" else [(x, True), (noise, False)]
    real = torch.cat([torch.full(part.shape[:2], kind) for part, kind in parts], dim=1)
    tokens = Tokens.count(79, real=real)
    y = mixer(torch.cat([part for part, _ in parts], dim=1), tokens=tokens)
    torch.testing.assert_close(y[real], mixer(x).flatten(0, 1), rtol=0, atol=1e-13)
    louder = mixer(torch.cat([part if kind else 1e3 * part for part, kind in parts], dim=1), tokens=tokens)
    assert torch.equal(louder[real], y[real])


@pytest.mark.parametrize("sizes", [[1] * 80, [5, 1, 74]])
def test_a_step_equals_the_whole(sizes):
    mixer, x = made(CAUSAL), run(80)
    state, steps = mixer.start(x), []
    for part in x.split(sizes, dim=1):
        y, state = mixer.step(part, state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, dim=1), mixer(x), rtol=0, atol=1e-13)
    assert state.sums.numel() == 2 * H * (D // H) * (D // H + 1)


@both
def test_a_row_that_may_look_nowhere_carries_nothing(visible):
    mixer, x = made(visible & padding()), run(20).requires_grad_()
    real = torch.ones(2, 20, dtype=torch.bool)
    real[0] = False
    with torch.autograd.set_detect_anomaly(True):
        y = mixer(x, tokens=Tokens.count(20, real=real))
        y.square().sum().backward()
    assert torch.equal(y[0], mixer.out.bias.expand(20, -1))
    assert torch.equal(x.grad[0], torch.zeros_like(x[0]))
    assert x.grad.isfinite().all()


def test_a_query_far_below_zero_still_weighs_its_keys():
    """φ of a query of -2000 is 0 in float64, but a factor of its own does not change its shares."""
    mixer, x = made(CAUSAL, n_heads=D), run(12)
    with torch.no_grad():
        mixer.projection.maps["query"].bias.fill_(-2000.0)
    w = mixer.weights(x)
    assert torch.equal(F.elu(mixer.projection(x)[0]) + 1, torch.zeros(2, D, 12, 1, dtype=torch.float64))
    torch.testing.assert_close(w.sum(-1), torch.ones(2, D, 12, dtype=torch.float64))
    x.requires_grad_()
    mixer(x).sum().backward()
    assert x.grad.isfinite().all()


@both
def test_every_gradient_is_that_of_the_formula(visible):
    assert torch.autograd.gradcheck(made(visible), run(7, batch=1).requires_grad_())


def test_the_cost_grows_as_the_length():
    causal, plain = (
        [mixer_cost(mixer.float(), d_model=D, length=n).forward.total for n in (128, 256)]
        for mixer in (made(CAUSAL), Attention(projection=separate(d_model=D, n_heads=H), out=torch.nn.Linear(D, D)))
    )
    assert causal[1] < 2.1 * causal[0]
    assert plain[1] > 3 * plain[0]


@both
def test_another_run_can_be_attended_to(visible):
    mixer, x, memory = made(visible), run(9), run(7, seed=1)
    torch.testing.assert_close(mixer(x, memory), Attention.forward(mixer, x, memory), rtol=0, atol=1e-13)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_type_is_served_on_every_device(visible, dtype):
    x = run(70)
    y = made(visible).to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), made(visible)(x), rtol=0, atol=8 * torch.finfo(dtype).eps)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(visible).float()(x.float()).dtype == torch.bfloat16
    assert made(visible).to("meta")(x.to("meta")).shape == x.shape


def test_what_cannot_be_is_refused_in_a_sentence():
    for visible in (window(), CAUSAL & documents(), CAUSAL | window(last=3, ahead=1)):
        with pytest.raises(Refused, match="can be causal or see everything"):
            linear(d_model=D, n_heads=H, visibility=visible)
    with pytest.raises(Refused, match="looks ahead; a causal one can"):
        made(EVERYTHING).start(run(3))
    with pytest.raises(Refused, match="memory"):
        made(CAUSAL).start(run(3), run(3))
    with pytest.raises(Refused, match="does not rise"):
        made(CAUSAL)(run(3), tokens=Tokens(torch.tensor([[1, 0, 2]]), torch.tensor([[1, 0, 2]])))
