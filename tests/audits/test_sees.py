"""Is a look into the future found, whatever hides it, and is nothing found where there is none?"""

import itertools
import json
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from attnlab import catalog
from attnlab.audits.measure import Setting, asked, rounding
from attnlab.audits.probe import Broke, Held, Silent
from attnlab.audits.probes import future_by_gradient, future_by_length, future_by_value, future_with_weights
from attnlab.subjects.found import subject_of

PROBES = {
    "value": future_by_value,
    "gradient": future_by_gradient,
    "length": future_by_length,
    "weights": future_with_weights,
}


class Attends(nn.Module):
    """Causal attention of one head; what inherits from it changes one line."""

    promises = ("causal",)

    def __init__(self, dim):
        super().__init__()
        self.project = nn.Linear(dim, 3 * dim)

    def future(self, n):
        return torch.ones(n, n, dtype=torch.bool).triu(1)

    def scores(self, q, k):
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(self.future(k.shape[1]), -torch.inf)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, dim=-1)
        return self.scores(q, k).softmax(dim=-1) @ v


class WithWeights(Attends):
    forgets = None

    def forward(self, x, need_weights=False):
        q, k, v = self.project(x).chunk(3, dim=-1)
        scores = q @ k.mT
        if need_weights is not self.forgets:
            scores = scores.masked_fill(self.future(x.shape[1]), -torch.inf)
        weights = scores.softmax(dim=-1)
        return (weights @ v, weights) if need_weights else weights @ v


class ForgetsWhenAsked(WithWeights):
    forgets = True


class Floor(Attends):
    floor = -1e7

    def scores(self, q, k):
        return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(self.future(k.shape[1]), self.floor)


class Faint(Floor):
    floor = -30.0


class WithoutGradients(Attends):
    def future(self, n):
        return super().future(n) if torch.is_grad_enabled() else torch.zeros(n, n, dtype=torch.bool)


class WhileDropping(Attends):
    dropout = 0.0

    def __init__(self, dim):
        super().__init__(dim)
        self.dropout = 0.0

    def future(self, n):
        drops = self.training and self.dropout > 0
        return torch.zeros(n, n, dtype=torch.bool) if drops else super().future(n)


class Alone(Attends):
    def forward(self, x):
        q, k, v = self.project(x).chunk(3, dim=-1)
        return (self.scores(q, k) if len(x) > 1 else q @ k.mT).softmax(dim=-1) @ v


class Stabilized(Attends):
    """The largest score of the whole input is taken off, and a little is added to the sum."""

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, dim=-1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = (scores - scores.amax()).exp().masked_fill(self.future(x.shape[1]), 0.0)
        return weights @ v / (weights.sum(dim=-1, keepdim=True) + 1e-30)


class Chunked(Attends):
    """The last token of a chunk sees the first of the next."""

    chunk = 32

    def future(self, n):
        i = torch.arange(n)
        return i > torch.maximum(i, (i + 1) // self.chunk * self.chunk)[:, None]


class LongChunks(Chunked):
    chunk = 256


class Barely(Attends):
    def forward(self, x):
        return super().forward(x) + 1e-7 * x.mean(dim=1, keepdim=True)


class ByLength(Attends):
    def forward(self, x):
        return super().forward(x) / x.shape[1]


class WholeNorm(Attends):
    def forward(self, x):
        y = super().forward(x)
        return y / y.norm(dim=(1, 2), keepdim=True)


class BatchStatistics(Attends):
    """While training only."""

    def __init__(self, dim):
        super().__init__(dim)
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x):
        return self.norm(super().forward(x).mT).mT


class ByTheGradient(Attends):
    """The value is causal, and the gradient is not."""

    def forward(self, x):
        y = x.mean(dim=1, keepdim=True)
        return super().forward(x) + y - y.detach()


class Ids(nn.Module):
    promises = ("causal",)

    def __init__(self, dim):
        super().__init__()
        self.table, self.attention, self.out = nn.Embedding(20, dim), Attends(dim), nn.Linear(dim, 20)

    def forward(self, ids):
        return self.out(self.attention(self.table(ids)))


class LeakyIds(Ids):
    def forward(self, ids):
        return self.out(self.table(ids).mean(dim=1, keepdim=True).expand(-1, ids.shape[1], -1))


class InFloat32(Attends):
    def forward(self, x):
        assert x.dtype == torch.float32
        return super().forward(x)


class SoftmaxInFloat32(Attends):
    def forward(self, x):
        q, k, v = self.project(x).chunk(3, dim=-1)
        return self.scores(q, k).softmax(dim=-1, dtype=torch.float32).to(x.dtype) @ v


class Counting(Attends):
    """It counts its calls, and keeps what it computed."""

    calls = 0

    def forward(self, x):
        self.calls = self.calls + 1
        self.last = super().forward(x)
        return self.last + 0.1 * self.calls


class Restless(Attends):
    """No two calls answer alike, whoever asks."""

    calls = itertools.count()

    def forward(self, x):
        return super().forward(x) + next(self.calls)


class Few(Attends):
    """It takes up to six tokens, or twelve, and says so."""

    def forward(self, x):
        if x.shape[1] > 6 and x.shape[1] != 12:
            raise ValueError(f"{x.shape[1]} tokens are too many")
        return super().forward(x)


def looked(what, probe="value", **more):
    outcome = PROBES[probe].look(subject_of(what, **more))
    if not isinstance(outcome, Silent):
        json.dumps(outcome.evidence, allow_nan=False)
    return outcome


@pytest.mark.parametrize("good", [Attends, Ids, InFloat32, SoftmaxInFloat32, Counting], ids=lambda one: one.__name__)
def test_what_looks_back_only_is_left_alone(good):
    assert isinstance(looked(good), Held)


@pytest.mark.parametrize("probe", ["gradient", "length"])
@pytest.mark.parametrize("good", [Ids, SoftmaxInFloat32], ids=lambda one: one.__name__)
def test_what_looks_back_only_is_left_alone_by_the_others(good, probe):
    assert isinstance(looked(good, probe), Held)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_attention_of_torch_is_left_alone(batch_first, probe):
    module = nn.MultiheadAttention(8, 2, batch_first=batch_first, dropout=0.1)
    assert isinstance(looked(module, probe, promises=("causal",)), Held)


def test_the_layers_of_torch_are_left_alone():
    for module in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        assert isinstance(looked(module(16, 2, 32, batch_first=True), promises=("causal",)), Held)


@pytest.mark.parametrize(
    ("what", "output", "token", "says"),
    [
        (WholeNorm, 0, 1, "2 tokens"),
        (Barely, 0, 1, "2 tokens"),
        (LeakyIds, 0, 1, "2 tokens"),
        (Floor, 0, 1, "everything 10000 times as loud"),
        (Stabilized, 0, 1, "the change 1000 times as loud"),
        (Alone, 0, 1, "batch of 1"),
        (WithoutGradients, 0, 1, "without gradients"),
        (BatchStatistics, 0, 1, "in training mode"),
        (WhileDropping, 0, 1, "dropout of 0.3"),
        (Chunked, 31, 32, "37 tokens, batch of 1"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_leak_is_found_where_it_hides(what, output, token, says):
    broke = looked(what)
    assert isinstance(broke, Broke)
    assert says in broke.sentence
    pairs = broke.evidence["pairs"]
    assert all(i < j for i, j in pairs)
    assert [output, token] in pairs


def test_the_smallest_input_that_breaks_it_comes_first():
    broke = looked(WholeNorm)
    assert broke.evidence["setting"]["length"] == 2
    assert broke.evidence["map"][0][1] > 0


def test_the_part_that_leaks_is_named():
    class Two(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.first, self.second = Attends(dim), WholeNorm(dim)

        def forward(self, x):
            return self.second(self.first(x))

    broke = looked(Two)
    assert broke.evidence["part"] == "second"
    assert "first seen in second" in broke.sentence


@pytest.mark.parametrize("what", [Faint, ByTheGradient, WholeNorm, LeakyIds], ids=lambda one: one.__name__)
def test_a_gradient_that_reaches_ahead_is_found(what):
    broke = looked(what, "gradient")
    assert isinstance(broke, Broke)
    assert broke.evidence["output"] < broke.evidence["token"]


def test_a_gradient_is_not_asked_of_what_has_none():
    class Cut(Attends):
        def forward(self, x):
            return super().forward(x).detach()

    assert isinstance(looked(Cut, "gradient"), Silent)


def test_an_input_cut_short_shows_who_counts_it():
    assert isinstance(looked(ByLength), Held)
    assert isinstance(looked(ByLength, "gradient"), Held)
    broke = looked(ByLength, "length")
    assert (broke.evidence["short"], broke.evidence["length"]) == (1, 2)


def test_an_input_cut_short_shows_the_ends_of_long_chunks():
    broke = looked(LongChunks, "length")
    assert (broke.evidence["output"], broke.evidence["short"], broke.evidence["length"]) == (255, 256, 260)


def test_one_length_only_cannot_be_cut_short():
    class One(Attends):
        def forward(self, x):
            if x.shape[1] != 16:
                raise ValueError("16 tokens, please")
            return super().forward(x)

    assert isinstance(looked(One(16), "length"), Silent)


def test_a_path_that_is_taken_for_the_weights_is_asked_too():
    assert isinstance(looked(WithWeights, "weights"), Held)
    assert isinstance(looked(ForgetsWhenAsked), Held)
    broke = looked(ForgetsWhenAsked, "weights")
    assert (broke.evidence["word"], broke.evidence["value"]) == ("need_weights", True)
    assert "with need_weights=True output 0 hears token 1" in broke.sentence
    assert isinstance(looked(Attends, "weights"), Silent)


@dataclass
class Config:
    n_embd: int
    vocab_size: int = 50304
    block_size: int = 32


class Configured(Attends):
    """A language model as it is published: built from a configuration, it answers for the last token alone."""

    masked = True

    def __init__(self, config: Config):
        super().__init__(config.n_embd)
        self.table, self.head = (
            nn.Embedding(config.vocab_size, config.n_embd),
            nn.Linear(config.n_embd, config.vocab_size),
        )

    def future(self, n):
        return super().future(n) & self.masked

    def forward(self, idx, targets=None):
        y = super().forward(self.table(idx))
        return (self.head(y), 0.0) if targets is not None else (self.head(y[:, -1:]), None)


class TokensFirst(Attends):
    """(tokens, batch, features), and nothing that says so."""

    masked = True

    def future(self, n):
        return super().future(n) & self.masked

    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class MaskIsAdded(Attends):
    """A mask of zeros and minus infinity that it cannot go without."""

    masked = True

    def forward(self, x, mask):
        q, k, v = self.project(x).chunk(3, dim=-1)
        scores = q @ k.mT
        return (scores + mask if self.masked else scores).softmax(dim=-1) @ v


class MaskPerSentence(Attends):
    """A mask of (batch, queries, keys), True where it may look, laid over every head."""

    masked = True

    def forward(self, x, mask=None):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.project(x).chunk(3, dim=-1))
        scores = q @ k.mT
        if mask is not None and self.masked:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


class StartsSomewhere(Attends):
    """Told where it starts, as a model with a cache."""

    masked = True

    def future(self, n):
        return super().future(n) & self.masked

    def forward(self, x, start_pos: int):
        return super().forward(x[:, start_pos:])


class FromADict(Attends):
    """A configuration that is a dictionary."""

    masked = True

    def __init__(self, cfg):
        super().__init__(cfg["emb_dim"])
        self.length = cfg["context_length"]

    def future(self, n):
        return super().future(self.length)[:n, :n] & self.masked


@pytest.mark.parametrize("kind", [FromADict, Configured, TokensFirst, MaskIsAdded, MaskPerSentence, StartsSomewhere])
def test_what_is_called_in_an_unusual_way_is_seen_all_the_same(kind):
    class Unmasked(kind):
        masked = False

    assert isinstance(looked(kind), Held)
    assert isinstance(looked(Unmasked), Broke)


def causes_of(future):
    class Asked(Attends):
        def forward(self, x):
            q, k, v = self.project(x).chunk(3, dim=-1)
            hidden = future(self, x, torch.arange(x.shape[1]))
            return (q @ k.mT).masked_fill(hidden, -1e9).softmax(dim=-1) @ v

    return looked(Asked).cause


FUTURES = {
    "in evaluation and not in training": lambda self, x, at: (at > at[:, None]) & self.training,
    "in training mode and not in evaluation": lambda self, x, at: (at > at[:, None]) & (not self.training),
    "only where no gradients are recorded": lambda self, x, at: (at > at[:, None]) & torch.is_grad_enabled(),
    "only for a batch of one": lambda self, x, at: (at > at[:, None]) & (len(x) > 1),
    "only for batches larger than one": lambda self, x, at: (at > at[:, None]) & (len(x) == 1),
    "only in long inputs": lambda self, x, at: (at > at[:, None]) & (len(at) < 60),
    "hears the next token and none beyond": lambda self, x, at: at > at[:, None] + 1,
    "hears the next 3 tokens": lambda self, x, at: (at - at[:, None]).abs() > 3,
    "polarity of the mask is inverted": lambda self, x, at: at <= at[:, None],
    "end of their block of 4": lambda self, x, at: at // 4 > at[:, None] // 4,
    "last output of each block of 3": lambda self, x, at: at > torch.maximum(at, (at + 1) // 3 * 3)[:, None],
    "only output 0": lambda self, x, at: at >= at[:, None],
    "hears the last token": lambda self, x, at: (at > at[:, None]) & (at < at[-1]),
    "each by everyone before it": lambda self, x, at: (at > at[:, None]) & (at != 1) & (at != 3),
    "the mask is missing": lambda self, x, at: at < 0,
}


@pytest.mark.parametrize("cause", FUTURES)
def test_a_leak_names_its_cause_by_how_it_behaves(cause):
    assert cause in causes_of(FUTURES[cause])


def test_lengths_that_are_refused_are_named():
    held = looked(Few)
    assert held.evidence["lengths"] == [2, 3, 4, 5, 6]
    assert "16" in held.evidence["refused"]
    assert "too many" in held.evidence["refused"]["16"]


def test_what_never_answers_twice_alike_is_an_error_and_no_leak():
    with pytest.raises(Exception, match="differently from call to call"):
        looked(Restless)


def test_nobody_who_claimed_nothing_is_called_broken():
    finding = future_by_value.PROBE(subject_of(WholeNorm, waived=("causal",)))
    assert finding.status == "unclaimed"
    assert finding.sentence.endswith("a leak if this is meant as a decoder")


def test_rounding_follows_the_input_and_not_the_constants():
    class ConstantInFloat32(Attends):
        def forward(self, x):
            return super().forward(x) * torch.ones(1)

    assert rounding(subject_of(ConstantInFloat32)) == rounding(subject_of(Attends)) == 1e-11
    assert rounding(subject_of(SoftmaxInFloat32)) == rounding(subject_of(InFloat32)) == 1e-5


def test_ids_cannot_shout_so_their_matrices_do():
    subject = subject_of(Ids)
    settings = [Setting(length=3, loud=10.0), Setting(length=3, loud=30.0), Setting(length=3, whole=10.0)]
    (plain, soft), (steep, loud) = asked(subject, settings)
    assert (plain.loud, steep.whole) == (1.0, 10.0)
    assert torch.equal(loud.out.weight, 10 * soft.out.weight)
    assert torch.equal(loud.table.weight, soft.table.weight)


@pytest.mark.parametrize("entry", [one for one in catalog.CATALOG if "causal" in one.breaks], ids=lambda one: one.name)
def test_every_faulty_entry_is_found(entry):
    assert future_by_value.PROBE(subject_of(entry.name)).status == "broken"


@pytest.mark.parametrize("name", ["attention", "linear"])
def test_entries_keep_what_they_promise(name):
    subject = subject_of(name)
    assert future_by_value.PROBE(subject).status == "kept"
    assert future_by_gradient.PROBE(subject).status == "kept"
