"""What is there? The table of every part and mixer: its question, its builder, its slow twin, its promises, its source.

Read without importing torch: builders and twins are written "module:name" and resolved when they are needed. The
formula of an entry is the first line of its builder's docstring.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from attnlab.errors import Refused, Unknown

QUESTIONS = {
    "projection": "where do q, k and v come from?",
    "position": "where are the tokens?",
    "score": "how strongly does a query ask for a key?",
    "visibility": "who may look at whom?",
    "normalizer": "how much?",
    "merge": "how do the heads come together?",
    "mixer": "what if it is none of these?",
}


class Entry(NamedTuple):
    """One line of the table."""

    name: str
    question: str
    builder: str
    twin: str
    source: str
    promises: tuple[str, ...]
    brings: Mapping[str, str] = {}
    """What it answers besides its own question, and cannot go without."""
    wraps: str = ""
    """It is built around the part that answers this question, instead of answering its own."""
    breaks: tuple[str, ...] = ()
    """What it is known not to keep; the faulty ones stay here to teach."""

    @property
    def formula(self) -> str:
        return _formula(*self.builder.split(":"))

    def build(self) -> Any:
        """The builder itself; this imports torch."""
        return builder(self.builder)

    def judge(self) -> Any:
        """The slow twin that defines what the builder builds."""
        return _resolve("attnlab.oracles", self.twin)


def without(promises: tuple[str, ...], *taken: str) -> tuple[str, ...]:
    return tuple(promise for promise in promises if promise not in taken)


# What attention keeps, whatever answers one of its questions.
MIXES = ("causal", "batch-independent", "padding-invariant", "agrees-with-twin")
STEPS = (*MIXES, "step-equals-whole")
WEIGHS = (*STEPS, "weights-are-used", "hidden-keys-weigh-nothing", "cost:n^2")
ROWS = (*WEIGHS, "rows-sum-to-one", "nonnegative")
FAST = (*ROWS, "fast-equals-explicit")
PLAIN = (*FAST, "any-length")
PLACED = (*PLAIN, "order-aware")
LINEAR = (*without(ROWS, "cost:n^2"), "any-length", "cost:n^1")
FAULTY = (*without(ROWS, "step-equals-whole"), "any-length")

VASWANI = "Vaswani et al. 2017, arXiv:1706.03762"
SYNTHESIZER = "Tay et al. 2020, arXiv:2005.00743"
ALIBI = "Press et al. 2021, arXiv:2108.12409"
SPARSE = "Child et al. 2019, arXiv:1904.10509"
LUONG = "Luong et al. 2015, arXiv:1508.04025"
AFT = "Zhai et al. 2021, arXiv:2105.14103"
COURSE = "course work, CSE 447 A2"

# fmt: off
CATALOG: tuple[Entry, ...] = (
    Entry("attention", "mixer", "attention:plain", "attention:plain", VASWANI, PLAIN),

    Entry("separate", "projection", "projections:separate", "projections:separate", VASWANI, PLAIN),
    Entry("shared-qk", "projection", "projections:shared_qk", "projections:shared_qk", COURSE, PLAIN),
    Entry("shared-qv", "projection", "projections:shared_qv", "projections:shared_qv", COURSE, PLAIN),
    Entry("shared-kv", "projection", "projections:shared_kv", "projections:shared_kv", COURSE, PLAIN),
    Entry("shared-qkv", "projection", "projections:shared_qkv", "projections:shared_qkv", COURSE, PLAIN),
    Entry("mlp-projection", "projection", "projections:mlp", "projections:mlp", COURSE, PLAIN),
    Entry("tanh-projection", "projection", "projections:tanh", "projections:tanh", COURSE, PLAIN),
    Entry("relu-projection", "projection", "projections:relu", "projections:relu", COURSE, PLAIN),
    Entry("sigmoid-projection", "projection", "projections:sigmoid", "projections:sigmoid", COURSE, PLAIN),
    Entry("grouped", "projection", "projections:grouped", "projections:grouped", "Ainslie et al. 2023, arXiv:2305.13245", PLAIN),
    Entry("multi-query", "projection", "projections:multi_query", "projections:multi_query", "Shazeer 2019, arXiv:1911.02150", PLAIN),

    Entry("none", "position", "positions:none", "positions:none", VASWANI, PLAIN),
    Entry("learned", "position", "positions:learned", "positions:learned", "Gehring et al. 2017, arXiv:1705.03122", without(PLACED, "any-length")),
    Entry("sinusoidal", "position", "positions:sinusoidal", "positions:sinusoidal", VASWANI, PLACED),
    Entry("sinusoidal-source", "position", "positions:sinusoidal_source", "positions:sinusoidal_source", COURSE, PLACED),
    Entry("sinusoidal-scaled", "position", "positions:sinusoidal_scaled", "positions:sinusoidal_scaled", VASWANI, PLACED),
    Entry("rotary", "position", "positions:rotary", "positions:rotary", "Su et al. 2021, arXiv:2104.09864", PLACED),
    Entry("alibi", "position", "positions:alibi", "positions:alibi", ALIBI, (*PLACED, "favors-near")),
    Entry("alibi-symmetric", "position", "positions:alibi_symmetric", "positions:alibi_symmetric", ALIBI, (*PLACED, "favors-near")),
    Entry("t5", "position", "positions:t5", "positions:t5", "Raffel et al. 2020, arXiv:1910.10683", without(PLACED, "fast-equals-explicit")),
    Entry("relative", "position", "positions:relative", "positions:relative", "after Shaw et al. 2018, arXiv:1803.02155", without(PLACED, "any-length", "fast-equals-explicit")),
    Entry("deberta", "position", "positions:deberta", "positions:deberta", "He et al. 2020, arXiv:2006.03654", without(PLACED, "fast-equals-explicit"), brings={"score": "scaled-dot(terms=3)"}),

    Entry("scaled-dot", "score", "scores:ScaledDot", "scores:scaled_dot", VASWANI, PLAIN),
    Entry("dot", "score", "scores:Dot", "scores:dot", LUONG, PLAIN),
    Entry("cosine", "score", "scores:Cosine", "scores:cosine", COURSE, PLAIN),
    Entry("correlation", "score", "scores:Correlation", "scores:correlation", COURSE, PLAIN),
    Entry("negative-squared-distance", "score", "scores:NegativeSquaredDistance", "scores:negative_squared_distance", COURSE, without(PLAIN, "fast-equals-explicit")),
    Entry("gaussian", "score", "scores:Gaussian", "scores:gaussian", "Nadaraya 1964; Watson 1964", without(PLAIN, "fast-equals-explicit")),
    Entry("additive", "score", "scores:Additive", "scores:additive", "Bahdanau et al. 2014, arXiv:1409.0473", without(PLAIN, "fast-equals-explicit")),
    Entry("bilinear", "score", "scores:Bilinear", "scores:bilinear", LUONG, PLAIN),
    Entry("synthesizer", "score", "synthesizers:dense", "synthesizers:dense", SYNTHESIZER + "; one table for all heads as in CS224n A5", (*ROWS, "order-aware"), brings={"projection": "projections:keyless"}),
    Entry("synthesizer-per-head", "score", "synthesizers:dense_per_head", "synthesizers:dense_per_head", SYNTHESIZER, (*ROWS, "order-aware"), brings={"projection": "projections:keyless"}),
    Entry("synthesizer-random", "score", "synthesizers:random", "synthesizers:random", SYNTHESIZER, (*ROWS, "order-aware"), brings={"projection": "projections:value_only"}),

    Entry("everything", "visibility", "visibility:everything", "visibility:everything", VASWANI, (*without(PLAIN, "causal", "step-equals-whole", "padding-invariant"), "order-equivariant")),
    Entry("causal", "visibility", "visibility:causal", "visibility:causal", VASWANI, PLAIN),
    Entry("window", "visibility", "visibility:window", "visibility:window", "Beltagy et al. 2020, arXiv:2004.05150", (*PLAIN, "hears-last:{last}")),
    Entry("prefix", "visibility", "visibility:prefix", "visibility:prefix", "Liu et al. 2018, arXiv:1801.10198", without(PLAIN, "causal", "step-equals-whole", "padding-invariant")),
    Entry("strided", "visibility", "visibility:strided", "visibility:strided", SPARSE, PLAIN),
    Entry("blockwise", "visibility", "visibility:blockwise", "visibility:blockwise", SPARSE, PLAIN),
    Entry("documents", "visibility", "visibility:documents", "visibility:documents", "Krell et al. 2021, arXiv:2107.02027", PLAIN),
    Entry("padding", "visibility", "visibility:padding", "visibility:padding", VASWANI, PLAIN),

    Entry("softmax", "normalizer", "normalizers:Softmax", "normalizers:softmax", VASWANI, PLAIN),
    Entry("temperature", "normalizer", "normalizers:temperature", "normalizers:temperature", COURSE, PLAIN),
    Entry("sink", "normalizer", "normalizers:Sink", "normalizers:sink", "Xiao et al. 2023, arXiv:2309.17453; a logit as in gpt-oss", (*WEIGHS, "nonnegative", "any-length")),
    Entry("sigmoid-weights", "normalizer", "normalizers:SigmoidWeights", "normalizers:sigmoid_weights", "Ramapuram et al. 2024, arXiv:2409.04431", (*WEIGHS, "nonnegative", "any-length")),
    Entry("relu-weights", "normalizer", "normalizers:ReluWeights", "normalizers:relu_weights", "Wortsman et al. 2023, arXiv:2309.08586", (*WEIGHS, "nonnegative", "any-length")),
    Entry("sparsemax", "normalizer", "normalizers:Sparsemax", "normalizers:sparsemax", "Martins and Astudillo 2016, arXiv:1602.02068", (*ROWS, "any-length")),
    Entry("zero-after-softmax", "normalizer", "normalizers:ZeroAfterSoftmax", "normalizers:zero_after_softmax", COURSE, FAULTY, breaks=("causal", "padding-invariant", "rows-sum-to-one")),
    Entry("zero-after-softmax-renormalized", "normalizer", "normalizers:ZeroAfterSoftmaxRenormalized", "normalizers:zero_after_softmax_renormalized", COURSE, FAULTY, breaks=("causal", "padding-invariant", "hidden-keys-weigh-nothing", "finite")),
    Entry("scores-times-mask", "normalizer", "normalizers:ScoresTimesMask", "normalizers:scores_times_mask", COURSE, FAULTY, breaks=("causal", "padding-invariant", "hidden-keys-weigh-nothing")),
    Entry("finite-floor", "normalizer", "normalizers:FiniteFloor", "normalizers:finite_floor", COURSE, FAULTY, breaks=("causal", "padding-invariant", "hidden-keys-weigh-nothing")),

    Entry("concatenate", "merge", "merges:Concatenate", "merges:concatenate", VASWANI, PLAIN),
    Entry("shuffle", "merge", "merges:Shuffle", "merges:shuffle", COURSE, without(PLAIN, "step-equals-whole"), breaks=("deterministic",)),
    Entry("shuffle-fixed", "merge", "merges:ShuffleFixed", "merges:shuffle_fixed", COURSE, PLAIN),
    Entry("shift", "merge", "merges:Shift", "merges:shift", COURSE, PLAIN),
    Entry("reweight-token", "merge", "merges:ReweightToken", "merges:reweight_token", COURSE, PLAIN),
    Entry("reweight-sequence", "merge", "merges:ReweightSequence", "merges:reweight_sequence", COURSE, without(PLAIN, "step-equals-whole"), breaks=("causal", "padding-invariant")),
    Entry("reweight-batch", "merge", "merges:ReweightBatch", "merges:reweight_batch", COURSE, without(PLAIN, "step-equals-whole"), breaks=("causal", "padding-invariant", "batch-independent")),
    Entry("talking-heads", "merge", "normalizers:TalkingHeads", "normalizers:talking_heads", "Shazeer et al. 2020, arXiv:2003.02436", (*WEIGHS, "any-length"), wraps="normalizer"),
    Entry("gated", "merge", "merges:Gated", "merges:gated", "Qiu et al. 2025, arXiv:2505.06708", PLAIN),

    Entry("aft-full", "mixer", "aft:aft_full", "aft:aft_full", AFT, (*ROWS, "order-aware")),
    Entry("aft-simple", "mixer", "aft:aft_simple", "aft:aft_simple", AFT, LINEAR),
    Entry("aft-local", "mixer", "aft:aft_local", "aft:aft_local", AFT, (*ROWS, "order-aware")),
    Entry("fastformer", "mixer", "fastformer:fastformer", "fastformer:fastformer", "Wu et al. 2021, arXiv:2108.09084", (*STEPS, "any-length", "order-aware", "cost:n^1")),
    Entry("linear", "mixer", "linear:linear", "linear:linear", "Katharopoulos et al. 2020, arXiv:2006.16236", LINEAR),
    Entry("differential", "mixer", "differential:differential", "differential:differential", "Ye et al. 2024, arXiv:2410.05258", (*WEIGHS, "any-length")),
    Entry("latent", "mixer", "latent:latent", "latent:latent", "DeepSeek-AI 2024, arXiv:2405.04434", PLACED),
    Entry("recurrent", "mixer", "recurrent:recurrent", "recurrent:recurrent", "Elman 1990", (*STEPS, "any-length", "order-aware", "cost:n^1")),
    Entry("relu-recurrent", "mixer", "recurrent:relu_recurrent", "recurrent:relu_recurrent", "Le et al. 2015, arXiv:1504.00941", (*STEPS, "any-length", "order-aware", "cost:n^1")),
    Entry("gru", "mixer", "recurrent:gru", "recurrent:gru", "Cho et al. 2014, arXiv:1406.1078", (*STEPS, "any-length", "order-aware", "cost:n^1")),
)
# fmt: on

NAMES: Mapping[str, Entry] = {entry.name: entry for entry in CATALOG}


def find(name: str, question: str = "") -> Entry:
    """The entry of this name (that answers this question), or the sentence that suggests one."""
    entry = NAMES.get(name)
    if entry is None or (question and entry.question != question):
        if entry is not None:
            raise Refused(f"'{name}' answers {entry.question}, not {question}; write {entry.question} = \"{name}\"")
        known = [other.name for other in CATALOG if not question or other.question == question]
        raise Unknown(question or "mechanism", name, known, see="attnlab list shows all")
    return entry


def builder(where: str) -> Any:
    """What "module:name" builds with, among the mechanisms."""
    return _resolve("attnlab.mechanisms", where)


def _resolve(room: str, where: str) -> Any:
    module, name = where.split(":")
    return getattr(import_module(f"{room}.{module}"), name)


@cache
def _source(module: str) -> str:
    return (Path(__file__).parent / "mechanisms" / f"{module}.py").read_text(encoding="utf-8")


def _formula(module: str, name: str) -> str:
    """The first line of a docstring, read off the source, so that a table of formulas needs no torch."""
    found = re.search(rf'^(?:def|class) {name}\b.*?"""(.*?)(?:"""|\n)', _source(module), re.S | re.M)
    if found is None:
        raise LookupError(f"attnlab.mechanisms.{module} says no formula for {name}")
    return found.group(1).rstrip(".")
