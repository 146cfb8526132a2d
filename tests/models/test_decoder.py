"""The decoder has the sizes that were published, and goes token by token as it goes as a whole."""

import pytest
import torch
from torch import nn

from attnlab.catalog import CATALOG
from attnlab.errors import BadSetting, Refused, Unknown
from attnlab.mechanisms.tokens import Tokens
from attnlab.subjects import decoder

IDS = torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("published", "options"),
    [
        (2_688_048, {"size": "nano", "vocab": 26_604, "length": 1024}),
        (3_323_392, {"size": "small", "vocab": 256, "length": 128}),
        (3_076_988, {"size": "small", "vocab": 256, "length": 128, "score": "synthesizer(length=127)"}),
    ],
    ids=["minGPT nano of CSE 447", "CS224n A5", "the synthesizer of CS224n A5"],
)
def test_the_parameters_are_as_many_as_published(published, options):
    assert sum(parameter.numel() for parameter in decoder(**options).parameters()) == published


def test_it_begins_as_published():
    """N(0, 0.02), biases zero, and what is added to the stream less by √(2 layers)."""
    model = decoder(vocab=200, size="small", length=16)
    block = model.blocks[0]
    for weight, spread in (
        (model.embedding.weight, 0.02),
        (model.head.weight, 0.02),
        (block.mixer.projection.maps["query"].weight, 0.02),
        (block.widen.weight, 0.02),
        (block.narrow.weight, 0.02 / 8**0.5),
        (block.mixer.out.weight, 0.02 / 8**0.5),
    ):
        assert weight.std().item() == pytest.approx(spread, rel=0.02)
    assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith("bias"))


def test_every_mechanism_goes_into_a_decoder_and_its_future_stays_its_own():
    for entry in CATALOG:
        if "causal" in entry.breaks or "causal" not in entry.promises:
            continue
        size = {"size": "small"} if entry.name == "grouped" else {}
        model = decoder(vocab=11, length=16, **size, **{entry.question: entry.name}).eval()
        state = {name: value.clone() for name, value in model.state_dict().items()}
        whole = model(IDS)
        model.load_state_dict(state)  # shuffle has drawn
        changed = torch.cat([IDS[:, :4], (IDS[:, 4:] + 1) % 11], dim=1)
        assert torch.equal(model(changed)[:, :4], whole[:, :4]), entry.name


@pytest.mark.parametrize(
    "variant", [{}, {"position": "sinusoidal"}, {"position": "rotary"}, {"mixer": "gru"}, {"mixer": "latent"}]
)
def test_token_by_token_is_the_whole(variant):
    model = decoder(vocab=11, length=16, **variant).double().eval()
    state, logits = model.start(IDS), []
    for ids in IDS.split([3, 1, 1, 2], dim=1):
        out, state = model.step(ids, state)
        logits.append(out)
    torch.testing.assert_close(torch.cat(logits, dim=1), model(IDS), rtol=0, atol=1e-12)


def test_it_shows_the_weights_of_each_layer():
    model = decoder(vocab=11, length=16)
    weights = model.weights(IDS)
    assert [tuple(w.shape) for w in weights] == [(2, 3, 7, 7)] * 3
    with pytest.raises(Refused, match="has no attention weights"):
        decoder(vocab=11, length=16, mixer="gru").weights(IDS)


def test_padding_on_the_right_changes_nothing():
    model = decoder(vocab=11, length=16, visibility="padding").double()
    padded = torch.cat([IDS, IDS[:, :3]], dim=1)
    tokens = Tokens.count(10, real=torch.arange(10)[None] < 7)
    torch.testing.assert_close(model(padded, tokens=tokens)[:, :7], model(IDS), rtol=0, atol=1e-13)


def test_a_run_beyond_the_table_is_refused_with_the_length_that_would_do():
    with pytest.raises(Refused, match="learned has a table of length=4 and was given 7 tokens; build it with length=7"):
        decoder(vocab=11, length=4)(IDS)


def test_an_unknown_size_gets_a_suggestion():
    with pytest.raises(Unknown, match="did you mean 'nano'"):
        decoder(vocab=11, size="nan")
    with pytest.raises(BadSetting, match="does not divide"):
        decoder(vocab=11, size="nano", projection="grouped(n_kv_heads=2)")


def test_it_learns_a_repeated_sentence():
    """Embeddings, mixers, head and loss are connected the right way round."""
    model = decoder(vocab=11, length=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        loss = nn.functional.cross_entropy(model(IDS[:, :-1]).flatten(0, 1), IDS[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3
