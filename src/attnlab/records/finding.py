"""What did a check find? The plain type that audits write, cards show and runs keep."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["kept", "broken", "unclaimed", "not-applicable", "error"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence about one subject, and the numbers behind it."""

    code: str
    promise: str
    family: str
    status: Status
    sentence: str
    cause: str = ""
    """What usually causes it, where it is broken."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Plain numbers, words and lists: the smallest input that breaks it, the place, what was measured."""
