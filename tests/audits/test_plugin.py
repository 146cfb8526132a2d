"""Is one line in somebody's own tests an audit?"""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

MINE = """
import torch
from torch import nn

class Sound(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim)
    def forward(self, x):
        return self.map(x).cumsum(1)

class Leaky(Sound):
    def forward(self, x):
        return self.map(x) + x.mean(1, keepdim=True)
"""


@pytest.fixture
def ran(pytester):
    """Runs a test file in a folder of its own, beside mine.py."""
    pytester.makepyfile(mine=MINE)

    def run(text, *words, name="test_it"):
        pytester.makepyfile(**{name: text})
        return pytester.runpytest_inprocess("-p", "pytest_attnlab", "-p", "no:cacheprovider", *words)

    return run


def test_one_line_passes_for_what_keeps_its_promises(ran) -> None:
    line = 'def test_mine(audit):\n    audit("mine.py:Sound", promises=["causal"], quick=True)\n'
    ran(line).assert_outcomes(passed=1)


def test_one_line_fails_with_the_sentences_of_the_card(ran) -> None:
    line = 'def test_mine(audit):\n    audit("mine.py:Leaky", promises=["causal"], quick=True)\n'
    said = ran(line)
    said.assert_outcomes(failed=1)
    said.stdout.fnmatch_lines(
        ["*mine.py:Leaky breaks causal*", "*future-by-value: output 0 hears token 1, which comes later*", "*usually: *"]
    )
    assert "Traceback" not in said.stdout.str()
    assert "pytest_attnlab.py" not in said.stdout.str()


def test_a_module_in_memory_is_audited_too(ran) -> None:
    said = ran(
        "from mine import Leaky\n"
        'def test_mine(audit):\n    audit(Leaky(16), promises=["causal"], quick=True)\n'
        "def test_waived(audit):\n    assert audit(Leaky(16), quick=True).ok\n"
    )
    said.assert_outcomes(failed=1, passed=1)


def test_what_cannot_be_audited_fails_in_a_sentence(ran) -> None:
    said = ran(
        "def test_missing(audit):\n    audit('other.py:It')\n"
        "def test_misspelled(audit):\n    audit('mine.py:Sound', promises=['casual'])\n"
    )
    said.assert_outcomes(failed=2)
    said.stdout.fnmatch_lines(
        ["*other.py:It could not be audited: there is no file *other.py*", "*did you mean 'causal'*"]
    )


def test_a_path_counts_from_the_tests_and_from_the_root(ran, pytester) -> None:
    pytester.mkdir("deep")
    line = 'def test_mine(audit):\n    audit("mine.py:Sound", quick=True)\n'
    ran(line, name="deep/test_deep").assert_outcomes(passed=1)


def test_the_plug_in_imports_nothing_of_ours_until_it_is_used() -> None:
    program = "import sys, pytest_attnlab; print([name for name in ('attnlab', 'torch') if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout == "[]\n", said.stderr


def test_an_installed_attnlab_brings_the_fixture_along() -> None:
    ours = [one for one in entry_points(group="pytest11") if one.value == "pytest_attnlab"]
    assert [one.name for one in ours] == ["pytest_attnlab"]
