"""Is the way in plain, and is a word that means nothing refused in a line?"""

from importlib.metadata import version

import pytest


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_names_every_command(words: list[str], attnlab) -> None:
    said = attnlab(*words)
    assert said.status == 0
    assert all(f"\n  {command}  " in said.out for command in ("list", "show", "audit", "demo"))
    assert "--install-completion" in said.out


def test_the_version_is_that_of_the_package(attnlab) -> None:
    assert attnlab("--version") == (0, f"attnlab {version('attnlab')}\n", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["--nonsense"], "No such option: --nonsense"),
        (["list", "--nonsense"], "No such option: --nonsense"),
        (["list", "extra"], "Got unexpected extra argument"),
        (["list", "--question"], "requires an argument"),
        (["list", "--json=yes"], "does not take a value"),
        (["show"], "Missing argument 'WHAT'"),
        (["show", "cosine", "dot"], "Got unexpected extra argument"),
        (["show", "cosine", "--set"], "requires an argument"),
        (["show", "cosine", "--d-model", "wide"], "Invalid value for '--d-model': 'wide' is not a whole number."),
        (["show", "cosine", "--d-model", "1.5"], "'1.5' is not a whole number"),
        (["show", "cosine", "--d-model", "0"], "Invalid value for '--d-model': 0 is not allowed; at least 1."),
        (["show", "cosine", "--length", "-3"], "-3 is not allowed; at least 1"),
        (["show", "cosine", "--draw", "65"], "65 is not allowed; at most 64"),
        (["show", "cosine", "--lenght", "3"], "No such option: --lenght"),
        (["demo", "--seed"], "No such option: --seed"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_words_that_mean_nothing_are_refused_in_a_line(words: list[str], sentence: str, attnlab) -> None:
    said = attnlab(*words)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("attnlab: ")
    assert sentence in said.err
    assert said.err.count("\n") == 1
