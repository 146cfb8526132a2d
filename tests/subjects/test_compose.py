"""A variant is composed as it is written, or refused in a sentence."""

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnlab
from attnlab.catalog import CATALOG
from attnlab.errors import BadSetting, Refused, Unknown
from attnlab.mechanisms import normalizers, projections, scores, visibility
from attnlab.mechanisms.positions import Alibi, Placed
from attnlab.subjects import Size, attention, compose, decoder

SIZE = Size(d_model=8, n_heads=2, length=16)


def test_a_part_named_alone_replaces_one_part_of_plain_attention():
    module = attention(score="cosine")
    assert isinstance(module.score, scores.Cosine)
    assert isinstance(module.projection, projections.Each)
    assert isinstance(module.normalizer, normalizers.Softmax)
    assert module.visibility == visibility.CAUSAL


def test_attention_is_plain_attention():
    x = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
    named = attention(mixer="attention", d_model=8, n_heads=2)
    assert torch.equal(named(x), attention(d_model=8, n_heads=2)(x))
    assert isinstance(attention(mixer="attention", score="dot").score, scores.Dot)


def test_several_questions_are_answered_at_once():
    module = attention(score="cosine(temperature=0.5)", position="alibi", merge="gated", normalizer="sparsemax")
    assert module.score.temperature == 0.5
    assert isinstance(module.position, Alibi)
    assert isinstance(module.normalizer, normalizers.Sparsemax)


def test_a_part_brings_what_it_cannot_go_without():
    assert attention(position="deberta").score.terms == 3
    assert attention(position="deberta", score="scaled-dot(terms=3)").score.terms == 3
    assert isinstance(attention(score="synthesizer").projection, projections.Keyless)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ({"position": "deberta", "score": "cosine"}, "deberta brings its own score, and cosine answers it too"),
        ({"score": "synthesizer", "projection": "shared-qk"}, "synthesizer brings its own projection, and shared-qk"),
        ({"mixer": "gru", "score": "cosine"}, "gru answers every question itself and cannot be given a score"),
        ({"mixer": "gru", "visibility": "everything"}, "gru answers every question itself .* visibility"),
        ({"mixer": "linear", "position": "alibi"}, "linear answers every question itself .* position"),
        ({"position": "alibi", "visibility": "everything"}, "use alibi-symmetric"),
        ({"mixer": "linear", "visibility": "window(last=3)"}, "one running sum"),
        ({"score": "shuffle"}, "'shuffle' answers merge, not score"),
        ({"mixer": "latent", "projection": "shared-qk"}, "latent answers every question itself .* projection"),
    ],
    ids=str,
)
def test_a_variant_that_contradicts_itself_is_refused_by_the_part_that_knows(variant, said):
    with pytest.raises(Refused, match=said):
        compose(variant, SIZE)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ({"score": "cosin"}, "no score is called 'cosin'; did you mean 'cosine'?"),
        ({"scores": "cosine"}, "no question is called 'scores'; did you mean 'score'?"),
        ({"visibility": "causl & window"}, "no visibility is called 'causl'; did you mean 'causal'?"),
    ],
    ids=str,
)
def test_an_unknown_name_gets_a_suggestion(variant, said):
    with pytest.raises(Unknown, match=said.replace("?", r"\?")):
        compose(variant, SIZE)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ({"score": "cosine(temp=1)"}, r"cosine has no setting 'temp'; it takes temperature=0.1"),
        ({"score": "dot(1)"}, r"dot takes no settings"),
        ({"visibility": "window(last=2.5)"}, r"last is a whole number; it takes last=4, ahead=0"),
        ({"visibility": "window(4, last=5)"}, r"gives last twice"),
        ({"visibility": "window(1, 2, 3)"}, r"window takes last=4, ahead=0"),
        ({"score": "cosine(temperature=-1)"}, r"temperature must be above 0"),
        ({"projection": "tanh-projection(on='x')"}, r"one or more of the letters q, k, v"),
        (
            {"projection": "grouped(n_kv_heads=3)"},
            r"does not divide into n_kv_heads=3; the nearest that do are 3 and 6|n_heads=2",
        ),
        ({"position": "t5(buckets=1)"}, r"exact buckets < furthest must hold"),
        ({"score": "cosine(temperature=open('x'))"}, r"settings are literals"),
        ({"score": "cosine & dot"}, r"only visibility can be combined"),
        ({"score": "cosine("}, r"not closed"),
        ({"score": ""}, r"a name is missing"),
    ],
    ids=str,
)
def test_a_wrong_setting_gets_the_sentence_that_lists_the_right_ones(variant, said):
    with pytest.raises(BadSetting, match=said):
        compose(variant, SIZE)


def test_sizes_that_do_not_divide_say_which_would():
    with pytest.raises(
        BadSetting, match="d_model=66 does not divide into n_heads=4; the nearest that do are 64 and 68"
    ):
        attention(d_model=66, n_heads=4)
    with pytest.raises(BadSetting, match="d_head=3 is odd"):
        attention(d_model=6, n_heads=2, position="rotary")


def test_a_width_that_does_not_divide_is_refused_by_every_entry_or_is_no_matter_to_it():
    for entry in CATALOG:
        if "n_heads" not in inspect.signature(entry.build()).parameters and entry.question == "mixer":
            module = attention(d_model=10, n_heads=4, **{entry.question: entry.name})
            assert module(torch.zeros(1, 2, 10)).shape == (1, 2, 10), entry.name
        else:
            with pytest.raises(BadSetting, match="d_model=10 does not divide into n_heads=4"):
                attention(d_model=10, n_heads=4, **{entry.question: entry.name})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("everything", visibility.EVERYTHING),
        ("causal", visibility.CAUSAL),
        ("window(last=3)", visibility.CAUSAL & visibility.window(last=3)),
        ("prefix(2)", visibility.CAUSAL | visibility.prefix(length=2)),
        (
            "causal & window(last=3) | prefix(2)",
            (visibility.CAUSAL & visibility.window(last=3)) | visibility.prefix(length=2),
        ),
        (
            "causal & (window(last=3) | strided(stride=2))",
            visibility.CAUSAL & (visibility.window(last=3) | visibility.strided(stride=2)),
        ),
        (
            "window(last=3) | strided(stride=2)",
            visibility.CAUSAL & (visibility.window(last=3) | visibility.strided(stride=2)),
        ),
    ],
)
def test_visibility_is_anded_with_the_models_own_unless_it_says_all_of_it(written, meant):
    assert attention(visibility=written).visibility == meant


def test_an_encoder_has_a_default_of_its_own():
    window = attention(visibility="window(last=3, ahead=2)", default_visibility="everything").visibility
    assert window == visibility.window(last=3, ahead=2)
    assert attention(default_visibility="everything").visibility == visibility.EVERYTHING


def test_a_path_is_honored_or_refused():
    with pytest.raises(Refused, match="gru goes a path of its own, and fused is none of it"):
        attention(mixer="gru", path="fused")
    assert attention(mixer="latent", path="fused").path.name == "fused"


def test_talking_heads_wrap_whatever_normalizer_was_asked_for():
    module = attention(merge="talking-heads", normalizer="sparsemax")
    assert isinstance(module.normalizer, normalizers.TalkingHeads)
    assert isinstance(module.normalizer.inside, normalizers.Sparsemax)


def test_absolute_positions_are_added_once_by_the_model():
    placed = compose({"position": "sinusoidal"}, SIZE)
    assert placed.absolute is not None
    assert isinstance(attention(position="sinusoidal"), Placed)
    model = decoder(vocab=11, position="sinusoidal", length=8)
    assert type(model.absolute).__name__ == "Sinusoidal"
    assert decoder(vocab=11, position="alibi", length=8).absolute is None
    assert type(decoder(vocab=11, length=8).absolute).__name__ == "Learned"
    assert decoder(vocab=11, mixer="gru", length=8).absolute is not None


def test_a_part_may_be_given_as_it_is():
    def scaled(q, k, at):
        return 2 * q @ k.mT

    class Doubled(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.map = nn.Linear(dim, dim)

        def forward(self, x):
            return self.map(x)

    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    assert attnlab.attention(score=scaled).score is scaled
    assert attnlab.attention(mixer=Doubled)(x).shape == x.shape
    assert attnlab.attention(mixer=nn.Identity())(x).equal(x)
    assert attnlab.attention(visibility=lambda at: at.steps() == 0).weights(x)[0, 0].diagonal().eq(1).all()


def test_what_variants_share_by_name_they_draw_alike():
    plain, cosine, alibi = attention(), attention(score="cosine"), attention(position="alibi")
    for name, value in plain.state_dict().items():
        assert torch.equal(value, cosine.state_dict()[name])
        assert torch.equal(value, alibi.state_dict()[name])
    assert not torch.equal(plain.out.weight, attention(seed=1).out.weight)


def test_building_leaves_the_global_generator_where_it_was():
    class Draws(nn.Module):
        def __init__(self):
            super().__init__()
            self.start = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return x

    before = torch.get_rng_state()
    first = attention(mixer=Draws)
    torch.rand(3)
    second = attention(mixer=Draws)
    assert torch.equal(first.inside.start, second.inside.start), "a reader's own part is drawn from the seed too"
    torch.set_rng_state(before)
    attention(score="bilinear", merge="shuffle", mixer="attention")
    decoder(vocab=5, length=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_that_changes_the_shape_is_told_so():
    class Halves(nn.Module):
        def forward(self, x):
            return x[..., ::2]

    with pytest.raises(Refused, match=r"Halves was given \(1, 3, 64\) and returned \(1, 3, 32\)"):
        attention(mixer=Halves)(torch.zeros(1, 3, 64))


def test_a_probability_of_dropping_weights_is_honored_in_training_alone():
    model = decoder(vocab=7, length=8, dropout=0.5)
    ids = torch.arange(6)[None]
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))
    with pytest.raises(Refused, match="not a masked softmax"):
        decoder(vocab=7, length=8, dropout=0.5, path="fused")


def test_the_scaled_dot_is_what_torch_computes():
    module, x = attention(d_model=8, n_heads=2).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    q, k, v = (
        module.projection.maps[role](x).unflatten(-1, (2, 4)).transpose(1, 2) for role in ("query", "key", "value")
    )
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(module(x), module.out(heads.transpose(1, 2).flatten(2)), rtol=0, atol=1e-14)
