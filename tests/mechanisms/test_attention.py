"""The core keeps the traps shut that were met before it was written."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnlab.errors import Refused
from attnlab.mechanisms import projections, visibility
from attnlab.mechanisms.attention import Attention
from attnlab.mechanisms.kernels import BLOCKED, FUSED, PATHS
from attnlab.mechanisms.normalizers import Softmax
from attnlab.mechanisms.parts import offers
from attnlab.mechanisms.planner import paths, plan, take, taking
from attnlab.mechanisms.scores import NegativeSquaredDistance
from attnlab.mechanisms.tokens import Pairs, Tokens
from attnlab.subjects import attention


def run(n, width=8, *, batch=2, seed=0):
    return torch.randn(batch, n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plain(**parts):
    projection = projections.separate(d_model=8, n_heads=2)
    return Attention(projection=projection, out=nn.Linear(8, 8), **parts).double()


def test_causal_goes_by_order_and_not_by_position():
    """Packed positions restart, and a rule that read them would look ahead."""
    packed = Tokens.place(torch.tensor([[0, 1, 2, 0, 1, 2, 3]]))
    allowed = visibility.CAUSAL(Pairs(packed, packed))
    assert torch.equal(allowed[0, 0], torch.ones(7, 7).tril().bool())


def test_a_distance_goes_by_position_and_not_by_order():
    packed = Tokens.place(torch.tensor([[0, 1, 0, 1]]))
    assert Pairs(packed, packed).distance()[0, 0, 3].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("first_query", "n_queries", "first_key", "n_keys"), [(0, 5, 0, 5), (4, 1, 0, 5), (2, 3, 0, 5), (7, 2, 3, 6)]
)
def test_a_bias_laid_along_diagonals_equals_the_one_gathered_for_every_pair(first_query, n_queries, first_key, n_keys):
    queries, keys = Tokens.count(n_queries, first=first_query), Tokens.count(n_keys, first=first_key)
    gathered = Pairs(Tokens(queries.order, queries.position), Tokens(keys.order, keys.position))

    def values(distance):
        return torch.stack([distance.double(), distance.double() ** 2])

    assert torch.equal(Pairs(queries, keys).by_distance(values), gathered.by_distance(values))


def test_a_single_query_after_a_cache_hears_every_key():
    """The fused kernel's own causal mask would show it the first key alone."""
    module, x = attention(d_model=8, n_heads=2, path="fused").double(), run(6)
    _, state = module.step(x[:, :5], module.start(x))
    y, _ = module.step(x[:, 5:], state)
    torch.testing.assert_close(y, module(x)[:, 5:], rtol=0, atol=1e-14)


class Sharper(Softmax):
    """Overrides the call and inherits the claim that it is a plain softmax."""

    def forward(self, scores, allowed, /):
        return super().forward(3 * scores, allowed)


def test_an_inherited_claim_does_not_count():
    assert offers(Softmax(), "as_softmax") == 1.0
    assert offers(Sharper(), "as_softmax") is None
    assert FUSED.refuses(plain(normalizer=Sharper())) == "its normalizer is not a masked softmax"


def test_a_fast_path_that_cannot_serve_is_refused_and_never_replaced():
    with pytest.raises(Refused, match="fused path cannot serve here: its score is not a product"):
        attention(score="additive", path="fused")
    with pytest.raises(Refused, match="blocked path cannot serve here: its visibility is no window"):
        attention(path="blocked")
    with pytest.raises(Refused, match="its visibility is no window"):
        take(attention(), "blocked")


def test_squared_distance_survives_a_common_offset():
    """As an augmented product it cancels: 7e-2 at an offset of 100."""
    q, k = (run(5, 4, seed=s)[:, None].float() for s in (0, 1))
    tokens = Tokens.count(5)
    at, score = Pairs(tokens, tokens), NegativeSquaredDistance()
    exact = score(q.double() + 100, k.double() + 100, at)
    assert (score(q + 100, k + 100, at) - exact).abs().max() < 1e-4


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_detection_finds_nothing_in_rows_that_see_nothing():
    tokens = Tokens.count(5, real=torch.tensor([[False, False, True, True, False]]))
    for normalizer in ("softmax", "sink", "sparsemax", "sigmoid-weights", "relu-weights"):
        module = attention(d_model=8, n_heads=2, normalizer=normalizer, visibility="padding").double()
        x = run(5).requires_grad_()
        with torch.autograd.detect_anomaly(check_nan=True):
            y = module(x, tokens=tokens)
            y.sum().backward()
        assert (module.weights(x, tokens=tokens)[:, :, :2] == 0).all()
        assert torch.isfinite(x.grad).all()


def test_rules_travel_between_processes():
    rule = (visibility.CAUSAL & visibility.window(last=3)) | visibility.prefix(length=2)
    assert pickle.loads(pickle.dumps(rule)) == rule


def test_a_shared_projection_has_one_name_in_a_checkpoint():
    shared = projections.shared_qkv(d_model=8, n_heads=2)
    assert list(shared.state_dict()) == ["maps.query_key_value.weight", "maps.query_key_value.bias"]
    storages = [t.untyped_storage().data_ptr() for t in attention(projection="shared-kv").state_dict().values()]
    assert len(storages) == len(set(storages))


def test_a_table_that_is_too_short_is_an_error_and_not_a_clamp():
    for variant in (
        {"position": "relative"},
        {"position": "learned"},
        {"score": "synthesizer"},
        {"score": "synthesizer-random"},
    ):
        module = attention(d_model=8, n_heads=2, length=4, **variant).double()
        module(run(4))
        with pytest.raises(Refused, match="length="):
            module(run(5))
        elsewhere = Tokens(torch.tensor([[2, 9]]), torch.tensor([[2, 9]]))
        with pytest.raises(Refused, match="length="):
            module(run(2), tokens=elsewhere)


def test_a_part_that_takes_other_things_is_refused_in_a_sentence():
    def cosine(q, k):
        return F.cosine_similarity(q[..., None, :], k[..., None, :, :], dim=-1)

    with pytest.raises(Refused, match=r"a score is called with \(q, k, at\), and cosine takes \(q, k\)"):
        plain(score=cosine)

    def merged(heads):
        return heads

    with pytest.raises(Refused, match=r"write def merged\(heads, x, tokens\)"):
        plain(merge=merged)


def test_a_cache_holds_no_more_than_its_window():
    module, x = attention(d_model=8, n_heads=2, visibility="window(last=3)").double(), run(9)
    state = module.start(x)
    for i in range(9):
        _, state = module.step(x[:, i : i + 1], state)
        assert state.kept[0].shape[-2] <= 2
    assert len(state.tokens) == 2


def test_a_window_of_one_hears_itself_alone():
    module, x = attention(d_model=8, n_heads=2, visibility="window(last=1)").double(), run(4)
    state, ys = module.start(x), []
    for i in range(4):
        y, state = module.step(x[:, i : i + 1], state)
        ys.append(y)
    torch.testing.assert_close(torch.cat(ys, dim=1), module(x), rtol=0, atol=1e-14)
    assert torch.equal(module.weights(x)[0, 0], torch.eye(4, dtype=torch.float64))


def test_steps_go_on_from_tokens_that_are_given():
    """Marks and positions of the caller's are honored in a step as in the whole."""
    module = attention(d_model=8, n_heads=2, position="rotary", visibility="documents").double()
    x, place = run(6), torch.tensor([[0, 1, 2, 0, 1, 2]])
    document = torch.tensor([[0, 0, 0, 1, 1, 1]])
    whole = module(x, tokens=Tokens.place(place, document=document))
    state, ys = module.start(x, tokens=Tokens.place(place, document=document)), []
    for i in range(6):
        one = slice(i, i + 1)
        tokens = Tokens(torch.tensor([[i]]), place[:, one], {"document": document[:, one]})
        y, state = module.step(x[:, one], state, tokens=tokens)
        ys.append(y)
    torch.testing.assert_close(torch.cat(ys, dim=1), whole, rtol=0, atol=1e-14)


def test_a_memory_is_attended_to_with_its_own_tokens():
    module = attention(d_model=8, n_heads=2, visibility="everything & padding").double()
    x, memory = run(3), run(5, seed=1)
    real = torch.tensor([[True, True, True, False, False]])
    short = module(x, memory[:, :3])
    long = module(x, memory, memory_tokens=Tokens.count(5, real=real))
    torch.testing.assert_close(long, short, rtol=0, atol=1e-14)
    with taking(module, "fused"):
        torch.testing.assert_close(module(x, memory, memory_tokens=Tokens.count(5, real=real)), short)


def test_one_rule_for_each_head():
    module = plain(visibility=visibility.per_head(visibility.CAUSAL, visibility.window(last=1)))
    weights = module.weights(run(4))
    assert torch.equal(weights[0, 1], torch.eye(4, dtype=torch.float64))
    assert (weights[0, 0].tril() == weights[0, 0]).all()
    with taking(module, "fused"):
        fused = module(run(4))
    torch.testing.assert_close(fused, module(run(4)), rtol=0, atol=1e-14)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
@pytest.mark.parametrize(
    "visible", ["window(last=3)", "everything & window(last=9, ahead=4)", "window(last=40) & documents & padding"]
)
def test_blocks_equal_the_whole(n, visible):
    tokens = Tokens.count(n, document=torch.arange(n)[None] // 6, real=torch.arange(n)[None] % 5 != 3)
    for variant in ({}, {"position": "rotary"}, {"normalizer": "sparsemax"}, {"score": "synthesizer"}):
        module = attention(d_model=8, n_heads=2, length=100, visibility=visible, **variant).double()
        expected = module(run(n), tokens=tokens)
        with taking(module, "blocked"):
            torch.testing.assert_close(module(run(n), tokens=tokens), expected, rtol=0, atol=1e-14)


def test_blocks_give_the_gradient_of_the_whole():
    module, x = attention(d_model=8, n_heads=2, visibility="window(last=5)").double(), run(70).requires_grad_()
    (expected,) = torch.autograd.grad(module(x).square().sum(), x)
    module.path = BLOCKED
    (found,) = torch.autograd.grad(module(x).square().sum(), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_plan_measures_every_path_that_serves_and_says_why_others_do_not():
    module = attention(d_model=8, n_heads=2)
    measured = plan(module, batch=1, length=8, d_model=8, rounds=1)
    assert {timing.path for timing in measured.timings} == set(PATHS)
    assert measured.timings[0].milliseconds == min(t.milliseconds for t in measured.timings if t.milliseconds)
    assert {t.refused for t in measured.timings if t.milliseconds is None} == {"its visibility is no window"}
    assert module.path.name == "explicit", "measuring changes nothing"
    assert all(parameter.grad is None for parameter in module.parameters())
    assert plan(module, batch=1, length=8, d_model=8, rounds=1) is measured, "a plan is made once"


def test_a_mixer_without_attention_has_a_path_of_its_own():
    assert paths(nn.Linear(2, 2)) == {"own": None}
