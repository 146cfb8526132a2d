"""Does `attnlab list` say what there is?"""

import json

import pytest

from attnlab.catalog import CATALOG, QUESTIONS
from attnlab.cli.screen import bare


def test_every_entry_is_listed_below_its_question(attnlab) -> None:
    said = attnlab("list")
    assert said.status == 0
    assert said.err == ""
    lines = said.out.splitlines()
    for entry in CATALOG:
        (place,) = (n for n, line in enumerate(lines) if f"{line} ".startswith(f"  {entry.name} "))
        asked = next(line for line in reversed(lines[:place]) if line and not line.startswith(" "))
        assert asked == f"{entry.question}: {QUESTIONS[entry.question]}"


def test_it_can_be_read_at_80_columns(attnlab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = attnlab("list").out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert not any(line.endswith(" ") for line in lines)


def test_every_word_of_a_formula_survives_the_wrapping(attnlab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = attnlab("list").out.split()
    text = " ".join(words)
    for entry in CATALOG:
        assert " ".join(entry.formula.split()) in text
        assert " ".join(entry.source.split()) in text


def test_one_question_alone(attnlab) -> None:
    said = attnlab("list", "--question", "score")
    assert "cosine" in said.out
    assert "alibi" not in said.out


def test_what_is_faulty_says_what_it_breaks(attnlab) -> None:
    said = json.loads(attnlab("list", "--faulty", "--json").out)
    assert {one["name"] for one in said["entries"]} == {entry.name for entry in CATALOG if entry.breaks}
    assert "breaks causal, padding-invariant" in attnlab("list", "--faulty").out
    assert "breaks" not in attnlab("list", "--sound").out


def test_json_says_what_the_table_says(attnlab) -> None:
    said = json.loads(attnlab("list", "--json").out)
    assert [one["name"] for one in said["entries"]] == [entry.name for entry in CATALOG]
    assert {one["name"]: one["asks"] for one in said["questions"]} == QUESTIONS


@pytest.mark.parametrize("word", ["scor", "nonsense", ""])
def test_an_unknown_question_is_refused_with_those_that_exist(word: str, attnlab) -> None:
    said = attnlab("list", "--question", word)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(f"attnlab: no question is called '{word}'")
    assert "score" in said.err
    assert said.err.count("\n") == 1


def test_colors_are_for_terminals(attnlab, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attnlab("list").out
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = attnlab("list").out
    assert "\x1b[" in colored
    assert bare(colored) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert attnlab("list").out == plain
