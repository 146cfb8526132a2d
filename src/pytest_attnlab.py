"""In your own tests: does this module keep its promises? `def test_mine(audit): audit("mine.py:Attention")`

Stands beside the package and imports it only when it is used: pytest reads plug-ins before anything else, and a test
run that wants to check shapes, or to count coverage, must come first.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnlab.records.report import Report


@pytest.fixture
def audit(request: pytest.FixtureRequest) -> "Callable[..., Report]":
    """Audits as `attnlab.audit` does, and fails the test with what is broken: `audit(Mine(16), promises=["causal"])`.

    The path of a file counts from the folder of the tests' own file, or from where pytest has its root.
    """

    def checked(what: Any, **more: Any) -> "Report":
        __tracebackhide__ = True
        import attnlab
        from attnlab.errors import LabError

        try:
            report = attnlab.audit(_found(what, request), **more)
        except LabError as error:
            pytest.fail(f"{what} could not be audited: {error}", pytrace=False)
        if not report.ok:
            pytest.fail(str(report), pytrace=False)
        return report

    return checked


def _found(what: Any, request: pytest.FixtureRequest) -> Any:
    """A relative path means the same wherever pytest is started."""
    if not isinstance(what, str) or ".py" not in what:
        return what
    path, dot, rest = what.partition(".py")
    for folder in (request.path.parent, request.config.rootpath):
        if (folder / f"{path}.py").is_file():
            return f"{folder / path}{dot}{rest}"
    return what
