"""Does `attnlab audit` say which promises are kept: on a screen, in JSON, in a table and on a page?"""

import csv
import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from attnlab.cli.screen import bare

MINE = '''
import os
import torch
from torch import nn

class Sound(nn.Module):
    """y_i = sum of A x_j over j ≤ i"""
    promises = ("causal",)
    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim)
    def forward(self, x):
        return self.map(x).cumsum(1)

class Leaky(Sound):
    def forward(self, x):
        return self.map(x) + x.mean(1, keepdim=True)

class Scaled(Sound):
    def __init__(self, dim, factor):
        super().__init__(dim)
        assert isinstance(factor, float), factor
    def forward(self, x):
        return self.map(x).cumsum(1)

class Odd(nn.Module):
    def forward(self, left, *, right):
        return left

class Ends(nn.Module):
    def forward(self, x):
        os._exit(9)

class Formula(nn.Module):
    def forward(self, x):
        raise ValueError("=1+1")
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("mine.py").write_text(MINE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def audit(attnlab, mine: Path):
    return lambda *words: attnlab("audit", "--quick", *words)


def refused(said) -> str:
    """The sentence alone: nothing half-written, no traceback."""
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("attnlab: ")
    assert said.err.count("\n") <= 2
    assert "Traceback" not in said.err
    return said.err.removeprefix("attnlab: ").rstrip("\n")


def test_what_keeps_its_promises_exits_with_0(audit) -> None:
    said = audit("mine.py:Sound")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("mine.py:Sound\n  guess      taken as a module of vectors of 16\n  promises   causal\n")
    assert "\nwhat it may see\n  ✓ future-by-value       no output moves when a later token changes" in said.out
    assert "mine.py:Sound keeps what it promises, by" in said.out
    assert re.search(r"\n\d+ kept, .*\.\nNext: attnlab audit --explain \S+\n$", said.out)


def test_a_broken_promise_exits_with_1_and_says_where_and_why(audit) -> None:
    said = audit("mine.py:Leaky")
    assert (said.status, said.err) == (1, "")
    for text in (
        "✗ future-by-value       output 0 hears token 1, which comes later (2 tokens, batch of 2)",
        "promised: causal",
        "usually: every output hears the future as it hears the",
        "which output hears which token",
        "××",
        "mine.py:Leaky breaks causal\n",
        "Next: attnlab audit --explain future-by-value\n",
    ):
        assert text in said.out, text


def test_what_nobody_promised_is_stated_and_not_called_broken(audit) -> None:
    said = audit("mine.py:Leaky", "--no-promise", "causal")
    assert said.status == 0
    assert "· future-by-value       output 0 hears token 1" in said.out
    assert "a leak if this is meant as a decoder" in " ".join(said.out.split())
    assert "not applicable, because" in said.out
    assert "not looked at" not in said.out
    claimed = audit("mine.py:Sound", "--promise", "rows-sum-to-one")
    assert claimed.status == 0
    assert "\nnot looked at: rows-sum-to-one\n" in claimed.out


def test_a_promise_can_be_claimed_in_so_many_words(audit) -> None:
    assert audit("mine.py:Leaky", "--no-promise", "causal", "--promise", "batch-independent").status == 0
    said = json.loads(audit("everything", "--promise", "causal", "--json").out)
    assert "causal" in said["promises"]
    assert next(one for one in said["findings"] if one["code"] == "future-by-value")["status"] == "broken"


def test_arguments_reach_the_constructor_as_what_they_are(audit) -> None:
    assert "needs factor" in refused(audit("mine.py:Scaled"))
    assert audit("mine.py:Scaled", "--arg", "factor=2.0").status == 0
    assert "'factor' gives no argument" in refused(audit("mine.py:Scaled", "--arg", "factor"))


def test_what_cannot_be_called_exits_with_2_and_says_how_to_adapt_it(audit) -> None:
    sentence = refused(audit("mine.py:Odd"))
    assert "could be called with neither vectors" in sentence
    assert "Write an adapter: a class with __init__(self, dim) and forward(self, x)" in sentence


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "what shall be audited?"),
        (["cosin"], "no mechanism is called 'cosin'; did you mean 'cosine'?"),
        (["nowhere.py:It"], "there is no file nowhere.py"),
        (["mine.py"], "mine.py defines several things: Sound, Leaky"),
        (["mine.py:Soun"], "no thing in mine.py is called 'Soun'; did you mean 'Sound'?"),
        (["mine.py:Sound", "--promise", "casual"], "no promise is called 'casual'; did you mean 'causal'?"),
        (["mine.py:Sound", "--no-promise", "finit"], "did you mean 'finite'?"),
        (["mine.py:Sound", "--as", "modules"], "no kind is called 'modules'; did you mean 'module'?"),
        (["mine.py:Sound", "--csv", "--json"], "choose one"),
        (["mine.py:Sound", "--swap", "gru"], "pretrained"),
        (["mine.py:Sound", "--html", "."], ". is a folder; name a file in it"),
        (["mine.py:Sound", "--html", "no/such/page.html"], "there is no folder no/such to write page.html into"),
        (["mine.py:Sound", "--seconds", "long"], "'long' is not a number"),
        (["mine.py:Sound", "--seconds", "nan"], "'nan' is not a number"),
        (["mine.py:Sound", "--seconds", "0"], "0.0 is not allowed; at least 0.1"),
        (["--explain", "future-by-valu"], "no code is called 'future-by-valu'; did you mean 'future-by-value'?"),
        (["mine.py:Ends"], "it ended its own process with status 9"),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_what_makes_no_sense_is_refused_in_a_sentence(words: list[str], sentence: str, audit) -> None:
    assert sentence in refused(audit(*words))


def test_json_is_one_object_with_every_finding(audit) -> None:
    said = audit("mine.py:Leaky", "--json")
    assert said.status == 1
    told = json.loads(said.out)
    assert (told["schema"], told["version"], told["subject"], told["ok"]) == (
        "attnlab.audit",
        1,
        "mine.py:Leaky",
        False,
    )
    finding = next(one for one in told["findings"] if one["code"] == "future-by-value")
    assert (finding["promise"], finding["family"], finding["status"]) == ("causal", "sees", "broken")
    assert finding["sentence"].startswith("output 0 hears token 1")
    assert finding["cause"]
    assert finding["evidence"]["pairs"] == [[0, 1]]
    statuses = {one["status"] for one in told["findings"]}
    assert statuses <= {"kept", "broken", "unclaimed", "not-applicable", "error"}


def test_several_are_several_cards_or_one_object(audit) -> None:
    said = audit("mine.py:Sound", "mine.py:Leaky", "nowhere.py:It")
    assert said.status == 2
    assert (
        said.out.index("mine.py:Sound keeps") < said.out.index("\n\nmine.py:Leaky\n") < said.out.index("breaks causal")
    )
    assert said.err == "attnlab: nowhere.py:It: there is no file nowhere.py\n"
    told = json.loads(audit("mine.py:Sound", "mine.py:Leaky", "nowhere.py:It", "--json").out)
    assert (told["schema"], told["ok"]) == ("attnlab.audits", False)
    assert [(one["subject"], one["ok"], one["error"]) for one in told["audits"]] == [
        ("mine.py:Sound", True, None),
        ("mine.py:Leaky", False, None),
        ("nowhere.py:It", False, "there is no file nowhere.py"),
    ]


def test_the_teachers_table_has_a_row_for_each_and_a_crash_is_a_row(audit) -> None:
    listed = [f"mine.py:{name}" for name in ("Sound", "Leaky", "Odd", "Ends", "Formula")] + ["nowhere.py"]
    said = audit(*listed, "--csv")
    assert (said.status, said.err) == (1, "")
    rows = list(csv.DictReader(said.out.splitlines()))
    assert [row["subject"] for row in rows] == listed
    assert [row["ok"] for row in rows] == ["yes", "no", "no", "no", "no", "no"]
    assert int(rows[0]["kept"]) > 4
    assert "future-by-value" in rows[1]["broken"].split()
    assert rows[1]["sentence"].startswith("output 0 hears token 1")
    assert "neither vectors" in rows[2]["sentence"]
    assert "ended its own process with status 9" in rows[3]["sentence"]
    assert "=1+1" in rows[4]["sentence"]
    assert rows[5]["sentence"] == "there is no file nowhere.py"
    assert audit("mine.py:Sound", "--csv").status == 0


def test_a_file_of_the_scaffold_is_checked_step_by_step(attnlab, mine: Path) -> None:
    Path("steps.py").write_text(
        "from attnlab.mechanisms.scaffold import *\ndef attn_scaled(A, n_embd, n_heads):\n    return A / n_embd**0.5\n"
    )
    said = attnlab("audit", "steps.py", "--staged")
    assert (said.status, said.err) == (1, "")
    assert "✓ stage-1" in said.out
    assert "✗ stage-3" in said.out
    assert "attn_scaled (line 2) divides by √6" in " ".join(said.out.split())
    assert "takes no promises" in refused(attnlab("audit", "steps.py", "--staged", "--promise", "causal"))
    assert attnlab("audit", "--explain", "stage-3").status == 0


def test_a_table_holds_nothing_that_a_spreadsheet_would_run() -> None:
    from attnlab.cli.audit import _row

    assert _row("-x.py", None, "=HYPERLINK(1)\nmore") == "'-x.py,no,0,,'=HYPERLINK(1)"


class Page(HTMLParser):
    """What a page asks for and runs, and whether its elements close."""

    VOID = ("meta", "rect", "path", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.asks: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.seen.append(tag)
        self.asks += [
            name for name, _ in attrs if name in ("src", "href", "srcset", "data", "action") or name[:2] == "on"
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_one_file_that_asks_for_nothing_and_runs_nothing(audit) -> None:
    said = audit("mine.py:Leaky", "mine.py:Sound", "mine.py:Odd", "--html", "card.html")
    assert said.status == 2
    text = Path("card.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.asks == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.seen)
    assert "url(" not in text
    assert "@import" not in text
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert "@media print" in text
    assert page.seen.count("article") == 3
    assert "output 0, token 1: moved by" in text
    assert ", a leak</title>" in text or ", a leak\n</title>" in text
    assert "could not be audited" in text
    assert [path.name for path in Path().iterdir()].count("card.html") == 1
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_what_a_stranger_wrote_stays_text_on_the_page(audit) -> None:
    Path("it.py").write_text(
        "def f(x):\n    raise ValueError('<script>alert(1)</script>')\n"
        "def g(x):\n    if x.shape[1] == 2: raise ValueError('<script>alert(1)</script>')\n    return x\n"
    )
    audit("it.py:f", "it.py:g", "--html", "card.html")
    text = Path("card.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>" not in text


def test_a_page_is_replaced_whole_and_a_device_is_left_a_device(audit) -> None:
    Path("card.html").write_text("old", encoding="utf-8")
    audit("mine.py:Odd", "--html", "card.html")
    assert Path("card.html").read_text(encoding="utf-8") == "old"
    if os.path.exists("/dev/null"):
        audit("mine.py:Sound", "--html", "/dev/null")
        assert not Path("/dev/null").is_file()


def test_a_code_is_explained(attnlab) -> None:
    said = attnlab("audit", "--explain", "future-by-value")
    assert (said.status, said.err) == (0, "")
    for text in (
        "future-by-value, of what it may see",
        "  says       An output does not change when a later token changes.",
        "  promise    causal: claimed with --promise causal",
        "  measures   Does an output move when a later token changes?",
        "  usually    the mask is missing",
        "  example    ",
        "  asked      also with --quick",
    ):
        assert text in said.out, text
    both = attnlab("audit", "--explain", "causal").out
    assert "future-by-value, of" in both
    assert "future-by-gradient, of" in both


def test_colors_are_for_terminals_and_signs_for_those_that_have_them(audit, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = audit("mine.py:Leaky").out
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = audit("mine.py:Leaky").out
    assert "\x1b[31m✗ future-by-value\x1b[0m" in colored
    assert "\x1b[32m✓ " in colored
    assert "\x1b[2m· " in colored
    assert bare(colored) == plain


def test_no_line_is_wider_than_the_screen(audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert max(len(line) for line in audit("mine.py:Leaky").out.splitlines()) <= 60


def test_a_terminal_is_told_what_is_going_on_and_the_line_is_taken_away(audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    said = audit("mine.py:Sound", "mine.py:Leaky")
    assert "1/2 mine.py:Sound: building …" in said.err
    assert re.search(r"2/2 mine\.py:Leaky: 1/\d+ future-by-value …", said.err)
    assert said.err.endswith("\r\x1b[K")


@pytest.fixture
def gpt2(mine: Path) -> str:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, n_positions=32, vocab_size=17, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained("gpt2")
    return "gpt2"


@pytest.mark.parametrize("what", ["gpt2", "gpt2/config.json"])
def test_a_hugging_face_model_is_audited_from_its_folder_or_configuration(what: str, gpt2: str, audit) -> None:
    said = audit(what, "--promise", "causal", "--json")
    told = json.loads(said.out)
    assert (said.status, said.err, told["subject"], told["kind"]) == (0, "", what, "language-model")
    assert next(one["status"] for one in told["findings"] if one["code"] == "future-by-value") == "kept"
    assert not [one["code"] for one in told["findings"] if one["status"] in ("broken", "error")]


def test_an_attention_is_swapped_into_a_model(gpt2: str, audit) -> None:
    kept = audit(gpt2, "--promise", "causal", "--swap", "softmax")
    assert (kept.status, kept.err) == (0, "")
    assert "gpt2 with softmax keeps what it promises" in kept.out
    lost = audit(gpt2, "--promise", "causal", "--swap", "zero-after-softmax")
    assert lost.status == 1
    assert "gpt2 with zero-after-softmax breaks causal" in lost.out
    assert "gru (mixer) cannot be swapped into a pretrained model" in refused(audit(gpt2, "--swap", "gru"))


def test_without_the_extra_a_model_says_what_installs_it(gpt2: str, audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "gpt2 is a Hugging Face model, which needs more: pip install 'attnlab[pretrained]'" in refused(audit(gpt2))
