"""Is a spelling read as it is written, or refused in a sentence, whatever it is?"""

import string
from contextlib import suppress
from keyword import iskeyword

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attnlab.catalog import CATALOG
from attnlab.errors import BadSetting, LabError
from attnlab.spelling import Both, Either, Part, expression, literal, part, parts

LITERALS = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False)
LITERALS |= st.text(max_size=8) | st.tuples(st.integers(), st.text(max_size=3))
NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=6).filter(lambda name: not iskeyword(name))
# Plain tuples, made into trees inside a test: the shape checker draws at random, which a strategy must not.
PARTS = st.tuples(
    st.sampled_from([entry.name for entry in CATALOG]) | st.just("mine.py:cosine") | st.just("a/b c.py"),
    st.lists(LITERALS, max_size=2).map(tuple),
    st.dictionaries(NAMES, LITERALS, max_size=3).map(lambda settings: tuple(settings.items())),
)
TREES = st.recursive(PARTS, lambda inside: st.tuples(st.sampled_from("&|"), inside, inside))


def made(drawn):
    if drawn[0] in ("&", "|"):
        return (Both if drawn[0] == "&" else Either)(made(drawn[1]), made(drawn[2]))
    return Part(*drawn)


def spelled(tree) -> str:
    if isinstance(tree, Part):
        return str(tree)
    sign = "&" if isinstance(tree, Both) else "|"
    return f"({spelled(tree.left)} {sign} {spelled(tree.right)})"


@example("(" * 2000 + "causal")
@given(st.text() | st.text("()&|,:='\"[]{}*. windowcausal.py1-_\\\n", max_size=30))
@example("causal(" + "(" * 500)
@example("f(" + "-" * 500 + "1)")
@example("window(last=1)\x00")
@example("f(\x00)")
@example("f('\\ud800')")
@example("f(1e999)")
@example("f(last=" + "9" * 5000 + ")")
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    with suppress(LabError):
        assert parts(expression(text))


@given(TREES)
def test_what_is_written_is_what_is_read(drawn) -> None:
    tree = made(drawn)
    assert expression(spelled(tree)) == tree


@given(PARTS)
def test_a_part_alone_is_read_alone(drawn) -> None:
    one = made(drawn)
    assert part(str(one)) == one
    with pytest.raises(BadSetting, match="only visibility can be combined"):
        part(f"{one} & causal")


def test_and_binds_tighter_than_or() -> None:
    a, b, c = Part("causal"), Part("window", (), (("last", 16),)), Part("prefix", (8,))
    assert expression("causal & window(last=16) | prefix(8)") == Either(Both(a, b), c)
    assert expression("prefix(8) | causal & window(last=16)") == Either(c, Both(a, b))
    assert expression("causal & (window(last=16) | prefix(8))") == Both(a, Either(b, c))


def test_nothing_is_evaluated() -> None:
    for text in ("f(__import__('os'))", "f(1 + 1)", "f(x)", "f([i for i in (1,)])", "f(f'{1}')", "f(a=lambda: 1)"):
        with pytest.raises(BadSetting, match="settings are literals"):
            expression(text)


@given(st.text())
def test_a_literal_is_a_value_or_the_word_itself(text: str) -> None:
    assert literal(text) is not NotImplemented
    assert literal("k") == "k"
    assert literal("16") == 16
