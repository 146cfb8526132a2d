"""How is a module called that says little about itself? By its signature, and by trying."""

import pytest
import torch
from torch import nn

from attnlab.errors import UserCodeError
from attnlab.subjects.found import subject_of


class Attends(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def attend(self, x, allowed):
        scores = self.query(x) @ self.key(x).mT
        return scores.masked_fill(~allowed, torch.finfo(x.dtype).min).softmax(dim=-1) @ self.value(x)


class NeedsAMask(Attends):
    def forward(self, x, mask):
        allowed = torch.ones(1, 1, x.shape[1], dtype=torch.bool) if mask is None else mask.bool()[:, None, :]
        return self.attend(x, allowed)


class PairsKept(Attends):
    def forward(self, x, attn_mask=None):
        n = x.shape[1]
        return self.attend(x, torch.ones(n, n, dtype=torch.bool) if attn_mask is None else attn_mask)


class PairsHidden(Attends):
    def forward(self, x, mask=None):
        n = x.shape[1]
        return self.attend(x, torch.ones(n, n, dtype=torch.bool) if mask is None else ~mask.expand(n, n))


class Ignores(Attends):
    def forward(self, x, mask=None):
        return self.attend(x, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))


class OneLength(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Parameter(torch.randn(32, 8)), nn.Linear(8, 8)

    def forward(self, x):
        return self.out(x + self.table)


class Answers(Attends):
    def forward(self, x):
        return {"loss": x.sum(), "hidden": self.attend(x, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))}


def test_a_mask_that_must_be_given_is_given():
    subject = subject_of(NeedsAMask)
    assert subject.way.needed == ("mask",)
    assert subject.way.padding == ("mask", False)
    x, module = subject.give(4), subject.build()
    real = torch.tensor([[True, True, True, False]] * 2)
    other = subject.other(x, (slice(None), 3))
    kept, moved = (subject.ask(module, one, real=real)[:, :3] for one in (x, other))
    assert torch.equal(kept, moved)


@pytest.mark.parametrize(("kind", "form"), [(PairsKept, ("attn_mask", "keeps")), (PairsHidden, ("mask", "hides"))])
def test_the_polarity_of_a_mask_of_pairs_is_found_by_trying(kind, form):
    subject = subject_of(kind, promises=("causal",))
    assert subject.way.causal == (form,)
    x, module = subject.give(4), subject.build()
    assert torch.equal(subject.ask(module, x)[:, :3], subject.ask(module, subject.other(x, (slice(None), 3)))[:, :3])


def test_a_mask_that_nobody_listens_to_is_told_all_the_same():
    assert subject_of(Ignores).hears_padding


def test_a_module_of_one_length_is_asked_at_that_length():
    subject = subject_of(OneLength)
    assert (subject.sizes.length, subject.sizes.d_model) == (32, 8)


def test_an_answer_may_be_a_dictionary():
    subject = subject_of(Answers)
    assert subject.ask(subject.build(), subject.give(3)).shape == (2, 3, 16)


def test_a_function_of_sizes_is_asked_for_what_it_builds():
    def build(embed_dim, nhead):
        return nn.MultiheadAttention(embed_dim, nhead, batch_first=True)

    subject = subject_of(build)
    assert subject.way.triple
    assert isinstance(subject.make(0), nn.MultiheadAttention)


def test_what_cannot_be_called_at_all_says_why():
    class Never(nn.Module):
        def forward(self, x):
            raise ValueError("not today")

    with pytest.raises(UserCodeError, match="not today"):
        subject_of(Never)
