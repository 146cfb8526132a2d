"""What can go wrong, said in a sentence: what was given, why it cannot be, what would work."""

from collections.abc import Iterable
from difflib import get_close_matches


class LabError(Exception):
    """Anything attnlab refuses; the command line prints the sentence and exits with 2."""


class Refused(LabError):
    """A request that contradicts itself, or that a part says it cannot honor."""


class BadSetting(LabError):
    """A setting that is wrong, missing, or not among those that exist."""


class UserCodeError(LabError):
    """A reader's own file failed; the sentence is its error and its line, not ours."""


class Unknown(LabError):
    """A name that does not exist, with the nearest one that does."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, see: str = "") -> None:
        self.name, self.known = name, sorted(known)
        near = get_close_matches(name, self.known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known: {listed(self.known)}"
        super().__init__(f"no {kind} is called '{name}'; {hint}{f' ({see})' if see else ''}")


def listed(names: Iterable[str]) -> str:
    """The names, as a sentence wants them."""
    return ", ".join(names) or "none"


def divides(whole: int, parts: int, *, of: str, into: str) -> int:
    """whole / parts, or the sentence that says which sizes would do."""
    if parts < 1 or whole < 1:
        raise BadSetting(f"{of}={whole} and {into}={parts} must both be at least 1")
    if whole % parts:
        below, above = whole - whole % parts, whole - whole % parts + parts
        near = f"{below} and {above}" if below else f"{above} and {above + parts}"
        raise BadSetting(f"{of}={whole} does not divide into {into}={parts}; the nearest that do are {near}")
    return whole // parts
