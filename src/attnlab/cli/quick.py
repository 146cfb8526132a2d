"""How are words read without waiting? To read one, typer imports pydantic, which takes longer than typer itself.

Its commands are asked here to read words, numbers and flags by themselves; a typer that would not import
pydantic is left alone.
"""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command that starts at once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _teach(self.get_params(ctx))
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """The same for the command that holds the others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _teach(self.get_params(ctx))
        return super().parse_args(ctx, args)


class _Reader:
    """Stands where typer keeps what turns words into values."""

    def __init__(self, kind: type, least: float | None, most: float | None) -> None:
        self.kind, self.least, self.most = kind, least, most

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        if value is None:
            return [] if param.multiple else None
        if param.multiple:
            return [self.one(word, param, ctx) for word in value]
        return self.one(value, param, ctx)

    def one(self, word: Any, param: Any, ctx: Any) -> Any:
        if self.kind not in (int, float):
            return word
        try:
            number = self.kind(word)
        except ValueError:
            what = "whole number" if self.kind is int else "number"
            raise typer.BadParameter(f"'{word}' is not a {what}.", ctx=ctx, param=param) from None
        if number != number:
            raise typer.BadParameter(f"'{word}' is not a number.", ctx=ctx, param=param)
        below, above = self.least is not None and number < self.least, self.most is not None and number > self.most
        if below or above:
            bound = f"at least {self.least}" if below else f"at most {self.most}"
            raise typer.BadParameter(f"{number} is not allowed; {bound}.", ctx=ctx, param=param)
        return number


KINDS: dict[Any, type] = {str: str, list[str]: str, int: int, float: float, bool: bool}


def _teach(params: list[Any]) -> None:
    for param in params:
        kind = KINDS.get(getattr(getattr(param, "type_descriptor", None), "annotation", None))
        if kind is not None and getattr(param, "_runtime_param", param) is None:
            param._runtime_param = _Reader(kind, param.min, param.max)
