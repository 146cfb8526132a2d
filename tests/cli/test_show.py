"""Does `attnlab show` say what a mechanism is, and does it refuse in a sentence?"""

import json
from pathlib import Path

import pytest

from attnlab.catalog import CATALOG

SMALL = ("--d-model", "16", "--n-heads", "2", "--length", "12", "--batch", "2", "--no-time")


@pytest.fixture
def show(attnlab):
    return lambda *words: attnlab("show", *words, *SMALL)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a file of a reader's into the folder that we are in."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "mine.py") -> None:
        (tmp_path / name).write_text(text)

    return write


def refused(said) -> str:
    """The sentence alone: nothing half-written, no traceback."""
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("attnlab: ")
    assert 1 <= said.err.count("\n") <= 2
    assert "Traceback" not in said.err
    return said.err.removeprefix("attnlab: ").rstrip("\n")


def test_a_score_is_shown_with_all_that_is_known_of_it(show) -> None:
    said = show("cosine(temperature=0.2)")
    assert said.status == 0
    assert said.err == ""
    for text in (
        "cosine(temperature=0.2) answers score: how strongly does a query ask for a key?",
        "formula     s_ij = cos(q_i, k_j) / τ",
        "settings    temperature=0.2",
        "promises    causal",
        "source      ",
        "parameters  1,088",
        "who may look",
        "who moves whom",
    ):
        assert text in said.out, text


def test_what_is_faulty_shows_what_it_breaks_and_where_it_leaks(show) -> None:
    out = show("zero-after-softmax").out
    assert "breaks      causal, padding-invariant, rows-sum-to-one" in out
    assert "××" in out
    assert "note: token 0 hears token 1, which its own rule hides from it" in out
    promises = out.split("promises")[1].split("breaks")[0]
    assert "causal" not in promises


def test_a_sound_mechanism_shows_no_leak(show) -> None:
    for name in ("attention", "alibi", "gated", "aft-local"):
        out = show(name).out
        assert "×" not in out.split("who moves whom")[1]
        assert "note:" not in out


def test_further_questions_are_answered_together(show) -> None:
    said = json.loads(show("cosine", "--set", "position=rotary", "--set", "visibility=window(last=3)", "--json").out)
    assert said["variant"] == {"score": "cosine", "position": "rotary", "visibility": "window(last=3)"}
    assert [part["question"] for part in said["parts"]] == ["score", "position", "visibility"]
    assert "hears-last:3" in said["parts"][2]["promises"]
    may = said["maps"][0]
    assert all((value > 0) == (0 <= i - j < 3) for i, row in enumerate(may["values"]) for j, value in enumerate(row))


def test_visibility_is_combined_as_it_is_spelled(show) -> None:
    said = json.loads(show("causal & window(last=3) | prefix(2)", "--json").out)
    assert [part["written"] for part in said["parts"]] == ["causal", "window(last=3)", "prefix(2)"]
    may = said["maps"][0]["values"]
    assert all((value > 0) == (0 <= i - j < 3 or j < 2) for i, row in enumerate(may) for j, value in enumerate(row))


def test_a_mixer_without_weights_is_drawn_by_its_influence(show) -> None:
    said = json.loads(show("gru", "--json").out)
    assert [one["kind"] for one in said["maps"]] == ["influence"]
    assert all(
        (value > 0) == (j <= i) for i, row in enumerate(said["maps"][0]["values"]) for j, value in enumerate(row)
    )


def test_every_path_is_timed_or_says_why_not(attnlab) -> None:
    said = json.loads(attnlab("show", "attention", "--json", "--draw", "0", *SMALL[:-1]).out)
    assert said["maps"] == []
    timed = [one for one in said["timings"] if one["refused"] is None]
    assert {(one["path"], one["precision"]) for one in timed} == {
        (path, precision) for path in ("explicit", "fused") for precision in ("float32", "bfloat16")
    }
    assert [one["milliseconds"] for one in timed] == sorted(one["milliseconds"] for one in timed)
    assert [(one["path"], one["refused"]) for one in said["timings"] if one["refused"]] == [
        ("blocked", "its visibility is no window")
    ]


def test_the_drawing_has_as_many_tokens_as_are_asked_for_even_beyond_the_length(show) -> None:
    for name in ("attention", "learned"):
        said = json.loads(show(name, "--draw", "20", "--json").out)
        assert {len(one["rows"]) for one in said["maps"]} == {20}


def test_a_window_wider_than_the_drawing_is_told_of(show) -> None:
    assert "it reaches 15 tokens back and no further" in show("window(last=16)").out
    assert "it reaches" not in show("window(last=12)").out


def test_a_wide_drawing_fits_the_screen(show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for n in (1, 11, 38, 64):
        assert max(len(line) for line in show("attention", "--draw", str(n)).out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cosin"], "no mechanism is called 'cosin'; did you mean 'cosine'? (attnlab list shows all)"),
        (["cosine", "--set", "position=rotry"], "no position is called 'rotry'; did you mean 'rotary'?"),
        (["cosine", "--set", "positions=rotary"], "no question is called 'positions'; did you mean 'position'?"),
        (["cosine", "--set", "position"], "'position' answers no question; write question=value"),
        (["cosine", "--set", "position="], "answers no question; write question=value"),
        (["cosine", "--set", "score=dot"], "cosine answers score already; leave score=dot out"),
        (["cosine", "--set", "position=dot"], "'dot' answers score, not position"),
        (["deberta", "--set", "score=dot"], "deberta brings its own score"),
        (["alibi", "--set", "visibility=everything"], "use alibi-symmetric"),
        (["gru", "--set", "score=dot"], "gru answers every question itself and cannot be given a score"),
        (["cosine(tau=1)"], "cosine has no setting 'tau'; it takes temperature=0.1"),
        (["cosine(0.1, 0.2)"], "takes temperature=0.1"),
        (["cosine(0.1, temperature=0.2)"], "gives temperature twice"),
        (["cosine(temperature='x')"], "temperature is a number"),
        (["cosine(temperature=0)"], "temperature must be above 0"),
        (["cosine(temperature=t)"], "settings are literals"),
        (["cosine(temperature=1+1j)"], "temperature is a number"),
        (["cosine(**{'temperature': 1})"], "** is not a setting"),
        (["cosine(temperature=1"], "are not closed"),
        (["attention(last=3)"], "it takes no settings"),
        (["window(last=0)"], "last counts the token itself"),
        (["window(last=True)"], "last is a whole number"),
        (["cosine & dot"], "cosine answers score, and only visibility can be combined"),
        (["causal &"], "a name is missing"),
        (["causal window"], "what is 'window' after it?"),
        ([""], "a name is missing"),
        (["cosine; import os"], "what is '; import os' after it?"),
        (["nowhere.py"], "there is no file nowhere.py"),
        (["nowhere.py:cosine"], "there is no file nowhere.py"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_what_cannot_be_shown_is_refused_in_a_sentence(words: list[str], sentence: str, show) -> None:
    assert sentence in refused(show(*words))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cosine", "--d-model", "66"], "d_model=66 does not divide into n_heads=8; the nearest that do are 64 and 72"),
        (["rotary", "--d-model", "24"], "rotary turns features in pairs and d_head=3 is odd"),
        (["grouped(n_kv_heads=3)"], "n_heads=8 does not divide into n_kv_heads=3"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_sizes_that_do_not_divide_say_which_would(words: list[str], sentence: str, attnlab) -> None:
    assert sentence in refused(attnlab("show", *words, "--no-time"))


SEVERAL = "def cosine(q, k, at): return q\ndef _hidden(): ...\nclass Loud: ...\n"


@pytest.mark.parametrize(
    ("text", "what", "sentence"),
    [
        ("import torch\n\nx = 1 / 0\n", "mine.py:f", "mine.py, line 3: ZeroDivisionError: division by zero"),
        ("def f(x:\n    return x\n", "mine.py", "mine.py, line 1: SyntaxError: '(' was never closed"),
        ("import no_such_package\n", "mine.py", "mine.py, line 1: ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)\n", "mine.py", "mine.py, line 1: SystemExit: 3"),
        (SEVERAL, "mine.py", "mine.py defines several things: cosine, Loud; say which, as in mine.py:cosine"),
        (SEVERAL, "mine.py:cosin", "no thing in mine.py is called 'cosin'; did you mean 'cosine'?"),
        ("x = 3\n", "mine.py", "mine.py defines no public function or class"),
        ("x = 3\n", "mine.py:x", "mine.py:x is of type int, and a part is a function, a class or a module"),
        ("def f(a, b): return a\n", "mine.py", "takes (a, b) and answers no question of ours: write (q, k, at)"),
        ("def f(x): return z\n", "mine.py", "mine.py, line 1: NameError: name 'z' is not defined"),
        ("def f(x): return x[:, :-1]\n", "mine.py", "was given (2, 12, 16) and returned (2, 11, 16)"),
        ("def f(q, k, at): return q\n", "mine.py", "mine.py does not fit: "),
        ("def f(q, k, at): return (q @ k.mT)[:, 0, 0]\n", "mine.py", "a score answers (b, h, i, j)"),
        ("def f(at): return at.steps().float()\n", "mine.py", "a visibility answers True or False"),
        ("def f(q, k): return q @ k.mT\n", "mine.py", "a score is called with (q, k, at), and f takes (q, k)"),
        ("def f(scores): return scores\n", "mine.py", "a normalizer is called with (scores, allowed)"),
        (
            "def f(x, *, last: int = 3): return x\n",
            "mine.py:f(lst=3)",
            "mine.py:f has no setting 'lst'; it takes last=3",
        ),
        ("def f(x, *, last: int = 3): return x\n", "mine.py:f(last='x')", "last is a whole number; it takes last=3"),
        ("def f(x): return x\n", "mine.py:f(3)", "mine.py:f takes no settings"),
        ("class F:\n    def __init__(self, rate): ...\n    def __call__(self, x): return x\n", "mine.py", "needs rate"),
        (
            "class F:\n  def __init__(self, d_model):\n    raise ValueError('no')\n  def __call__(self, x): ...\n",
            "mine.py",
            "mine.py, line 3: ValueError: no",
        ),
        ("def f(x): return x\nf.question = 'scor'\n", "mine.py:f", "no question is called 'scor'"),
    ],
)
def test_a_readers_mistake_is_told_as_the_readers(text: str, what: str, sentence: str, mine, show) -> None:
    mine(text)
    assert sentence in refused(show(what))


def test_a_folder_is_no_file(tmp_path: Path, show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").mkdir()
    assert refused(show("mine.py")) == "there is no file mine.py"


def test_what_a_readers_file_prints_is_not_our_answer(mine, attnlab) -> None:
    mine("print('loading')\ndef f(x):\n    print('mixing')\n    return x\n")
    said = attnlab("show", "mine.py", "--json", *SMALL)
    assert json.loads(said.out)["what"] == "mine.py"
    assert said.err.startswith("loading\nmixing\n")


def test_code_that_knows_one_precision_is_timed_in_that(mine, attnlab) -> None:
    mine("import torch\ndef f(x):\n    if torch.is_autocast_enabled('cpu'): raise TypeError('no')\n    return 2 * x\n")
    timings = json.loads(attnlab("show", "mine.py", "--json", *SMALL[:-1]).out)["timings"]
    assert [(one["path"], one["precision"], one["refused"]) for one in timings] == [
        ("own", "float32", None),
        ("any", "bfloat16", "TypeError: no"),
    ]


def test_a_file_whose_default_json_does_not_know_is_shown(mine, attnlab) -> None:
    mine("import math\ndef f(x, *, last=math.inf, of=len): return x\n")
    (part,) = json.loads(attnlab("show", "mine.py", "--json", *SMALL).out)["parts"]
    assert [one["value"] for one in part["settings"]] == ["inf", "<built-in function len>"]


def test_what_is_not_a_number_is_null_and_told_of(mine, attnlab) -> None:
    mine("def f(x): return x / 0 * 0\n")
    said = json.loads(attnlab("show", "mine.py", "--json", *SMALL).out)
    assert said["maps"][0]["values"][0][0] is None
    assert said["notes"] == ["some of what moves whom is not a number"]


def test_a_mixer_that_hears_ahead_is_told_of_with_its_smallest_example(mine, attnlab) -> None:
    mine("def f(x): return x + x.roll(-2, dims=1)\n")
    said = json.loads(attnlab("show", "mine.py", "--json", *SMALL).out)
    assert said["notes"] == ["token 0 hears token 2, which comes later: this is not causal"]


def test_every_entry_of_the_catalog_is_shown_and_leaks_only_where_it_is_known_to(attnlab) -> None:
    for entry in CATALOG:
        said = attnlab("show", entry.name, "--json", "--draw", "5", *SMALL)
        assert said.status == 0, said.err
        shown = json.loads(said.out)
        assert shown["variant"] == {entry.question: entry.name}
        assert shown["parts"][0]["formula"] == entry.formula
        leaks = [leak for one in shown["maps"] for leak in one["leaks"]]
        assert not leaks or "causal" in entry.breaks, entry.name
