"""Does docs/json.md name every field that --json writes, and no other?"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
FREE = ("brings", "variant", "evidence")  # their keys are questions, or what a check measured
SMALL = ("--d-model", "16", "--n-heads", "2", "--length", "8", "--batch", "1", "--draw", "4")

SAID = {
    "attnlab.list": [["list"], ["list", "--faulty"], ["list", "--question", "score"]],
    "attnlab.show": [["show", "deberta", "--set", "normalizer=zero-after-softmax", *SMALL]],
    "attnlab.demo": [["demo"]],
    "attnlab.audit": [["audit", "attention", "--quick"]],
    "attnlab.audits": [["audit", "attention", "gru", "--quick"]],
    "attnlab.explanation": [["audit", "--explain", "causal"]],
}


def documented(text: str) -> dict[str, set[str]]:
    """The fields of each object; what is a list of maps has the fields of a map."""
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    fields = {name: set(re.findall(r"^\| `([^`]+)` \|", body, re.M)) for name, body in sections.items()}
    of_map = fields.pop("map")
    for name, known in fields.items():
        maps = {field for field in known if field.endswith("maps[]")}
        fields[name] = known - maps | {f"{field}.{inside}" for field in maps for inside in of_map}
    return fields


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Every field with its way to it; a list of plain values is one field."""
    if isinstance(value, dict) and path.rsplit(".", 1)[-1] not in FREE:
        for key, inside in value.items():
            yield from fields(inside, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inside in value:
            yield from fields(inside, f"{path}[]")
    else:
        yield path


@pytest.mark.parametrize("schema", SAID)
def test_every_field_is_documented_and_every_documented_field_is_there(schema: str, attnlab) -> None:
    known = documented(PAGE.read_text(encoding="utf-8"))[schema]
    found: set[str] = set()
    for words in SAID[schema]:
        said = attnlab(*words, "--json")
        assert (said.status, said.err) == (0, "")
        answer = json.loads(said.out)
        assert (answer["schema"], answer["version"]) == (schema, 1)
        found |= set(fields(answer))
    empty = {path for path in found if any(field.startswith(f"{path}[].") for field in known)}
    assert found - empty == known


def test_every_command_that_answers_in_json_has_its_section() -> None:
    assert set(documented(PAGE.read_text(encoding="utf-8"))) == set(SAID)


def test_a_field_that_nobody_documented_is_caught() -> None:
    page = "## attnlab.x\n\n| `a` | it |\n| `maps[]` | maps |\n\n## map\n\n| `rows` | names |\n"
    answer = {"a": 1, "b": [{"c": 2}], "maps": [{"rows": []}], "variant": {"score": "dot"}}
    assert set(fields(answer)) - documented(page)["attnlab.x"] == {"b[].c", "variant"}
