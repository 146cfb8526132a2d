"""Who may look at whom, drawn by hand."""

from math import inf

import pytest
import torch

from attnlab.errors import BadSetting
from attnlab.mechanisms import visibility as v
from attnlab.mechanisms.tokens import Pairs, Tokens

TOKENS = Tokens.count(6)
AT = Pairs(TOKENS, TOKENS)


def drawn(rule, at=AT):
    return ["".join("x" if seen else "." for seen in row) for row in rule(at)[0, 0].tolist()]


@pytest.mark.parametrize(
    ("rule", "picture"),
    [
        (v.EVERYTHING, ["xxxxxx"] * 6),
        (v.CAUSAL, ["x.....", "xx....", "xxx...", "xxxx..", "xxxxx.", "xxxxxx"]),
        (v.CAUSAL & v.window(last=2), ["x.....", "xx....", ".xx...", "..xx..", "...xx.", "....xx"]),
        (v.window(last=2, ahead=1), ["xx....", "xxx...", ".xxx..", "..xxx.", "...xxx", "....xx"]),
        (v.CAUSAL | v.prefix(length=3), ["xxx...", "xxx...", "xxx...", "xxxx..", "xxxxx.", "xxxxxx"]),
        (v.CAUSAL & v.strided(stride=2), ["x.....", "xx....", "xxx...", ".xxx..", "x.xxx.", ".x.xxx"]),
        (v.CAUSAL & v.blockwise(size=3), ["x.....", "xx....", "xxx...", "...x..", "...xx.", "...xxx"]),
        (v.blockwise(size=4), ["xxxx..", "xxxx..", "xxxx..", "xxxx..", "....xx", "....xx"]),
    ],
    ids=str,
)
def test_a_rule_is_what_its_picture_shows(rule, picture):
    assert drawn(rule) == picture


def test_a_window_counts_the_token_itself():
    assert v.window(last=4)(AT)[0, 0, 5].tolist() == [False, False, True, True, True, True]


def test_marks_hide_other_documents_and_padding():
    tokens = Tokens.count(
        6, document=torch.tensor([[0, 0, 0, 1, 1, 1]]), real=torch.tensor([[1, 1, 1, 1, 1, 0]]).bool()
    )
    at = Pairs(tokens, tokens)
    assert drawn(v.documents(), at) == ["xxx..."] * 3 + ["...xxx"] * 3
    assert drawn(v.padding(), at) == ["xxxxx."] * 6


def test_what_nobody_marked_hides_nothing_and_leaves_no_trace():
    """So that the plain causal path is taken where there is nothing to hide."""
    assert (v.CAUSAL & v.documents() & v.padding()).given(AT) == v.CAUSAL


def test_a_band_is_exact_only_where_nothing_else_is_hidden():
    assert v.CAUSAL.band == (inf, 0, True)
    assert (v.CAUSAL & v.window(last=3)).band == (2, 0, True)
    assert (v.CAUSAL | v.window(last=3)).band == (inf, 0, True)
    assert (v.CAUSAL & v.blockwise(size=4)).band == (3, 0, False)
    assert (v.CAUSAL & v.strided(stride=2)).band == (inf, 0, False)
    assert (v.window(last=3) | v.window(last=1, ahead=2)).band == (2, 2, False)
    assert v.per_head(v.CAUSAL, v.window(last=3)).band == (inf, 0, False)


@pytest.mark.parametrize(
    "rule",
    [
        v.CAUSAL,
        v.window(last=3),
        v.window(last=2, ahead=3),
        v.strided(stride=3),
        v.blockwise(size=4),
        v.CAUSAL & v.blockwise(size=4) | v.window(last=2, ahead=1),
        v.prefix(length=2) & v.window(last=4),
    ],
    ids=str,
)
def test_nothing_outside_the_band_is_visible(rule):
    steps, allowed = AT.steps()[0, 0], rule(AT)[0, 0]
    within = (steps <= rule.band.back) & (steps >= -rule.band.ahead)
    assert not (allowed & ~within).any()
    if rule.band.exact:
        assert torch.equal(allowed, within)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: v.window(last=0), "last counts the token itself"),
        (lambda: v.prefix(length=0), "shows nothing"),
        (lambda: v.strided(stride=0), "at least 1"),
        (lambda: v.blockwise(size=0), "at least 1"),
    ],
)
def test_a_rule_that_shows_nothing_is_refused(make, said):
    with pytest.raises(BadSetting, match=said):
        make()
