"""What does a pretrained model do when another attention is put into it?"""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from attnlab.audits.audit import audit
from attnlab.audits.probes.future_by_value import PROBE as FUTURE
from attnlab.audits.run import finding_of
from attnlab.errors import LabError, Refused
from attnlab.subjects.found import subject_of

transformers = pytest.importorskip("transformers")

MINE = """
import torch
from torch.nn.functional import scaled_dot_product_attention

def told(query, key, value, mask, scaling):
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)

def added(q, k, v, attention_mask):
    return ((q @ k.mT) * q.shape[-1] ** -0.5 + attention_mask).softmax(-1) @ v

def flagged(q, k, v, is_causal=False):
    return scaled_dot_product_attention(q, k, v, is_causal=is_causal)

def untold(q, k, v):
    return scaled_dot_product_attention(q, k, v)

def theirs(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    weights = (query @ key.mT * scaling + attention_mask).softmax(-1)
    return (weights @ value).transpose(1, 2), weights

def unmasked(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    return scaled_dot_product_attention(query, key, value, enable_gqa=True).transpose(1, 2), None

def turned(q, k, v, mask):
    return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

def sharper(q, k, at):
    return 3 * q @ k.mT
"""
KINDS = ("gpt2", "llama", "bert")


def config(kind: str):
    small = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16, "intermediate_size": 32}
    return {
        "gpt2": lambda: transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=16, n_positions=32, vocab_size=17, bos_token_id=0, eos_token_id=0
        ),
        "llama": lambda: transformers.LlamaConfig(
            **small, num_key_value_heads=2, vocab_size=17, max_position_embeddings=32
        ),
        "bert": lambda: transformers.BertConfig(**small, vocab_size=17, max_position_embeddings=32),
    }[kind]()


def model(kind: str) -> nn.Module:
    named = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "bert": "BertModel"}
    return getattr(transformers, named[kind])(config(kind))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A saved model of a kind; mine.py lies beside it."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE, encoding="utf-8")

    def saved(kind: str) -> str:
        model(kind).save_pretrained(kind)
        return kind

    return saved


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("swap", ["attention", "softmax", "mine.py:told", "mine.py:added", "mine.py:theirs"])
def test_plain_attention_swapped_in_changes_nothing(kind, swap, folder):
    subject = subject_of(folder(kind), swap=swap)
    own = subject_of(kind).build()
    own.set_attn_implementation("eager")
    swapped = subject.build()
    x = subject.give(7, batch=3)
    real = torch.tensor([[True] * 7, [True] * 5 + [False] * 2, [True] * 3 + [False] * 4])
    for known in (None, real):
        expected, y = (subject.ask(one, x, real=known) for one in (own, swapped))
        seen = slice(None) if known is None else known
        torch.testing.assert_close(y[seen], expected[seen], rtol=0, atol=1e-5)


@pytest.mark.parametrize("swap", ["cosine", "window(last=2)", "sparsemax", "alibi", "additive", "mine.py:sharper"])
def test_a_part_of_ours_is_heard_and_keeps_the_mask(swap, folder):
    subject = subject_of(folder("llama"), swap=swap, promises=("causal",))
    x = subject.give(7)
    assert (subject.ask(subject.build(), x) - subject.ask(subject_of("llama").build(), x)).abs().max() > 1e-4
    assert finding_of(FUTURE, subject).status == "kept"


@pytest.mark.parametrize(
    "swap", ["zero-after-softmax", "scores-times-mask", "everything", "mine.py:untold", "mine.py:unmasked"]
)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_swap_that_loses_its_mask_is_broken_for_causal(kind, swap, folder):
    finding = finding_of(FUTURE, subject_of(folder(kind), swap=swap, promises=("causal",)))
    assert finding.status == "broken", finding.sentence
    assert finding.sentence.startswith("output 0 hears token 1")


def test_a_flag_alone_is_enough_for_causal(folder):
    assert finding_of(FUTURE, subject_of(folder("gpt2"), swap="mine.py:flagged", promises=("causal",))).status == "kept"


def test_a_window_reaches_as_far_back_in_every_layer(folder):
    subject = subject_of(folder("gpt2"), swap="window(last=2)")
    module, x = subject.build(), subject.give(6)
    moved = (subject.ask(module, subject.other(x, (slice(None), 0))) != subject.ask(module, x)).any(-1).any(0)
    assert moved.tolist() == [True, True, True, False, False, False]  # two layers, one token back in each


def test_padding_stays_hidden_whatever_replaces_the_rule(folder):
    subject = subject_of(folder("gpt2"), swap="everything")
    module, x = subject.build(), subject.give(5)
    real = torch.tensor([[True] * 3 + [False] * 2] * 2)
    y, moved = (subject.ask(module, one, real=real) for one in (x, subject.other(x, (slice(None), 4))))
    assert torch.equal(y[:, :3], moved[:, :3])


def test_parts_of_ours_are_parameters_of_the_model_and_drawn_anew(folder):
    subject = subject_of(folder("gpt2"), swap="bilinear")
    one, again, other = (dict(subject.build(draw).named_parameters()) for draw in (0, 0, 1))
    ours = [name for name in one if "swapped" in name]
    assert len(ours) == 2
    for name in ours:
        assert torch.equal(one[name], again[name])
        assert not torch.equal(one[name], other[name])
    assert not torch.equal(one[ours[0]], one[ours[1]])


def test_a_swap_in_python_may_be_the_function_itself(folder):
    def untold(q, k, v):
        return scaled_dot_product_attention(q, k, v)

    report = audit(folder("gpt2"), swap=untold, promises=["causal"], quick=True)
    assert report.subject == "gpt2 with untold"
    assert "told nothing of who may look" in report.guess
    assert "future-by-value" in {one.code for one in report.broken}
    assert audit("gpt2", swap="softmax", promises=["causal"], quick=True).ok


def test_what_shows_weights_and_paths_does_not_take_the_swap_out(folder):
    report = audit(folder("gpt2"), swap="zero-after-softmax", promises=["rows-sum-to-one"])
    assert next(one for one in report.findings if one.code == "rows-sum-to-one").status == "broken"
    assert next(one for one in report.findings if one.code == "fast-path").status == "not-applicable"


@pytest.mark.parametrize(
    ("swap", "sentence"),
    [
        ("gru", r"gru \(mixer\) cannot be swapped into a pretrained model, which keeps its projections"),
        ("grouped", r"grouped \(projection\) cannot be swapped"),
        ("gated", r"gated \(merge\) cannot be swapped"),
        ("synthesizer", "synthesizer brings .*, and the model keeps its projections"),
        ("learned", "learned is added to a model's embeddings"),
        ("cosin", "did you mean 'cosine'"),
        ("mine.py:turned", r"returned \(2, 5, 2, 8\), and the model needs \(2, 2, 5\)"),
    ],
)
def test_what_cannot_be_swapped_is_refused_in_a_sentence(swap, sentence, folder):
    with pytest.raises(LabError, match=sentence):
        subject_of(folder("gpt2"), swap=swap)


@pytest.mark.parametrize("what", ["cosine", "mine.py:sharper", nn.Linear(16, 16)])
def test_what_is_no_pretrained_model_takes_no_swap(what, folder):
    folder("gpt2")
    with pytest.raises(Refused, match=r"puts an attention into a pretrained model of Hugging Face, and .* is none"):
        subject_of(what, swap="cosine")


def test_a_model_answers_every_question_until_something_is_swapped_in(folder):
    with pytest.raises(Refused, match="--swap puts another answer into it"):
        subject_of(folder("gpt2"), more=["normalizer=sparsemax"])
    both = subject_of("gpt2", swap="cosine", more=["normalizer=sparsemax"])
    names = {type(part).__name__ for part in both.make(0).modules()}
    assert {"Cosine", "Sparsemax"} <= names


def test_a_folder_that_is_not_there_is_called_one():
    with pytest.raises(LabError, match="there is no folder or configuration no/such/model"):
        subject_of("no/such/model")


def test_a_folder_named_like_a_mechanism_is_written_with_its_dot(folder):
    model("gpt2").save_pretrained("attention")
    assert subject_of("attention").way.tokens
    assert subject_of("./attention").kind == "language-model"
