"""Writes audit.md, the page of every check, from the checks themselves: python docs/audit.py"""

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from attnlab.audits.audit import question_of
from attnlab.audits.probe import Probe
from attnlab.audits.probes import probes
from attnlab.audits.stages import STAGED
from attnlab.views.audit_card import FAMILIES

PAGE = Path(__file__).with_suffix(".md")
OPENING = """# What an audit checks

`attnlab audit WHAT` asks a mechanism whether it keeps its promises, and says for each one that is broken where, on
which smallest input, and what usually causes it. WHAT is a name of the catalog, or `path/to/mine.py:Name`: a module
from (batch, length, dim) vectors to the same shape or from integer ids to logits, a function of q, k and v, a score, a
normalizer or a merge; or a Hugging Face model, as a local folder or `config.json` (extra `pretrained`; nothing is
fetched). What it was taken for is printed first; `--as` and `--arg name=value` correct the guess.

| it says | which means |
|---|---|
| ✓ kept | it was promised, and it is so |
| ✗ broken | it was promised, and it is not so |
| · | nobody promised it, and this is how it is; or it cannot be asked of this one, because … |
| ! | it could not be measured: the code raised, ended its process, or took too long or too much memory |

Exit status: 0 where every promise is kept, 1 where one is broken, 2 where it could not be audited.

A promise comes from the catalog, from an attribute `promises = ("causal", …)` of the class, or from `--promise NAME`.
What every module is taken to promise unless `--no-promise NAME` says otherwise: {taken}. Nobody is
taken to be causal: where it was not promised, what is heard of the future is stated and not called broken.

Each check runs on a module of its own, in another process with a limit of time and memory, so that code that hangs,
prints, ends its process or eats memory is a sentence on the card. A module that exists only in memory,
`attnlab.audit(module)`, is asked where it is, without limits, and the card says so.

`attnlab audit FOLDER --swap WHAT` puts another attention into every layer of a Hugging Face model before it is asked:
a position, score, visibility or normalizer of the catalog (the model's mask stays, and what the variant leaves open is
as the model has it), or `mine.py:Name`, a function that is called as transformers calls one (module, query, key, value,
attention_mask, …) or with q, k and v, (batch, heads, tokens, features), and those of these words that it takes:
`attention_mask` (added to the scores), `mask`, `attn_mask` or `allowed` (True may look), `scaling`, `is_causal`,
`dropout`. A function that takes none of them loses the mask, and a promise `causal` is then broken.

In somebody's own tests, the fixture `audit` that comes with attnlab is one line:

```python
def test_mine(audit):
    audit("mine.py:Attention", promises=["causal"])
```

`attnlab audit --explain CODE` says what stands below. This page is written by `docs/audit.py`.
"""


def page() -> str:
    every = (*probes(), *STAGED)
    taken = ", ".join(dict.fromkeys(f"`{one.promise}`" for one in every if one.taken))
    return "\n".join([OPENING.format(taken=taken), *_table(every), "", *_families(every)]).rstrip("\n") + "\n"


def _table(every: tuple[Probe, ...]) -> Iterator[str]:
    yield "| code | promise | quick |"
    yield "|---|---|---|"
    for one in every:
        promise = f"`{one.promise}`" if one.promise else "states a fact"
        yield f"| [{one.code}](#{one.code}) | {promise} | {'yes' if one.quick else ''} |"


def _families(every: tuple[Probe, ...]) -> Iterator[str]:
    for family, title in FAMILIES.items():
        yield f"## {title[0].upper()}{title[1:]}"
        yield ""
        for one in every:
            if one.family == family:
                yield from _check(one)


def _check(one: Probe) -> Iterator[str]:
    yield f"### {one.code}"
    yield ""
    yield one.says
    yield ""
    taken = ", which every module is taken to make" if one.taken else ""
    command, _, sentence = one.example.partition(" says: ")
    rows = {
        "Promise": f"`{one.promise}`{taken}" if one.promise else "none, it states a fact",
        "Measures": question_of(one),
        "What usually breaks it": one.cause,
        "Example": f"`{command}` says: {sentence}" if one.example else "",
    }
    for name, words in rows.items():
        if words:
            yield from wrap(
                f"- {name}: {words}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"docs/{PAGE.name}")
