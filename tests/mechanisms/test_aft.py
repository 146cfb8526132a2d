"""The Attention Free Transformer equals its formula, in one pass and in blocks, and hears no loud future."""

import pytest
import torch

from attnlab.costs import mixer_cost
from attnlab.errors import BadSetting, Refused
from attnlab.mechanisms.aft import Simple, aft_full, aft_local, aft_simple
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.projections import separate
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.mechanisms.visibility import CAUSAL, EVERYTHING, padding, window
from attnlab.randomness import initialize

D, LENGTH = 4, 24
FORMS = {
    "full": lambda visible: aft_full(d_model=D, length=LENGTH, visibility=visible),
    "local": lambda visible: aft_local(d_model=D, length=LENGTH, visibility=visible, last=3),
    "simple": lambda visible: aft_simple(d_model=D, visibility=visible),
}
VISIBLE = {"causal": CAUSAL, "everything": EVERYTHING, "window": window(last=4, ahead=2)}
forms = pytest.mark.parametrize("form", FORMS)


def made(form, visible):
    mixer = FORMS[form](visible)
    initialize(mixer, 0)
    if form != "simple":
        with torch.no_grad():
            mixer.position.table.mul_(50)  # as loud as the keys, so that it matters where it is read
    return mixer.double()


def run(n=LENGTH - 1, *, batch=2, seed=0):
    return torch.randn(batch, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def by_loops(form, mixer, x, allowed):
    """The formula, one feature of one token at a time."""
    state = mixer.state_dict()

    def mapped(name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    q, k, v = mapped("merge.gate"), mapped("projection.maps.key"), mapped("projection.maps.value")
    w = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype)
    for i in range(len(w)):
        for j in range(len(w)):
            if form == "full":
                w[i, j] = state["position.table"][i, j]
            elif form == "local" and abs(i - j) < 3:
                w[i, j] = state["position.table"][i, i - j + 2]
    y = torch.zeros_like(x)
    for i in range(len(w)):
        seen = allowed[i].nonzero()[:, 0]
        weight = torch.exp(k[:, seen] + w[i, seen, None])
        y[:, i] = torch.sigmoid(q[:, i]) * (weight * v[:, seen]).sum(1) / weight.sum(1)
    return y @ state["out.weight"].T + state["out.bias"]


@forms
@pytest.mark.parametrize("visible", VISIBLE)
def test_every_form_is_its_formula(form, visible):
    mixer, x = made(form, VISIBLE[visible]), run()
    back, ahead, _ = VISIBLE[visible].band
    distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    torch.testing.assert_close(
        mixer(x), by_loops(form, mixer, x, (distance <= back) & (distance >= -ahead)), rtol=0, atol=1e-13
    )


def test_aft_full_is_an_attention_with_a_head_for_each_feature():
    mixer, x = made("full", CAUSAL), run()
    n = x.shape[1]
    twin = Attention(
        projection=separate(d_model=D, n_heads=D),
        out=mixer.out,
        score=lambda q, k, at: k.mT + mixer.position.table[None, None, :n, :n],
        merge=lambda heads, x, tokens: heads * torch.sigmoid(twin.projection(x)[0]),
        visibility=CAUSAL,
    ).double()
    maps = {"query": mixer.merge.gate, "key": mixer.projection.maps.key, "value": mixer.projection.maps.value}
    for role, part in maps.items():
        twin.projection.maps[role].load_state_dict(part.state_dict())
    torch.testing.assert_close(mixer(x), twin(x), rtol=0, atol=1e-13)
    torch.testing.assert_close(mixer.weights(x), twin.weights(x), rtol=0, atol=1e-13)


@forms
@pytest.mark.parametrize("visible", [CAUSAL, EVERYTHING, CAUSAL & padding(), EVERYTHING & padding()])
def test_the_output_is_made_with_the_weights_that_it_shows(form, visible):
    mixer, x = made(form, visible), run()
    real = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(1)) > 0.4
    tokens = Tokens.count(x.shape[1], real=real)
    torch.testing.assert_close(mixer(x, tokens=tokens), Attention.forward(mixer, x, tokens=tokens), rtol=0, atol=1e-13)
    v = mixer.projection(x)[1][1]
    heads = mixer.merge(mixer.weights(x, tokens=tokens) @ v, x, tokens)
    torch.testing.assert_close(mixer(x, tokens=tokens), mixer.out(heads[..., 0].mT), rtol=0, atol=1e-13)


@forms
def test_no_output_listens_to_its_future(form):
    mixer, x, cut = made(form, CAUSAL), run(), 9
    loud = x.clone()
    loud[:, cut:] = 1e3 * run(seed=1)[:, cut:]
    loud.requires_grad_()
    heard = mixer(loud)[:, :cut]
    assert torch.equal(heard, mixer(x)[:, :cut])
    heard.square().sum().backward()
    assert torch.equal(loud.grad[:, cut:], torch.zeros_like(loud[:, cut:]))


def test_a_maximum_over_the_whole_run_would_listen():
    """The check can fail: this is the same formula, held in range by the loudest of all keys."""
    mixer, x, cut = made("simple", CAUSAL), run(), 9

    def too_simple(x):
        k, v = (part[..., 0].mT for part in mixer.projection(x)[1])
        weight = torch.exp(k - k.amax(dim=1, keepdim=True))
        return (weight * v).cumsum(1) / weight.cumsum(1)

    loud = torch.cat([x[:, :cut], 1e3 * x[:, cut:]], dim=1)
    assert not torch.equal(too_simple(loud)[:, :cut], too_simple(x)[:, :cut])


@forms
@pytest.mark.parametrize("visible", [CAUSAL, EVERYTHING])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_not_heard(form, visible, side):
    mixer, x, noise = made(form, visible & padding()), run(12), run(5, seed=1)
    parts = [(noise, False), (x, True)] if side == "left" else [(x, True), (noise, False)]
    real = torch.cat([torch.full(part.shape[:2], kind) for part, kind in parts], dim=1)
    at = real[0].cumsum(0) - 1
    tokens = Tokens.place(at.clamp(min=0)[None], real=real) if side == "left" else Tokens.count(17, real=real)
    y = mixer(torch.cat([part for part, _ in parts], dim=1), tokens=tokens)
    torch.testing.assert_close(y[real], mixer(x).flatten(0, 1), rtol=0, atol=1e-13)
    louder = mixer(torch.cat([part if kind else 1e3 * part for part, kind in parts], dim=1), tokens=tokens)
    assert torch.equal(louder[real], y[real])


@forms
@pytest.mark.parametrize("visible", [CAUSAL, window(last=3)])
@pytest.mark.parametrize("sizes", [[1] * 23, [5, 1, 17]])
def test_a_step_equals_the_whole(form, visible, sizes):
    mixer, x = made(form, visible), run()
    state, steps = mixer.start(x), []
    for part in x.split(sizes, dim=1):
        y, state = mixer.step(part, state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, dim=1), mixer(x), rtol=0, atol=1e-13)


def test_a_step_knows_padding():
    mixer, x = made("simple", CAUSAL & padding()), run(6)
    real = torch.tensor([[False, True, False, True, True, False]]).expand(2, -1)
    state, steps = mixer.start(x), []
    for i in range(6):
        y, state = mixer.step(x[:, i : i + 1], state, tokens=Tokens.count(1, first=i, real=real[:, i : i + 1]))
        steps.append(y)
    whole = mixer(x, tokens=Tokens.count(6, real=real))
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=0, atol=1e-13)


@forms
@pytest.mark.parametrize("visible", [CAUSAL, EVERYTHING])
def test_a_row_that_may_look_nowhere_carries_nothing(form, visible):
    mixer, x = made(form, visible & padding()), run(20).requires_grad_()
    real = torch.ones(2, 20, dtype=torch.bool)
    real[0] = False
    with torch.autograd.set_detect_anomaly(True):
        y = mixer(x, tokens=Tokens.count(20, real=real))
        y.square().sum().backward()
    assert torch.equal(y[0], mixer.out.bias.expand(20, -1))
    assert torch.equal(x.grad[0], torch.zeros_like(x[0]))
    assert x.grad.isfinite().all()


@forms
def test_one_token_alone_is_its_own_gated_value(form):
    mixer, x = made(form, CAUSAL), run(1)
    v = mixer.projection.maps.value(x)
    torch.testing.assert_close(mixer(x), mixer.out(torch.sigmoid(mixer.merge.gate(x)) * v), rtol=0, atol=1e-14)


@forms
def test_every_gradient_is_that_of_the_formula(form):
    mixer, x = made(form, CAUSAL), run(19, batch=1)
    assert torch.autograd.gradcheck(mixer, x.requires_grad_(), fast_mode=True)


def test_far_keys_stay_visible_to_the_local_form():
    mixer = made("local", CAUSAL)
    assert (mixer.weights(run())[:, :, -1, 0] > 0).all()


def test_the_table_is_read_at_positions():
    mixer, x = made("full", CAUSAL), run(6)
    packed = Tokens.place(torch.tensor([[0, 1, 2, 0, 1, 2]]))
    scores = mixer.position.bias(x, x, Pairs(packed, packed))
    assert torch.equal(scores[0, 0, 3:, 3:], mixer.position.table[:3, :3])
    counted = mixer(x, tokens=Tokens.place(torch.arange(6)[None]))
    assert torch.equal(counted, mixer(x))


def test_the_simple_form_costs_as_much_as_the_length_and_the_full_form_its_square():
    simple, full = (
        [mixer_cost(build(), d_model=D, length=n).forward.total for n in (256, 512, 1024)]
        for build in (
            lambda: aft_simple(d_model=D, visibility=CAUSAL),
            lambda: aft_full(d_model=D, length=1024, visibility=CAUSAL),
        )
    )
    # The second difference over doublings leaves out what is constant and what grows as the length.
    assert (simple[2] - simple[1]) / (simple[1] - simple[0]) == pytest.approx(2, abs=0.1)
    assert (full[2] - full[1]) / (full[1] - full[0]) == pytest.approx(4, abs=0.4)
    assert isinstance(made("simple", CAUSAL), Simple)


@forms
def test_another_run_can_be_attended_to(form):
    mixer, x, memory = made(form, EVERYTHING), run(20), run(7, seed=1)
    torch.testing.assert_close(mixer(x, memory), Attention.forward(mixer, x, memory), rtol=0, atol=1e-13)


@forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_type_is_served_on_every_device(form, dtype):
    exact, x = made(form, CAUSAL), run()
    y = made(form, CAUSAL).to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), exact(x), rtol=0, atol=8 * torch.finfo(dtype).eps)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert made(form, CAUSAL).float()(x.float()).dtype == torch.bfloat16
    assert made(form, CAUSAL).to("meta")(x.to("meta")).shape == x.shape


def test_what_cannot_be_is_refused_in_a_sentence():
    with pytest.raises(Refused, match="length=24 and was given 25 tokens; build it with length=25"):
        made("full", CAUSAL)(run(25))
    with pytest.raises(BadSetting, match="at least 1"):
        aft_local(d_model=D, length=LENGTH, visibility=CAUSAL, last=0)
    for form in FORMS:
        with pytest.raises(Refused, match="token by token: it looks ahead"):
            made(form, EVERYTHING).start(run())
    shuffled = Tokens(torch.tensor([[1, 0, 2]]), torch.tensor([[1, 0, 2]]))
    with pytest.raises(Refused, match="does not rise"):
        made("simple", CAUSAL)(run(3), tokens=shuffled)


def test_plain_attention_draws_the_maps_that_they_share_alike():
    mixer = aft_full(d_model=D, length=LENGTH, visibility=CAUSAL)
    initialize(mixer, 5)
    maps = separate(d_model=D, n_heads=2)
    initialize(maps, 5, prefix="projection.")
    for role, part in mixer.projection.maps.items():
        assert torch.equal(part.weight, maps.maps[role].weight)
    assert 0.01 < mixer.position.table.std() < 0.04
