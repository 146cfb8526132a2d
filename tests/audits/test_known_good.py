"""Is the audit silent where nothing is wrong? Modules that others have written and the world relies on."""

import pytest
import torch
from torch import nn

from attnlab.audits.audit import audit
from attnlab.audits.probes.future_by_value import PROBE as FUTURE
from attnlab.audits.run import finding_of
from attnlab.errors import LabError
from attnlab.subjects.found import subject_of

SEES = ("causal", "batch-independent", "padding-invariant")
BOTH = ("batch-independent", "padding-invariant")


def layer(kind, **more):
    def build(d_model, nhead):
        return kind(d_model, nhead, dim_feedforward=32, batch_first=True, **more)

    return build


def attention(**more):
    def build(embed_dim, num_heads):
        return nn.MultiheadAttention(embed_dim, num_heads, **more)

    return build


TORCH = {
    "attention, tokens first": (attention(), BOTH),
    "attention, batch first": (attention(batch_first=True), BOTH),
    "attention, causal": (attention(batch_first=True), SEES),
    "attention with dropout": (attention(batch_first=True, dropout=0.1), SEES),
    "attention without biases": (attention(batch_first=True, bias=False), SEES),
    "attention with a learned key": (attention(batch_first=True, add_bias_kv=True), BOTH),
    "encoder layer": (layer(nn.TransformerEncoderLayer), BOTH),
    "encoder layer, causal": (layer(nn.TransformerEncoderLayer), SEES),
    "encoder layer, norm first": (layer(nn.TransformerEncoderLayer, norm_first=True, activation="gelu"), SEES),
    "decoder layer": (layer(nn.TransformerDecoderLayer), SEES),
}


def silent(report):
    loud = [(one.code, one.status, one.sentence) for one in report.findings if one.status in ("broken", "error")]
    assert not loud, loud


FULLY = pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["quick", "full"])


@FULLY
@pytest.mark.parametrize("name", TORCH)
def test_torch_itself_raises_no_alarm(name, quick):
    build, promises = TORCH[name]
    silent(audit(build, promises=promises, quick=quick))


# The usual ids of beginning and end lie outside a small vocabulary.
NO_TOKENS = {"bos_token_id": 1, "eos_token_id": 2}


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, n_positions=64, vocab_size=23, **NO_TOKENS))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16}
    return LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=32, vocab_size=23, max_position_embeddings=64))


def bert():
    from transformers import BertConfig, BertModel

    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
    return BertModel(BertConfig(**sizes, vocab_size=23, max_position_embeddings=64))


def roberta():
    from transformers import RobertaConfig, RobertaForMaskedLM

    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
    return RobertaForMaskedLM(RobertaConfig(**sizes, vocab_size=23, max_position_embeddings=64))


def clip():
    from transformers import CLIPTextConfig, CLIPTextModel

    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
    return CLIPTextModel(CLIPTextConfig(**sizes, vocab_size=23, max_position_embeddings=64, **NO_TOKENS))


HUGGING_FACE = {"gpt2": (gpt2, SEES), "llama": (llama, SEES), "bert": (bert, BOTH), "roberta": (roberta, BOTH)}
HUGGING_FACE["clip"] = (clip, SEES)


@FULLY
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face_raises_no_alarm(name, quick):
    pytest.importorskip("transformers")
    build, promises = HUGGING_FACE[name]
    build()  # what it imports, a forked process finds here
    silent(audit(build, promises=promises, quick=quick))


def test_a_folder_and_a_configuration_are_audited_as_what_they_hold(tmp_path):
    pytest.importorskip("transformers")
    bert().save_pretrained(tmp_path / "saved")
    gpt2().config.save_pretrained(tmp_path)
    saved = subject_of(str(tmp_path / "saved"))
    assert (type(saved.make(0)).__name__, saved.kind) == ("BertModel", "language-model")
    assert all(torch.equal(*pair) for pair in zip(saved.make(0).parameters(), saved.make(1).parameters(), strict=True))
    drawn = subject_of(str(tmp_path / "config.json"))
    assert drawn.ask(drawn.build(), drawn.give(5)).shape[:2] == (2, 5)
    assert finding_of(FUTURE, drawn).sentence.startswith("no output moves when a later token changes")


def test_a_folder_that_holds_no_model_says_so(tmp_path):
    with pytest.raises(LabError, match=r"without a config\.json"):
        subject_of(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LabError, match="could not be loaded"):
        subject_of(str(tmp_path))


OPTIONS = {
    "plain": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "t5": {"rel_pos_bias": True},
    "sinks": {"attn_head_learned_sink": True},
    "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "gating": {"attn_gate_values": True},
    "one key-value head": {"attn_one_kv_head": True},
}


@FULLY
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["decoder", "encoder"])
def test_x_transformers_raises_no_alarm(name, causal, quick):
    x_transformers = pytest.importorskip("x_transformers")
    kind = x_transformers.Decoder if causal else x_transformers.Encoder

    def build(dim, heads):
        return kind(dim=dim, depth=1, heads=heads, attn_dim_head=16, **OPTIONS[name])

    silent(audit(build, promises=SEES if causal else BOTH, quick=quick))


@FULLY
def test_attention_of_x_transformers_raises_no_alarm(quick):
    x_transformers = pytest.importorskip("x_transformers")

    def build(dim, heads, dim_head, causal=True):
        return x_transformers.Attention(dim=dim, heads=heads, dim_head=dim_head, causal=causal)

    silent(audit(build, promises=SEES, quick=quick))
