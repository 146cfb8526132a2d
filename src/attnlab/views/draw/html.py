"""How does a report card look on a page? One file that needs no other, for light and dark, a phone and paper."""

import json
from collections.abc import Iterator, Sequence
from html import escape

from attnlab.records.finding import Finding
from attnlab.views.audit_card import AuditCard, place, plain, said, tally
from attnlab.views.draw.svg import labeled

SIGNS = {"kept": "✓", "broken": "✗", "error": "!", "unclaimed": "·", "not-applicable": "·"}
WORDS = {
    "kept": "kept",
    "broken": "broken",
    "error": "not measured",
    "unclaimed": "not claimed",
    "not-applicable": "not applicable",
}
LONGEST = 600  # signs of one number's worth of evidence; --json has all

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2128; --dim: #59636e; --line: #d8dee4; --soft: #f6f8fa;
  --good: #1a7f37; --bad: #b8350a; --bad-soft: #fff1eb; --good-soft: #eefaf1 }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1318; --ink: #e6eaef; --dim: #9aa5b1; --line: #2c343d;
  --soft: #171c22; --good: #5fd07f; --bad: #ff8f66; --bad-soft: #2b1811; --good-soft: #10231a } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 56rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 ui-sans-serif, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif }
h1, h2, p, ul, dl, figure { margin: 0 }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere }
h2 { margin: 2rem 0 .4rem; font-size: 1rem }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .88em; overflow-wrap: anywhere }
.dim { color: var(--dim) }
.verdict { margin: 1rem 0; padding: .7rem 1rem; border-left: .3rem solid; border-radius: .3rem;
  overflow-wrap: anywhere; font-weight: 600 }
.verdict .dim { font-weight: 400 }
.verdict.ok { border-color: var(--good); background: var(--good-soft) }
.verdict.not { border-color: var(--bad); background: var(--bad-soft) }
.about { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem }
.about dt { color: var(--dim) }
.about dd { margin: 0; overflow-wrap: anywhere }
.findings { list-style: none; padding: 0; border-top: 1px solid var(--line) }
.findings > li { display: grid; grid-template-columns: 1.2rem 13rem 1fr; gap: 0 .6rem; padding: .45rem 0;
  border-bottom: 1px solid var(--line) }
.findings p { overflow-wrap: anywhere }
.sign { font-weight: 700; text-align: center }
.kept > .sign { color: var(--good) }
.broken > .sign, .error > .sign, .broken > div > p:first-child { color: var(--bad) }
.unclaimed, .not-applicable { color: var(--dim) }
.word { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
figure { margin-top: .8rem; overflow-x: auto }
figure svg { display: block; max-width: 100%; height: auto }
figcaption { font-size: .88rem }
details { margin-top: .2rem; font-size: .88rem }
summary { cursor: pointer; color: var(--dim) }
details dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; padding: .3rem 0 .3rem 1rem }
details dd { margin: 0; overflow-wrap: anywhere }
article + article { margin-top: 3rem; border-top: .2rem solid var(--line); padding-top: 2rem }
footer { margin-top: 2.5rem; color: var(--dim); font-size: .88rem; overflow-wrap: anywhere }
@media (max-width: 40rem) {
  .findings > li { grid-template-columns: 1.2rem 1fr }
  .findings > li > div { grid-column: 2 }
  .about { grid-template-columns: 1fr; gap: 0 }
  .about dd + dt { margin-top: .4rem }
}
@media print {
  :root { --paper: #fff; --ink: #000; --dim: #444; --line: #bbb; --soft: #fff; --good: #116329; --bad: #a12d00;
    --bad-soft: #fff; --good-soft: #fff }
  @page { margin: 18mm 15mm }
  body { max-width: none; padding: 0; font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact }
  .findings > li, figure, .verdict { break-inside: avoid }
  h2 { break-after: avoid }
  details { display: none }
}
"""


def html(cards: Sequence[AuditCard], unread: Sequence[tuple[str, str]] = ()) -> str:
    """The page: no script, and nothing asked of another host; `unread` could not be audited, and says why."""
    title = ", ".join([*(card.report.subject for card in cards), *(name for name, _ in unread)])
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Audit of {escape(title)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            *(line for card in cards for line in _article(card)),
            *(line for name, why in unread for line in _unread(name, why)),
            '<footer>✓ kept, ✗ broken, · not claimed or not applicable. "attnlab audit --explain CODE" says what a'
            " check measures and what usually breaks it.</footer>",
            "</body>",
            "</html>\n",
        ]
    )


def _unread(name: str, why: str) -> Iterator[str]:
    yield f"<article><h1>{escape(name)}</h1>"
    yield f'<p class="verdict not">could not be audited <span class="dim">{escape(why)}</span></p></article>'


def _article(card: AuditCard) -> Iterator[str]:
    report = card.report
    yield "<article>"
    yield f"<h1>{escape(report.subject)}</h1>"
    verdict = "ok" if report.ok else "not"
    yield f'<p class="verdict {verdict}">{escape(report.verdict)} <span class="dim">({tally(report)})</span></p>'
    yield '<dl class="about">'
    rows = {
        "taken as": report.guess.removeprefix("taken as "),
        "promises": ", ".join(card.claimed) or "nothing of its own",
        "like every module": ", ".join(report.taken),
        "not looked at": ", ".join(report.unasked),
        "asked": report.asked,
    }
    for name, words in rows.items():
        if words:
            yield f"<dt>{name}</dt><dd>{escape(words)}</dd>"
    yield "</dl>"
    for family, findings in card.families:
        yield f"<section><h2>{escape(family)}</h2>"
        yield '<ul class="findings">'
        for finding in findings:
            yield from _finding(finding, card)
        yield "</ul></section>"
    yield "</article>"


def _finding(finding: Finding, card: AuditCard) -> Iterator[str]:
    yield f'<li class="{finding.status}">'
    yield f'<span class="sign" aria-hidden="true">{SIGNS[finding.status]}</span>'
    yield f'<span><span class="word">{WORDS[finding.status]}: </span><code>{escape(finding.code)}</code></span>'
    yield f"<div><p>{escape(said(finding))}</p>"
    if finding.status == "broken":
        where = place(finding)
        yield f'<p><span class="dim">promised</span> {escape(finding.promise)}</p>'
        yield f'<p><span class="dim">usually</span> {escape(finding.cause)}</p>' if finding.cause else ""
        yield f'<p><span class="dim">where</span> {escape(where)}</p>' if where else ""
    if finding.code in card.leaks:
        picture = labeled(
            card.leaks[finding.code], rows="output", columns="token", title=f"{finding.code}: who hears whom"
        )
        yield f"<figure>{picture}"
        yield '<figcaption class="dim">A row is an output, a column a token; × is heard and should not be.'
        yield "</figcaption></figure>"
    yield from _evidence(finding)
    yield "</div></li>"


def _evidence(finding: Finding) -> Iterator[str]:
    if not finding.evidence:
        return
    yield "<details><summary>measured</summary><dl>"
    for name, value in finding.evidence.items():
        words = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
        words = words if len(words) <= LONGEST else f"{words[:LONGEST]} …"
        yield f"<dt>{escape(str(name))}</dt><dd><code>{escape(words)}</code></dd>"
    yield "</dl></details>"
