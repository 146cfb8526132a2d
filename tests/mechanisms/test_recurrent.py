"""The recurrent mixers are their formulas, one token after another, and padding leaves them as they were."""

import pytest
import torch

from attnlab.errors import Refused
from attnlab.mechanisms.recurrent import gru, recurrent, relu_recurrent
from attnlab.mechanisms.tokens import Tokens
from attnlab.randomness import initialize

D = 6
KINDS = {"recurrent": recurrent, "relu-recurrent": relu_recurrent, "gru": gru}
kinds = pytest.mark.parametrize("kind", KINDS)


def made(kind, seed=0):
    mixer = KINDS[kind](d_model=D)
    initialize(mixer, seed)
    with torch.no_grad():
        for name, bias in mixer.named_parameters():
            if "bias" in name:
                bias.normal_(generator=torch.Generator().manual_seed(3))
    return mixer.double()


def run(n=11, *, batch=3, seed=0):
    return torch.randn(batch, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_loops(kind, mixer, x):
    w, u, b, c = (getattr(mixer.cells, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
    h, states = torch.zeros(len(x), D, dtype=x.dtype), []
    for t in x.unbind(1):
        new, old = t @ w.T + b, h @ u.T + c
        if kind == "gru":
            (r, z, m), (r_old, z_old, m_old) = new.chunk(3, -1), old.chunk(3, -1)
            r, z = torch.sigmoid(r + r_old), torch.sigmoid(z + z_old)
            h = z * h + (1 - z) * torch.tanh(m + r * m_old)
        else:
            h = torch.tanh(new + old) if kind == "recurrent" else torch.relu(new + old)
        states.append(h)
    return torch.stack(states, 1) @ mixer.out.weight.T + mixer.out.bias


@kinds
@pytest.mark.parametrize("n", [1, 11])
def test_every_kind_is_its_formula(kind, n):
    mixer, x = made(kind), run(n)
    torch.testing.assert_close(mixer(x), by_loops(kind, mixer, x), rtol=0, atol=1e-13)


@kinds
def test_no_output_listens_to_its_future(kind):
    mixer, x = made(kind), run()
    loud = torch.cat([x[:, :5], 1e3 * run(seed=1)[:, 5:]], dim=1).requires_grad_()
    heard = mixer(loud)[:, :5]
    assert torch.equal(heard, mixer(x)[:, :5])
    heard.square().sum().backward()
    assert torch.equal(loud.grad[:, 5:], torch.zeros_like(loud[:, 5:]))


@kinds
@pytest.mark.parametrize("sizes", [[1] * 11, [4, 1, 6]])
def test_a_step_equals_the_whole(kind, sizes):
    mixer, x = made(kind), run()
    state, steps = mixer.start(x), []
    for part in x.split(sizes, dim=1):
        y, state = mixer.step(part, state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, dim=1), mixer(x), rtol=0, atol=1e-13)


@kinds
def test_padding_anywhere_leaves_the_state_as_it_was(kind):
    mixer, x = made(kind), run(9)
    real = torch.rand(3, 9, generator=torch.Generator().manual_seed(1)) > 0.4
    real[0] = False
    y = mixer(x, tokens=Tokens.count(9, real=real))
    for some, kept, whole in zip(x, real, y, strict=True):
        alone = some[kept][None]
        if kept.any():
            torch.testing.assert_close(whole[kept][None], mixer(alone), rtol=0, atol=1e-13)
    assert torch.equal(y[0], mixer.out.bias.expand(9, -1))
    louder = mixer(torch.where(real[..., None], x, 1e3 * x), tokens=Tokens.count(9, real=real))
    assert torch.equal(louder, y)


@kinds
def test_a_step_knows_padding(kind):
    mixer, x = made(kind), run(9)
    real = torch.tensor([[False, True, True, False, False, True, False, True, False]])
    state, steps = mixer.start(x), []
    for part, kept in zip(x.split([1, 2, 2, 4], dim=1), real.split([1, 2, 2, 4], dim=1), strict=True):
        y, state = mixer.step(part, state, tokens=Tokens.count(part.shape[1], real=kept))
        steps.append(y)
    whole = mixer(x, tokens=Tokens.count(9, real=real))
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-13)


@kinds
def test_gradients_through_padding_are_finite_and_silent(kind):
    mixer, x = made(kind), run(9).requires_grad_()
    real = torch.arange(9).expand(3, -1) >= torch.tensor([[0], [4], [9]])
    with torch.autograd.set_detect_anomaly(True):
        mixer(x, tokens=Tokens.count(9, real=real)).square().sum().backward()
    assert torch.equal(x.grad[~real], torch.zeros_like(x.grad[~real]))
    assert (x.grad[real] != 0).any()


@kinds
def test_weights_are_drawn_from_streams_of_their_own(kind):
    one, same, other = (KINDS[kind](d_model=D) for _ in range(3))
    for mixer, seed in ((one, 0), (same, 0), (other, 1)):
        initialize(mixer, seed)
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, same.get_parameter(name))
        if "bias" in name:
            assert torch.equal(parameter, torch.zeros_like(parameter))
        else:
            assert not torch.equal(parameter, other.get_parameter(name))
    for gate in one.cells.weight_hh_l0.split(D):
        torch.testing.assert_close(gate @ gate.T, torch.eye(D), rtol=0, atol=1e-5)


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_type_is_served_on_every_device(kind, dtype):
    x = run()
    y = made(kind).to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), made(kind)(x), rtol=0, atol=32 * torch.finfo(dtype).eps)
    real = torch.ones(3, 11, dtype=torch.bool)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixer = made(kind).float()
        y, state = mixer.step(x.float(), mixer.start(x.float()), tokens=Tokens.count(11, real=real))
        y, _ = mixer.step(x.float(), state)
    assert y.dtype == torch.bfloat16
    assert made(kind).to("meta")(x.to("meta")).shape == x.shape


@kinds
def test_a_memory_is_refused_in_a_sentence(kind):
    with pytest.raises(Refused, match="cannot attend to a memory"):
        made(kind)(run(), run())
