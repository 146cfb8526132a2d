"""How is a part with settings written? `window(last=16)`, `causal & window(last=16) | prefix(8)`.

Read with `ast`, literals only; nothing is ever evaluated.
"""

import ast
import re
from dataclasses import dataclass
from typing import Any

from attnlab.errors import BadSetting, LabError

# A catalog name is words joined by hyphens (longer than Python allows), a reader's own part is file.py:Name.
_NAME = re.compile(
    r"(?P<file>(?:[A-Za-z]:)?[^()|&,:'\"]*\.py)(?::(?P<within>[A-Za-z_]\w*))?|[a-z0-9]+(?:-[a-z0-9]+)*", re.I
)


@dataclass(frozen=True)
class Part:
    """One name with its settings."""

    name: str
    positional: tuple[Any, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        inside = [repr(value) for value in self.positional]
        inside += [f"{name}={value!r}" for name, value in self.settings]
        return f"{self.name}({', '.join(inside)})" if inside else self.name


@dataclass(frozen=True)
class Both:
    """left & right"""

    left: "Tree"
    right: "Tree"


@dataclass(frozen=True)
class Either:
    """left | right"""

    left: "Tree"
    right: "Tree"


Tree = Part | Both | Either


def part(text: str) -> Part:
    """A single part; a combination is refused."""
    tree = expression(text)
    if not isinstance(tree, Part):
        raise BadSetting(f"'{text}' combines parts with & or |; only visibility can be combined")
    return tree


def expression(text: str) -> Tree:
    """Parts combined with & and |; & binds tighter, parentheses group."""
    reader = _Reader(text)
    try:
        tree = reader.either()
    except RecursionError:
        raise BadSetting(f"'{text[:20]} …' is nested too deeply") from None
    if reader.rest():
        raise reader.wrong(f"what is '{reader.rest()}' after it?")
    return tree


def parts(tree: Tree) -> list[Part]:
    """Every part named in the tree, left to right."""
    return [tree] if isinstance(tree, Part) else parts(tree.left) + parts(tree.right)


def literal(text: str) -> Any:
    """A literal as Python writes it; a bare word is a string (for `--arg on=k`)."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


class _Reader:
    """Reads the small grammar from left to right; the settings inside parentheses are left to `ast`."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def rest(self) -> str:
        return self.text[self.at :].strip()

    def wrong(self, why: str) -> LabError:
        return BadSetting(f"cannot read '{self.text}': {why} Write name, name(setting=value) or a & b | c.")

    def takes(self, sign: str) -> bool:
        if not self.rest().startswith(sign):
            return False
        self.at = self.text.index(sign, self.at) + len(sign)
        return True

    def either(self) -> Tree:
        tree = self.both()
        while self.takes("|"):
            tree = Either(tree, self.both())
        return tree

    def both(self) -> Tree:
        tree = self.one()
        while self.takes("&"):
            tree = Both(tree, self.one())
        return tree

    def one(self) -> Tree:
        if self.takes("("):
            tree = self.either()
            if not self.takes(")"):
                raise self.wrong("a parenthesis is not closed.")
            return tree
        self.at += len(self.text[self.at :]) - len(self.text[self.at :].lstrip())
        found = _NAME.match(self.text, self.at)
        if not found:
            raise self.wrong("a name is missing." if not self.rest() else f"'{self.rest()}' is not a name.")
        self.at = found.end()
        return self.settings(found.group()) if self.text.startswith("(", self.at) else Part(found.group())

    def settings(self, name: str) -> Part:
        """The parenthesis after a name: as far as it takes for Python to read it as one call."""
        for end in (k + 1 for k in range(self.at, len(self.text)) if self.text[k] == ")"):
            try:
                call = ast.parse("f" + self.text[self.at : end], mode="eval").body
            except (SyntaxError, ValueError):
                continue
            if not isinstance(call, ast.Call):
                continue
            self.at = end
            try:
                positional = tuple(ast.literal_eval(value) for value in call.args)
                named = tuple((str(word.arg), ast.literal_eval(word.value)) for word in call.keywords if word.arg)
            except ValueError as why:
                raise self.wrong("settings are literals: numbers, 'strings', True, False, None, tuples.") from why
            if len(named) < len(call.keywords):
                raise self.wrong("** is not a setting.")
            return Part(name, positional, named)
        raise self.wrong(f"the settings of '{name}' are not closed, or not written as setting=value.")
