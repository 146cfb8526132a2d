"""Does the demo show what it says, and fail when a check does?"""

import json

import pytest

from attnlab.views import twins


def test_three_mechanisms_agree_and_the_fault_is_caught(attnlab) -> None:
    said = attnlab("demo")
    assert said.status == 0
    assert said.err == ""
    assert said.out.count("agrees: largest difference") == 3
    assert "  caught: it differs from the twin of attention by " in said.out
    assert "××" in said.out
    assert said.out.splitlines()[-1].startswith("Next: attnlab show")
    assert max(len(line) for line in said.out.splitlines()) <= 80


def test_json_says_the_same(attnlab) -> None:
    said = json.loads(attnlab("demo", "--json").out)
    assert said["passed"]
    assert all(0 < one["gap"] <= said["within"] and one["agrees"] for one in said["mechanisms"])
    assert said["fault"]["gap"] > 0.01
    assert not said["fault"]["agrees"]
    weights, moves = said["fault"]["maps"]
    assert not weights["leaks"]  # by its weights it looks sound
    assert moves["leaks"]


def test_a_difference_that_is_not_rounding_fails_the_demo(attnlab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "WITHIN", 0.0)
    said = attnlab("demo")
    assert said.status == 1
    assert "differs: largest difference" in said.out
    assert "A check failed." in said.out


def test_a_fault_that_goes_unseen_fails_the_demo(attnlab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "WITHIN", 1e3)
    said = attnlab("demo")
    assert said.status == 1
    assert "not caught: " in said.out
