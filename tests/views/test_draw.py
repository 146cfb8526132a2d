"""Are drawings true to their maps, on a terminal and on a page?"""

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.views.draw.svg import svg
from attnlab.views.draw.terminal import Pen, draw, level
from attnlab.views.maps import Map

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def a_map(values, *, leaks=(), title="one", caption="") -> Map:
    size = len(values)
    return Map(
        title=title,
        kind="weights",
        caption=caption,
        rows=tuple(str(i) for i in range(size)),
        columns=tuple(str(j) for j in range(len(values[0]) if values else 0)),
        values=tuple(tuple(row) for row in values),
        leaks=tuple(leaks),
    )


def test_a_small_map_looks_like_this() -> None:
    one = a_map([[1.0, 0.0, 0.5], [0.25, 1.0, 0.75], [0.01, None, -1.0]], leaks=[(0, 2)])
    assert draw([one], Pen()) == [
        "one",
        "   0 1 2",
        "0 ██ ·××",
        "1 ░░██▓▓",
        "2 ░░??██",
    ]


def test_and_like_this_where_there_are_no_blocks() -> None:
    one = a_map([[1.0, 0.0, 0.5], [0.25, 1.0, 0.75], [0.01, None, -1.0]], leaks=[(0, 2)])
    assert draw([one], Pen(unicode=False))[2:] == ["0 ## .xx", "1 ::##**", "2 ::??##"]


@given(st.floats(min_value=1e-300, max_value=1.0), st.integers(1, 8))
def test_what_is_not_nothing_never_looks_like_nothing(value: float, levels: int) -> None:
    assert 1 <= level(value, 1.0, levels) <= levels
    assert level(0.0, 1.0, levels) == 0


def test_maps_stand_beside_each_other_while_there_is_room() -> None:
    three = [a_map([[1.0] * 9] * 9, title=name) for name in ("first", "second", "third")]
    wide, narrow = draw(three, Pen(width=80)), draw(three, Pen(width=50))
    assert wide[0].split() == ["first", "second", "third"]
    assert narrow[0].split() == ["first", "second"]
    assert "third" in narrow


@settings(max_examples=40)
@given(st.integers(1, 70), st.integers(30, 120), st.integers(1, 4))
def test_no_line_is_wider_than_the_terminal(n: int, width: int, how_many: int) -> None:
    lines = draw([a_map([[0.0] * n] * n, title="t")] * how_many, Pen(width=width))
    margin = len(str(n - 1)) + 1
    assert max(len(line) for line in lines) <= max(width, margin + n)


def test_paint_takes_no_room() -> None:
    maps = [a_map([[0.5, 1.0]] * 2), a_map([[0.5, 0.0]] * 2)]
    painted = draw(maps, Pen(paint=lambda text, style: f"\x1b[1m{text}\x1b[0m" if text else ""))
    bare = [re.sub(r"\x1b\[\d+m", "", line).rstrip() for line in painted]
    assert bare == draw(maps, Pen())


def test_columns_are_counted_over_themselves() -> None:
    head = draw([a_map([[0.0] * 23] * 2, title="")], Pen())[0]
    first = draw([a_map([[1.0 if j == 20 else 0.0 for j in range(23)]] * 2, title="")], Pen())[1]
    assert head.split() == ["0", "5", "10", "15", "20"]
    assert head.index("20") == first.index("██")


def test_svg_is_well_formed_and_says_each_title() -> None:
    drawn = svg([a_map([[1.0, 0.5]] * 2, title="a < b & c", caption='"quoted"')] * 3, columns=2, title='x "y" <z>')
    root = ElementTree.fromstring(drawn)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("a < b & c") == 3
    assert texts.count('"quoted"') == 3
    assert root.attrib["aria-label"] == 'x "y" <z>'
    assert (root.attrib["width"], root.attrib["height"]) == tuple(root.attrib["viewBox"].split()[2:])


def test_svg_has_a_square_for_each_cell_and_a_cross_for_each_leak() -> None:
    drawn = svg([a_map([[1.0, 0.0, 0.2], [0.0, 1.0, 0.0]], leaks=[(0, 2)])])
    body = drawn.split("</style>")[1].split("nothing")[0]
    squares = {shade: path.count("M") for shade, path in re.findall(r'class="(\w+)" d="([^"]*)"', body)}
    assert squares == {"l0": 3, "l8": 2, "leak": 1, "cross": 1}


def test_everything_drawn_lies_inside_the_picture() -> None:
    root = ElementTree.fromstring(svg([a_map([[1.0] * 12] * 12)] * 7, columns=5, notes=["a", "b"]))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        x, y = (float(number) for number in re.findall(r"[\d.]+", group.attrib["transform"]))
        assert 0 <= x < width
        assert 0 <= y < height


@pytest.fixture(scope="module")
def pictures():
    spec = importlib.util.spec_from_file_location("pictures", PICTURES / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pictures_are_those_that_the_script_draws(pictures) -> None:
    assert {path.name for path in PICTURES.glob("*.svg")} == set(pictures.PICTURES)
    for name, made in pictures.PICTURES.items():
        assert (PICTURES / name).read_text(encoding="utf-8") == made(), f"run {PICTURES / 'draw.py'}"


def test_a_picture_of_other_numbers_is_another_picture(pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "N", pictures.N + 1)
    assert pictures.attention_svg() != (PICTURES / "attention.svg").read_text(encoding="utf-8")


def test_the_one_leak_in_the_picture_is_the_planted_one() -> None:
    drawn = (PICTURES / "attention.svg").read_text(encoding="utf-8")
    assert drawn.count('class="leak"') == 1
    assert drawn.index('class="leak"') > drawn.index(">zero-after-softmax<")
