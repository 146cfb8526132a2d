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
    """A piece, the probe that finds its fault, what the sentence says of the place, what the cause names."""

    piece: str
    code: str
    says: str
    cause: str


ROWS = (
    # who may be heard
    Row("no_mask", "future-by-value", "output 0 hears token 1", "mask is missing"),
    Row("mask_after_softmax", "future-by-value", "output 0 hears token 1", "after the softmax"),
    Row("scores_times_mask", "future-by-value", "output 0 hears token 1", "multiplied"),
    Row("mask_of_minus_1e4", "future-by-value", "output 1 hears token 2.*everything 300 times as loud", ""),
    Row("mask_of_minus_1e7", "future-by-value", "output 1 hears token 2.*everything 10000 times", ""),
    Row("mask_on_the_wrong_axis", "future-by-value", "output 0 hears token 1", ""),
    Row("inverted_polarity", "future-by-value", "output 0 hears token 1", ""),
    Row("normalized_by_queries", "future-by-value", "output 0 hears token 1", ""),
    Row("mask_only_without_dropout", "future-by-value", "in training mode", ""),
    Row("mask_only_without_weights", "future-with-weights", "output 0 hears token 1", "weights"),
    Row("mask_only_for_batches", "future-by-value", "batch of 1", ""),
    Row("unmasked_synthesizer", "future-by-value", "output 0 hears token 1", ""),
    Row("decay_without_mask", "future-by-value", "output 0 hears token 1", ""),
    Row("heads_by_reshape", "future-by-value", "output 0 hears token 1", ""),
    Row("last_of_a_chunk", "future-by-value", "output 3 hears token 4", ""),
    Row("reweights_by_sequence", "future-by-value", "output 0 hears token 1", "statistic"),
    Row("norm_over_the_sequence", "future-by-value", "output 0 hears token 1", "statistic"),
    Row("loudest_of_the_sequence", "future-by-value", "output 0 hears token 1", "statistic"),
    Row("divides_by_the_length", "future-by-length", "2 tokens", "length"),
    Row("swap_that_loses_its_mask", "future-by-value", "output 0 hears token 1", "mask is missing"),
    Row("window_off_by_one", "hears-last", "5", ""),
    # independence
    Row("reweights_by_batch", "batch-neighbors", "", ""),
    Row("batch_norm", "batch-neighbors", "training", ""),
    Row("tokens_before_batch", "batch-neighbors", "", ""),
    Row("padding_over_queries", "padding-right", "", ""),
    Row("inverted_padding", "padding-right", "", ""),
    Row("counts_padded_keys", "padding-right", "", ""),
    Row("mean_over_padding", "padding-right", "", ""),
    # order
    Row("alibi_of_the_wrong_sign", "favors-near", "", ""),
    Row("alibi_of_the_key_index", "favors-near", "", ""),
    # weights
    Row("mask_after_softmax", "future-by-gradient", "", ""),
    Row("normalized_by_queries", "rows-sum-to-one", "", ""),
    Row("weights_before_dropout", "weights-used", "", ""),
    Row("weights_transposed", "weights-used", "", ""),
    # agreement
    Row("scaled_by_the_model", "standard-attention", "", ""),
    Row("queries_and_keys_swapped", "standard-attention", "", ""),
    Row("one_layer_for_queries_and_keys", "standard-attention", "", ""),
    Row("heads_by_reshape", "standard-attention", "", ""),
    Row("cache_off_by_the_padding", "cached-step", "", ""),
    # numbers
    Row("mask_by_true_zeros", "loud-scores", "", ""),
    Row("no_maximum_taken", "loud-scores", "", ""),
    Row("overflow_in_half", "half-precision", "", ""),
    # learning
    Row("unused_layer", "connected", r"no output depends on out\.weight, out\.bias", "never called"),
    Row("one_layer_for_queries_and_keys", "connected", r"no output depends on key\.weight", "another called"),
    Row("weights_detached", "connected", r"no gradient reaches query\.weight", "detach"),
    Row("weights_detached", "gradients", "the gradient of its input", "detach"),
    Row("layers_in_a_list", "connected", r"shape \(12, 16\) .* no parameter", r"ModuleList"),
    Row("lost_heads", "connected", r"rows 4 to 15 of key\.weight", ""),
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
    assert re.search(row.cause, finding.cause), finding.cause


def test_every_piece_of_the_museum_has_a_row():
    assert {row.piece for row in ROWS} == {file.stem for file in HERE.glob("*.py")} - {"test_museum"}


def test_every_row_names_a_probe_that_there_is():
    assert {row.code.replace("-", "_") for row in ROWS} <= set(NAMES)
