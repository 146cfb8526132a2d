"""Is a sentence answered for itself alone, whatever stands beside it and whatever pads it?"""

import json

import pytest
import torch
from torch import nn

from attnlab.audits.probe import Broke, Held, Silent
from attnlab.audits.probes import batch_neighbors, batch_order, batch_size, padding_left, padding_right
from attnlab.subjects.found import subject_of

BATCH = {"neighbors": batch_neighbors, "order": batch_order, "size": batch_size}
PADDING = {"right": padding_right, "left": padding_left}


class Attends(nn.Module):
    """Attention of one head that is told of padding; what inherits from it changes one line."""

    causal = False
    promises = ("batch-independent", "padding-invariant")

    def __init__(self, dim):
        super().__init__()
        self.project = nn.Linear(dim, 3 * dim)

    def hidden(self, padding):
        return padding[:, None, :]

    def forward(self, x, key_padding_mask=None):
        n = x.shape[1]
        q, k, v = self.project(x).chunk(3, dim=-1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        if key_padding_mask is not None:
            scores = self.masked(scores, key_padding_mask)
        return scores.softmax(dim=-1) @ v

    def masked(self, scores, padding):
        return scores.masked_fill(self.hidden(padding), torch.finfo(scores.dtype).min)


class Placed(Attends):
    """With absolute positions, which padding on the left shifts."""

    def __init__(self, dim):
        super().__init__(dim)
        self.places = nn.Embedding(100, dim)

    def forward(self, x, key_padding_mask=None):
        return super().forward(x + self.places(torch.arange(x.shape[1])), key_padding_mask)


class OverQueries(Attends):
    def hidden(self, padding):
        return padding[:, :, None]


class OfTheFirst(Attends):
    def hidden(self, padding):
        return padding[:1, None, :]


class Inverted(Attends):
    def hidden(self, padding):
        return ~padding[:, None, :]


class Ignored(Attends):
    def masked(self, scores, padding):
        return scores


class NotLow(Attends):
    def masked(self, scores, padding):
        return scores.masked_fill(self.hidden(padding), -1e4)


class AssumesRight(Attends):
    def hidden(self, padding):
        real = (~padding).sum(dim=1, keepdim=True)
        return (torch.arange(padding.shape[1])[None] >= real)[:, None, :]


class CountsPadding(Attends):
    def forward(self, x, key_padding_mask=None):
        return super().forward(x, key_padding_mask) / x.shape[1]


class Deaf(nn.Module):
    """It looks back only, and cannot be told of anything."""

    promises = ("batch-independent", "padding-invariant")

    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return self.out(x).cumsum(dim=1)


class DeafMean(Deaf):
    def forward(self, x):
        return self.out(x) + x.mean(dim=1, keepdim=True)


class WholeBatch(Deaf):
    def forward(self, x):
        y = super().forward(x)
        return y / y.norm()


class ByGradient(Deaf):
    def forward(self, x):
        mean = x.mean(dim=0, keepdim=True)
        return super().forward(x) + mean - mean.detach()


class LoudOnly(Deaf):
    """A stabilizer over the batch, and a little added."""

    def forward(self, x):
        y = self.out(x)
        scale = y.abs().amax()
        return y / scale / (1 / scale + 1e-30 * scale**8)


class Normed(Deaf):
    """Batch statistics, while training only."""

    def __init__(self, dim):
        super().__init__(dim)
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x):
        return self.norm(x.mT).mT


class ByPlace(Deaf):
    def forward(self, x):
        return super().forward(x) + torch.arange(len(x))[:, None, None]


class OfMany(Deaf):
    def forward(self, x):
        return super().forward(x) + (x.flip(1) if len(x) > 1 else 0)


class TokensFirst(Deaf):
    """It takes the batch for the sequence."""

    def __init__(self, dim):
        super().__init__(dim)
        self.attention = nn.MultiheadAttention(dim, 1)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Ids(nn.Module):
    """An id that stands for padding moves the positions of those after it, as in RoBERTa."""

    promises = ("batch-independent", "padding-invariant")

    def __init__(self, dim):
        super().__init__()
        self.table = nn.Embedding(20, dim, padding_idx=1)
        self.places = nn.Embedding(100, dim)
        self.attention = Attends(dim)

    def forward(self, ids, attention_mask=None):
        padding = None if attention_mask is None else attention_mask == 0
        return self.attention(self.table(ids) + self.places((ids != 1).cumsum(dim=1)), padding)


def looked(probe, what, **more):
    outcome = probe.look(subject_of(what, **more))
    if not isinstance(outcome, Silent):
        json.dumps(outcome.evidence, allow_nan=False)
    return outcome


@pytest.mark.parametrize("probe", BATCH.values(), ids=BATCH)
@pytest.mark.parametrize("good", [Attends, Placed, Deaf, Ids], ids=lambda one: one.__name__)
def test_a_sentence_that_is_answered_for_itself_is_left_alone(good, probe):
    assert isinstance(looked(probe, good), Held)


@pytest.mark.parametrize("probe", [*BATCH.values(), *PADDING.values()], ids=[*BATCH, *PADDING])
def test_the_modules_of_torch_are_left_alone(probe):
    for module, promises in (
        (nn.MultiheadAttention(8, 2), ()),
        (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), ("causal",)),
        (nn.TransformerDecoderLayer(16, 2, 32), ()),
    ):
        assert isinstance(looked(probe, module, promises=promises), Held)


@pytest.mark.parametrize(
    ("probe", "what", "says"),
    [
        ("neighbors", WholeBatch, "(1 token, batch of 2)"),
        ("neighbors", ByGradient, "is reached by the gradient of"),
        ("neighbors", LoudOnly, "times as loud"),
        ("neighbors", Normed, "in training mode) and only while training"),
        ("neighbors", TokensFirst, "hears sentence"),
        ("order", ByPlace, "is answered otherwise in place"),
        ("size", OfMany, "alone"),
        ("size", ByPlace, "than in a batch"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_a_batch_changes_is_found(probe, what, says):
    broke = looked(BATCH[probe], what)
    assert isinstance(broke, Broke)
    assert says in broke.sentence
    assert broke.evidence["moved"] > 0


def test_a_neighbor_is_named_with_the_place_that_it_moves():
    evidence = looked(batch_neighbors, WholeBatch).evidence
    assert evidence["sentence"] != evidence["neighbor"]
    assert (evidence["by"], evidence["token"]) == ("value", 0)


def test_a_batch_of_one_only_cannot_be_asked_for_its_size():
    class Pairs(Deaf):
        def forward(self, x):
            if len(x) != 2:
                raise ValueError("two sentences, please")
            return super().forward(x)

    assert isinstance(looked(batch_size, Pairs), Silent)


@pytest.mark.parametrize("side", PADDING.values(), ids=PADDING)
@pytest.mark.parametrize("good", [Attends, Placed, Ids], ids=lambda one: one.__name__)
def test_padding_that_is_hidden_is_left_alone(good, side):
    assert isinstance(looked(side, good), Held)


@pytest.mark.parametrize("side", PADDING.values(), ids=PADDING)
@pytest.mark.parametrize("bad", [OverQueries, Inverted, Ignored, NotLow], ids=lambda one: one.__name__)
def test_padding_that_is_heard_is_found_on_either_side(bad, side):
    broke = looked(side, bad)
    assert isinstance(broke, Broke)
    assert broke.sentence.startswith("real token")


def test_padding_that_is_counted_is_found():
    assert "of padding follow" in looked(padding_right, CountsPadding).sentence


def test_a_mask_of_the_first_sentence_is_found_where_masks_differ():
    broke = looked(padding_right, OfTheFirst)
    assert isinstance(broke, Broke)
    assert broke.evidence["sentence"] == 1


def test_who_expects_padding_on_the_right_is_found_on_the_left():
    assert isinstance(looked(padding_right, AssumesRight), Held)
    assert isinstance(looked(padding_left, AssumesRight), Broke)


def test_a_shift_by_padding_on_the_left_is_a_fact_and_no_fault():
    assert looked(padding_left, Placed).evidence["shifts"]
    assert not looked(padding_left, Attends).evidence["shifts"]
    assert "as absolute positions do" in looked(padding_left, Placed).sentence


def test_what_looks_back_only_need_not_be_told_of_padding_on_the_right():
    held = looked(padding_right, Deaf)
    assert isinstance(held, Held)
    assert not held.evidence["told"]
    assert "need not be told" in held.sentence
    assert isinstance(looked(padding_left, Deaf), Silent)


def test_what_cannot_be_told_of_padding_breaks_only_a_promise():
    broke = looked(padding_right, DeafMean)
    assert isinstance(broke, Broke)
    assert "it cannot be told which tokens are padding" in broke.sentence
    assert isinstance(looked(padding_right, DeafMean, waived=("padding-invariant",)), Silent)
    assert isinstance(looked(padding_right, "everything"), Silent)


def test_tokens_that_carry_marks_and_are_not_read_tell_nothing():
    assert isinstance(looked(padding_left, "attention"), Silent)
    assert isinstance(looked(padding_left, "padding"), Held)


@pytest.mark.parametrize("name", ["zero-after-softmax", "scores-times-mask", "reweight-sequence", "reweight-batch"])
def test_faulty_entries_are_found_by_their_padding(name):
    assert padding_right.PROBE(subject_of(name)).status == "broken"


@pytest.mark.parametrize("name", ["padding", "rotary"])
def test_entries_keep_what_they_promise(name):
    subject = subject_of(name)
    for probe in (padding_right, batch_neighbors, batch_size):
        assert probe.PROBE(subject).status == "kept"


def test_the_norm_of_a_batch_is_found_in_the_catalog():
    assert batch_neighbors.PROBE(subject_of("reweight-batch")).status == "broken"
    assert batch_neighbors.PROBE(subject_of("reweight-sequence")).status == "kept"
