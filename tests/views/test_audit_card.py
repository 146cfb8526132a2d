"""Is a report card true to its report, and a drawn leak to what was measured?"""

import re
import xml.etree.ElementTree as ElementTree

from attnlab.records.finding import Finding
from attnlab.records.report import Report
from attnlab.views.audit_card import audit_card, leak, place, plain, said, tally
from attnlab.views.draw.html import html
from attnlab.views.draw.svg import labeled

SVG = "{http://www.w3.org/2000/svg}"


def finding(code="future-by-value", status="broken", family="sees", promise="causal", sentence="it leaks", **evidence):
    return Finding(
        code=code, promise=promise, family=family, status=status, sentence=sentence, cause="a mask", evidence=evidence
    )


def report(*findings: Finding) -> Report:
    return Report(
        subject="a <b>.py:It",
        kind="module",
        guess="taken as a module",
        asked="here",
        promises=("causal", "finite"),
        taken=("finite",),
        findings=findings,
    )


LEAK = {"map": [[1.0, 0.5, -1.0], [0.2, 1.0, 0.0], [0.0, 0.3, 1.0]], "pairs": [[0, 1], [0, 2]]}


def test_findings_stand_in_their_families_in_the_order_of_the_audit() -> None:
    card = audit_card(report(finding(), finding("cost", family="cost"), finding("other")))
    assert [(name, [one.code for one in some]) for name, some in card.families] == [
        ("what it may see", ["future-by-value", "other"]),
        ("what it costs", ["cost"]),
    ]
    assert card.claimed == ("causal",)


def test_a_leak_is_a_map_of_who_hears_whom() -> None:
    drawn = leak(finding(**LEAK))
    assert drawn is not None
    assert drawn.leaks == ((0, 1), (0, 2))
    assert drawn.values[0] == (1.0, 0.5, None)
    assert drawn.rows == drawn.columns == ("0", "1", "2")
    assert audit_card(report(finding(**LEAK))).leaks == {"future-by-value": drawn}


def test_what_was_not_measured_cell_by_cell_is_not_drawn() -> None:
    assert leak(finding()) is None
    assert leak(finding(map=LEAK["map"], pairs=[])) is None
    assert leak(finding(map=[[1.0, 2.0]], pairs=[[0, 1]])) is None


def test_the_place_names_what_is_known_of_it() -> None:
    assert place(finding(token=1, output=0, head=2, moved=0.1, pairs=[[0, 1], [0, 2]])) == (
        "head 2, output 0, token 1, 2 pairs in all"
    )
    assert place(finding(moved=0.1, setting={"length": 2})) == ""
    assert place(finding(sentence="output 0 hears token 1", output=0, token=1, heads=[0, 2])) == "heads 0 2"


def test_what_cannot_be_asked_says_why() -> None:
    assert said(finding(status="not-applicable", sentence="it returns no weights")) == (
        "not applicable, because it returns no weights"
    )


def test_evidence_is_what_json_can_say() -> None:
    odd = {"a": float("nan"), "b": (1, 2.5, [float("inf")]), 3: {"c": True, "d": None}, "e": 1 + 2j}
    assert plain(odd) == {"a": None, "b": [1, 2.5, [None]], "3": {"c": True, "d": None}, "e": "(1+2j)"}


def test_the_tally_names_what_there_is() -> None:
    assert tally(report(finding(), finding(status="kept"), finding(status="kept"))) == "2 kept, 1 broken"


def test_a_drawn_leak_has_a_square_for_each_cell_and_a_cross_for_each_leak() -> None:
    drawn = leak(finding(**LEAK))
    assert drawn is not None
    root = ElementTree.fromstring(labeled(drawn, rows="output", columns="token", title='"x" & <y>'))
    shades = [node.attrib["class"] for node in root.iter(f"{SVG}rect")]
    assert len(shades) == 9
    assert shades.count("leak") == 2
    assert sum(node.attrib["class"] == "cross" for node in root.iter(f"{SVG}path")) == 2
    told = [node.text.strip() for node in root.iter(f"{SVG}title") if node.text]
    assert "output 0, token 1: moved by 0.5 of the largest output, a leak" in told
    assert "output 0, token 2: not a number, a leak" in told
    assert "output 1, token 2: silent" in told
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    for node in root.iter(f"{SVG}rect"):
        assert float(node.attrib["x"]) + float(node.attrib["width"]) <= width
        assert float(node.attrib["y"]) + float(node.attrib["height"]) <= height


def test_a_long_leak_still_fits_a_page() -> None:
    n = 120
    values = [[1.0 if j <= i else 0.0 for j in range(n)] for i in range(n)]
    drawn = leak(finding(map=values, pairs=[[0, 1]]))
    assert drawn is not None
    root = ElementTree.fromstring(labeled(drawn, rows="output", columns="token"))
    assert float(root.attrib["width"]) < 600


def test_the_page_holds_every_finding_and_escapes_what_others_wrote() -> None:
    page = html([audit_card(report(finding(**LEAK), finding("second", sentence="a < b & c")))])
    assert "a &lt;b&gt;.py:It" in page
    assert "<b>" not in page
    assert "a &lt; b &amp; c" in page
    assert page.count("<svg") == 1
    assert page.count('<li class="broken">') == 2
    assert "promises</dt><dd>causal</dd>" in page


def test_the_same_report_gives_the_same_bytes_without_a_date() -> None:
    cards = [audit_card(report(finding(**LEAK)))]
    assert html(cards) == html(cards)
    assert not re.search(r"20\d\d-\d\d", html(cards))
