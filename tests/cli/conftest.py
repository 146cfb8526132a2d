"""Commands are run in this process, as main() would."""

from collections.abc import Callable
from typing import NamedTuple

import pytest


class Said(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def attnlab(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    from attnlab.cli import main

    def run(*words: str) -> Said:
        status = main(words)
        return Said(status, *capsys.readouterr())

    return run
