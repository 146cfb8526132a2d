"""What is a probe? A question with a measurement, and the finding that its answer becomes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from attnlab.records.finding import Finding, Status
from attnlab.subjects.subject import Subject

Family = Literal["sees", "independence", "order", "weights", "agreement", "numbers", "learning", "cost"]


class Held(NamedTuple):
    """It was measured, and it is so."""

    sentence: str
    evidence: Mapping[str, Any] = {}


class Broke(NamedTuple):
    """It was measured, and it is not so: where, by how much, on which input."""

    sentence: str
    evidence: Mapping[str, Any] = {}
    cause: str = ""
    """What this break comes from, where its behavior tells; else the probe's usual cause is said."""


class Silent(NamedTuple):
    """It cannot be asked of this subject, because …"""

    reason: str


Outcome = Held | Broke | Silent


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A promise in plain words, how it is measured, and what usually breaks it."""

    code: str
    promise: str
    family: Family
    says: str
    """The promise as a sentence."""
    cause: str
    """What usually causes a break."""
    look: Callable[[Subject], Outcome]
    quick: bool = False
    """Among the core promises that are looked at in two seconds."""
    taken: bool = False
    """What every module is taken to promise unless it says otherwise."""
    said: bool = False
    """Only broken where the promise was made in so many words, and not merely taken."""
    example: str = ""
    """A line that shows the probe at work, for its page: what to audit, and what it then says."""
    patience: float = 1.0
    """How many times as long as others it may take."""
    meant: str = field(default="a fault if this was meant to be kept")
    """What a break means where nobody claimed the promise, after "…:"."""

    def __call__(self, subject: Subject) -> Finding:
        outcome = self.look(subject)
        if isinstance(outcome, Silent):
            return self.finding("not-applicable", outcome.reason)
        claimed = subject.claims(self.promise) and not (self.said and self.promise in subject.taken)
        held = isinstance(outcome, Held)
        status: Status = ("kept" if held else "broken") if claimed else "unclaimed"
        sentence = outcome.sentence if held or claimed else f"{outcome.sentence}: {self.meant}"
        cause = (outcome.cause if isinstance(outcome, Broke) else "") or self.cause
        return self.finding(status, sentence, dict(outcome.evidence), cause if status == "broken" else "")

    def finding(
        self, status: Status, sentence: str, evidence: Mapping[str, Any] | None = None, cause: str = ""
    ) -> Finding:
        return Finding(
            code=self.code,
            promise=self.promise,
            family=self.family,
            status=status,
            sentence=sentence,
            cause=cause,
            evidence=evidence or {},
        )
