"""Is every fault that coursework and the world have made named, by the probe that should, where it is?"""

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from attnlab.audits.probe import Probe
from attnlab.audits.probes import NAMES
from attnlab.audits.run import finding_of
from attnlab.subjects.found import subject_of

HERE = Path(__file__).parent
TAKEN = ("deterministic", "leaves-input", "finite", "trainable")


class Row(NamedTuple):
    """A piece, the probe that finds its fault, what it says of the place, what it says of the cause."""

    piece: str
    code: str
    says: str
    cause: str


ROWS = (
    # who may be heard
    Row("no_mask", "future-by-value", "output 0 hears token 1", "mask is missing"),
    Row("mask_after_softmax", "future-by-value", "output 0 hears token 1", "after the softmax"),
    Row("scores_times_mask", "future-by-value", "output 0 hears token 1", "multiplied"),
    Row(
        "mask_of_minus_1e4", "future-by-value", "output 1 hears token 2.*everything 300 times as loud", "not low enough"
    ),
    Row("mask_of_minus_1e7", "future-by-value", "output 1 hears token 2.*everything 10000 times", "not low enough"),
    Row("mask_on_the_wrong_axis", "future-by-value", "output 0 hears token 1", "on the wrong axis"),
    Row("inverted_polarity", "future-by-value", "output 0 hears token 1", "polarity of the mask is inverted"),
    Row("normalized_by_queries", "future-by-value", "output 0 hears token 1", "over the queries, not over the keys"),
    Row("mask_only_without_dropout", "future-by-value", "in training mode", "training mode and not in evaluation"),
    Row("mask_only_without_weights", "future-with-weights", "output 0 hears token 1", "one forgets the mask"),
    Row("mask_only_for_batches", "future-by-value", "batch of 1", "only for a batch of one"),
    Row("unmasked_synthesizer", "future-by-value", "output 0 hears token 1", "mask is missing"),
    Row("decay_without_mask", "future-by-value", "output 0 hears token 1", "mask is missing"),
    Row("heads_by_reshape", "future-by-value", "output 0 hears token 1", "reshape without a transpose"),
    Row("last_of_a_chunk", "future-by-value", "output 3 hears token 4", "last output of each block of 4"),
    Row("convolution_to_both_sides", "future-by-value", "output 0 hears token 1", "convolution of 3 pads both sides"),
    Row("ones_added_to_the_scores", "future-by-value", "output 0 hears token 1", "mask damps and does not hide"),
    Row("first_looks_nowhere", "future-by-value", "output 0 hears token 1", "only output 0 hears later tokens"),
    Row("chosen_among_all_tokens", "future-by-value", "output 1 hears token 3.*5 tokens", "a choice .top-k, routing."),
    Row("tokens_first_without_mask", "future-by-value", "output 0 hears token 1", "mask is missing"),
    Row("reweights_by_sequence", "future-by-value", "output 0 hears token 1", "statistic"),
    Row("norm_over_the_sequence", "future-by-value", "output 0 hears token 1", "statistic"),
    Row("loudest_of_the_sequence", "future-by-value", "output 0 hears token 1", "statistic"),
    Row("divides_by_the_length", "future-by-length", "2 tokens", "length"),
    Row("swap_that_loses_its_mask", "future-by-value", "output 0 hears token 1", "mask is missing"),
    Row("window_off_by_one", "hears-last", "5", "off by one"),
    # independence
    Row("reweights_by_batch", "batch-neighbors", "sentence 1 of a batch hears sentence 0", "over the whole batch"),
    Row("batch_norm", "batch-neighbors", "training", "over the whole batch"),
    Row("tokens_before_batch", "batch-neighbors", "sentence 1 of a batch hears sentence 0", "batch_first"),
    Row("padding_over_queries", "padding-right", "real token 0 of sentence 0", "along the wrong axis"),
    Row("inverted_padding", "padding-right", "real token 0 of sentence 0", "of the wrong polarity"),
    Row("counts_padded_keys", "padding-right", "real token 1 of sentence 0", "counts the padding"),
    Row("mean_over_padding", "padding-right", "real token 0 of sentence 0", "a mean counts the padding"),
    # order
    Row("alibi_of_the_wrong_sign", "favors-near", "far keys are favored", "wrong sign"),
    Row(
        "alibi_of_the_key_index",
        "favors-near",
        "left edge are favored, wherever the query stands",
        "a function of the key's index",
    ),
    # weights
    Row(
        "mask_after_softmax",
        "future-by-gradient",
        "gradient of output 0 reaches token 1",
        "hidden key still carries weight",
    ),
    Row("normalized_by_queries", "rows-sum-to-one", "row 0", "softmax runs over another axis"),
    Row("weights_before_dropout", "weights-used", "in training mode", "before dropout"),
    Row("weights_transposed", "weights-used", "weights shown are transposed", "transposed"),
    # agreement
    Row("scaled_by_the_model", "standard-attention", r"divided by √16 \(√d_model\), not by √4", "√d_model"),
    Row("queries_and_keys_swapped", "standard-attention", "2 tokens", "queries and keys are exchanged"),
    Row("one_layer_for_queries_and_keys", "standard-attention", "key projection", "key projection is never used"),
    Row("heads_by_reshape", "standard-attention", "heads are split", "reshape without a transpose"),
    Row("cache_off_by_the_padding", "cached-step", "padding in front", "off .by the padding"),
    # numbers
    Row("mask_by_true_zeros", "loud-scores", "all zeros", "0 / 0"),
    Row("no_maximum_taken", "loud-scores", "output 0 is NaN", "without its largest score taken off"),
    Row("overflow_in_half", "half-precision", "float16", "scaled too late"),
    # learning
    Row("unused_layer", "connected", r"no output depends on out\.weight, out\.bias", "never called"),
    Row("one_layer_for_queries_and_keys", "connected", r"no output depends on key\.weight", "another called"),
    Row("weights_detached", "connected", r"no gradient reaches query\.weight", "detach"),
    Row("weights_detached", "gradients", "the gradient of its input", "detach"),
    Row("layers_in_a_list", "connected", r"shape \(12, 16\) .* no parameter", r"ModuleList"),
    Row("lost_heads", "connected", r"rows 4 to 15 of key\.weight", "a head, or a part of one, is lost"),
    Row("wrong_backward", "gradients", "is not its derivative", "backward of one's own"),
    Row("random_merge", "deterministic", "draws chance in eval mode", "shuffle"),
    Row("dropout_always", "deterministic", "draws chance in eval mode", "dropout"),
    Row("drawn_from_the_clock", "deterministic", "differ in sign", "clock"),
    Row("norm_in_place", "input-untouched", r"writes into its input, at tokens \[0, 1\]", "in place"),
    Row("cache_kept_between_calls", "input-untouched", "remembers", "cache"),
    Row("statistics_kept_in_eval", "input-untouched", "buffer mean", "statistic"),
    # cost
    Row("linear_in_name", "growth", r"n\^2\.00.*promised was n\^1", "wrong order"),
    Row("positions_not_cut", "longest", "the longest it took is 16", "table of positions"),
)


@cache
def probe(code: str) -> Probe:
    return import_module(f"attnlab.audits.probes.{code.replace('-', '_')}").PROBE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.piece}-{row.code}")
def test_each_fault_is_named_by_the_probe_that_should(row):
    if row.piece == "swap_that_loses_its_mask":
        pytest.importorskip("transformers")
    subject = subject_of(str(HERE / f"{row.piece}.py"), promises=TAKEN)
    finding = finding_of(probe(row.code), subject)
    assert finding.status == "broken", (finding.status, finding.sentence)
    assert re.search(row.says, finding.sentence), finding.sentence
    said = f"{finding.sentence} {finding.cause}"
    assert re.search(row.cause, said), said


def test_every_piece_of_the_museum_has_a_row():
    assert {row.piece for row in ROWS} == {file.stem for file in HERE.glob("*.py")} - {"test_museum"}


def test_every_row_says_where_and_why():
    assert all(row.says and row.cause for row in ROWS)


def test_every_row_names_a_probe_that_there_is():
    assert {row.code.replace("-", "_") for row in ROWS} <= set(NAMES)
