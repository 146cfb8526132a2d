"""What does an audit say of one subject? Its findings, and the verdict that follows from them."""

from collections.abc import Iterator
from dataclasses import dataclass

from attnlab.records.finding import Finding


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an audit found."""

    subject: str
    kind: str
    guess: str
    """What it was taken for."""
    asked: str
    """Where it was asked, and under which limits."""
    promises: tuple[str, ...]
    """What it claims to keep, with what every module is taken to promise."""
    taken: tuple[str, ...]
    """Those of them that every module is taken to promise."""
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Every promise that can be asked of it is kept."""
        return not self.broken and not self.failed

    @property
    def broken(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.status == "broken")

    @property
    def kept(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.status == "kept")

    @property
    def failed(self) -> tuple[Finding, ...]:
        """Promises that it makes and that could not be measured."""
        claimed = {promise.partition(":")[0] for promise in self.promises}
        return tuple(one for one in self.findings if one.status == "error" and one.promise.partition(":")[0] in claimed)

    @property
    def unasked(self) -> tuple[str, ...]:
        """Promises that it makes and that nothing here could say anything about."""
        asked = {one.promise.partition(":")[0] for one in self.findings if one.status != "not-applicable"}
        return tuple(promise for promise in self.promises if promise.partition(":")[0] not in asked)

    @property
    def status(self) -> int:
        """What a command exits with: 0 all kept, 1 a promise broken, 2 a promise that could not be measured."""
        return 1 if self.broken else 2 if self.failed else 0

    @property
    def verdict(self) -> str:
        """The whole in a sentence."""
        if self.broken:
            return f"{self.subject} breaks {_promises(self.broken)}"
        if self.failed:
            return f"{self.subject} could not be asked whether it keeps {_promises(self.failed)}"
        return f"{self.subject} keeps what it promises, by {counted(len(self.kept), 'check')}"

    def __str__(self) -> str:
        """The verdict, and what is wrong."""
        return "\n".join((self.verdict, *(f"  {line}" for line in self._wrong())))

    def _wrong(self) -> Iterator[str]:
        for one in (*self.broken, *self.failed):
            yield f"{one.code}: {one.sentence}"
            if one.cause:
                yield f"  usually: {one.cause}"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "check"), counted(2, "check")
    ('1 check', '2 checks')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _promises(findings: tuple[Finding, ...]) -> str:
    names = list(dict.fromkeys(one.promise for one in findings))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
