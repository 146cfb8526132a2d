"""Does an audit say what it found, of whatever it is given, and does its page say what it looks for?"""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import attnlab
from attnlab.audits.audit import (
    audited,
    audited_in_stages,
    chosen,
    explained,
    known,
    question_of,
    report_of,
    taken,
)
from attnlab.audits.probes import NAMES, probes
from attnlab.audits.stages import STAGED
from attnlab.errors import BadSetting, LabError, Unknown
from attnlab.records.finding import Finding
from attnlab.records.report import Report
from attnlab.subjects.found import subject_of
from attnlab.views.audit_card import FAMILIES

DOCS = Path(__file__).parents[2] / "docs"


class Leaky(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim)

    def forward(self, x):
        return self.map(x) + x.mean(1, keepdim=True)


class Promising(Leaky):
    promises = ("causal",)


def of(report, code):
    return next(one for one in report.findings if one.code == code)


def test_ten_lines_audit_a_module_in_memory() -> None:
    report = attnlab.audit(Leaky(16), promises=["causal"], quick=True)
    assert not report.ok
    assert report.status == 1
    assert of(report, "future-by-value").status == "broken"
    assert str(report).startswith("Leaky breaks causal\n  future-by-value: output 0 hears token 1")
    assert "in this process and without limits" in report.asked


def test_a_module_that_is_asked_is_left_as_it_was() -> None:
    module = Leaky(16)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    drawn = torch.get_rng_state()
    attnlab.audit(module, quick=True)
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)


def test_causality_is_never_assumed() -> None:
    finding = of(attnlab.audit(Leaky(16), quick=True), "future-by-value")
    assert finding.status == "unclaimed"
    assert finding.sentence.endswith("a leak if this is meant as a decoder")


@pytest.mark.parametrize("what", [Leaky, lambda x: x.flip(1)], ids=["a class", "a function"])
def test_a_class_or_a_function_is_asked_in_a_process_of_its_own(what) -> None:
    report = attnlab.audit(what, promises=["causal"], quick=True)
    assert of(report, "future-by-value").status == "broken"
    assert "in a process of its own" in report.asked


def test_a_promise_may_stand_on_the_class_and_be_waived() -> None:
    assert of(attnlab.audit(Promising, quick=True), "future-by-value").status == "broken"
    assert of(attnlab.audit(Promising, waived=["causal"], quick=True), "future-by-value").status == "unclaimed"


def test_a_misspelled_promise_of_a_class_is_caught() -> None:
    class Misspelled(Leaky):
        promises = ("casual",)

    with pytest.raises(LabError, match="did you mean 'causal'"):
        attnlab.audit(Misspelled, quick=True)


def test_a_class_may_need_more_and_is_given_it() -> None:
    class Scaled(nn.Module):
        def __init__(self, dim, factor):
            super().__init__()
            self.map, self.factor = nn.Linear(dim, dim), factor

        def forward(self, x):
            return self.factor * self.map(x)

    with pytest.raises(LabError, match="needs factor"):
        attnlab.audit(Scaled, quick=True)
    assert attnlab.audit(Scaled, arguments={"factor": 2.0}, quick=True).ok


def test_what_cannot_be_called_is_told_how_an_adapter_looks() -> None:
    class Pair(nn.Module):
        def forward(self, left, right, *, third):
            return left

    with pytest.raises(LabError, match=r"neither vectors .* nor ids .*\n?Write an adapter: a class with"):
        attnlab.audit(Pair, quick=True)


@pytest.mark.parametrize(
    ("promise", "sentence"),
    [
        ("casual", "did you mean 'causal'"),
        ("hears-last", "is spelled hears-last:n"),
        ("causal:3", "is spelled causal"),
        ("cost:", "is spelled cost:n"),
        ("", "no promise is called ''"),
    ],
)
def test_an_unknown_promise_is_refused_before_anything_is_asked(promise: str, sentence: str) -> None:
    with pytest.raises((Unknown, BadSetting), match=sentence):
        audited("attention", promises=[promise])


def test_a_quick_audit_asks_the_core_and_what_was_claimed_in_so_many_words() -> None:
    quick = chosen(quick=True)
    assert all(one.quick for one in quick)
    more = chosen(quick=True, promises=["hears-last:4"])
    assert {one.code for one in more} - {one.code for one in quick} <= {
        one.code for one in probes() if one.promise.startswith("hears-last")
    }
    assert [one for one in probes() if one.promise.startswith("hears-last") and one not in more] == []
    assert chosen() == probes()


def test_every_probe_has_a_code_of_its_own_and_says_all_that_a_card_needs() -> None:
    every = probes()
    assert len({one.code for one in every}) == len(every) == len(NAMES)
    for one in every:
        assert one.family in FAMILIES
        assert one.says.endswith(".")
        assert one.says[0].isupper()
        assert question_of(one).endswith("?"), one.code
        assert one.example
        if one.promise:  # else it states a fact
            assert one.cause
            known(one.promise, valued=False)


def test_every_promise_of_the_issue_has_a_probe() -> None:
    spelled = (
        "causal",
        "batch-independent",
        "padding-invariant",
        "order-equivariant",
        "rows-sum-to-one",
        "nonnegative",
        "hidden-keys-weigh-nothing",
        "weights-are-used",
        "deterministic",
        "finite",
        "trainable",
        "leaves-input",
        "step-equals-whole",
        "fast-equals-explicit",
        "compiled-equals-eager",
        "agrees-with-twin",
        "agrees-with:WHAT",
        "standard-attention",
        "order-aware",
        "favors-near",
        "hears-last:4",
        "any-length",
        "cost:n^2",
    )
    for promise in spelled:
        known(promise)
    assert {"deterministic", "finite", "trainable", "leaves-input"} <= set(taken())


def test_a_code_or_a_promise_is_explained() -> None:
    assert [one.code for one in explained("future-by-value")] == ["future-by-value"]
    assert {one.promise for one in explained("causal")} == {"causal"}
    with pytest.raises(Unknown, match="did you mean 'future-by-value'"):
        explained("future-by-valu")


def report(**statuses: str) -> Report:
    findings = tuple(
        Finding(code=code, promise=code, family="sees", status=status, sentence="s")  # type: ignore[arg-type]
        for code, status in statuses.items()
    )
    return Report(subject="it", kind="module", guess="", asked="", promises=("a", "b"), taken=(), findings=findings)


def test_the_verdict_counts_what_was_promised_alone() -> None:
    assert report(a="kept", c="unclaimed", d="not-applicable", e="error").status == 0
    assert report(a="kept", b="broken", c="error").status == 1
    could_not = report(a="kept", b="error")
    assert (could_not.status, could_not.ok) == (2, False)
    assert could_not.verdict == "it could not be asked whether it keeps b"
    assert report(a="kept").verdict == "it keeps what it promises, by 1 check"
    assert report(a="kept", b="not-applicable").unasked == ("b",)
    assert report(a="kept", b="error").unasked == ()
    assert report(a="broken", b="broken").verdict == "it breaks a and b"


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location("audit_page", DOCS / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_the_checks_is_the_one_that_the_script_writes(writer) -> None:
    assert (DOCS / "audit.md").read_text(encoding="utf-8") == writer.page(), "run docs/audit.py"


def test_the_page_says_each_code_with_promise_cause_and_example(writer) -> None:
    for one in (*probes(), *STAGED):
        (section,) = (part for part in writer.page().split("\n### ") if part.startswith(f"{one.code}\n"))
        section = " ".join(section.replace("`", "").split())
        assert one.says in section
        assert one.example in section
        assert one.cause in section
        assert f"Promise: {one.promise}" in section or not one.promise


@pytest.mark.parametrize("probe", [one for one in probes() if one.code != "compiled"], ids=lambda one: one.code)
def test_an_example_says_what_happens(probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent)
    words, said = probe.example.split(" says: ", 1)
    what, *promised = words.removeprefix("attnlab audit ").split(" --promise ")
    finding = probe(subject_of(what, promises=(*taken(), *promised)))
    assert without_numbers(finding.sentence) == without_numbers(said)
    assert finding.status == ("unclaimed" if not probe.promise else finding.status)


def without_numbers(text: str) -> str:
    """What is measured may differ in its last places from one machine to another."""
    return re.sub(r"\d[\d.,e+-]*", "#", text)


def test_a_module_of_one_length_is_asked_by_every_probe_at_that_length() -> None:
    report = attnlab.audit(str(Path(__file__).parents[1] / "museum" / "positions_not_cut.py"))
    assert not [(one.code, one.sentence) for one in report.findings if one.status == "error"]


def test_a_probe_without_a_promise_is_nothing_to_claim() -> None:
    assert any(not one.promise for one in probes())
    with pytest.raises(Unknown) as said:
        known("")
    assert "" not in said.value.known


SCAFFOLD = "from attnlab.mechanisms.scaffold import *\n"
SLIPS = {
    "stage-1": "def attn_softmax(A):\n    return A.softmax(-2)\n",
    "stage-2": "def apply_causal_mask(A, mask):\n    return A * mask\n",
    "stage-3": "def attn_scaled(A, n_embd, n_heads):\n    return A / n_embd**0.5\n",
}


@pytest.mark.parametrize("stage", STAGED, ids=lambda one: one.code)
def test_the_example_of_a_stage_says_what_happens(stage, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SCAFFOLD + SLIPS[stage.code])
    report = report_of(audited_in_stages(str(path)))
    said = stage.example.split(" says: ", 1)[1]
    assert without_numbers(of(report, stage.code).sentence).startswith(without_numbers(said))
    assert (report.ok, report.status, len(report.findings)) == (False, 1, 3)


def test_a_file_that_follows_the_scaffold_passes_its_stages(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SCAFFOLD + "print('hello')\n")
    report = report_of(audited_in_stages(str(path)))
    assert [one.status for one in report.findings] == ["kept", "kept", "kept"]
    path.write_text("import sys; sys.exit(1)\n")
    with pytest.raises(LabError, match="SystemExit"):
        report_of(audited_in_stages(str(path)))
