"""Words in, words out: one file per command, and the one place where an error becomes a sentence."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from attnlab.cli.audit import audit
from attnlab.cli.demo import demo
from attnlab.cli.list import list_
from attnlab.cli.quick import Command, Group
from attnlab.cli.screen import NOBODY_LISTENS, screen
from attnlab.cli.show import show
from attnlab.errors import LabError

REFUSED, INTERRUPTED = 2, 130

app = typer.Typer(
    cls=Group,
    rich_markup_mode=None,  # plain help starts in half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def say_version(wanted: bool) -> bool:
    if not wanted:
        return False
    from importlib.metadata import version

    print(f"attnlab {version('attnlab')}")
    raise typer.Exit


@app.callback()
def attnlab(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=say_version, help="Say which attnlab this is.")
    ] = False,
) -> None:
    """An attention laboratory: what does an idea about attention do, and is that true?

    WHAT is a name (attnlab list shows all), a part with settings as in "window(last=16)", or your own
    file.py:name.
    """


app.command("list", cls=Command)(list_)
app.command("show", cls=Command)(show)
app.command("audit", cls=Command)(audit)
app.command("demo", cls=Command)(demo)


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command and says how it went: 0, 1 for a check that failed, 2 for what was refused."""
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    given = sys.argv[1:] if words is None else words
    try:
        status: Any = app(args=given or ["--help"], prog_name="attnlab", standalone_mode=False)
    except LabError as error:
        status = _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except SystemExit as end:  # typer's own, after it wrote a completion or its reader went away
        status = end.code
    except OSError as error:
        status = _refuse(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except Exception as error:
        said = getattr(error, "format_message", None)
        if said is None:
            raise
        # Words that typer could not read.
        command = getattr(getattr(error, "ctx", None), "command_path", "attnlab")
        status = _refuse(f"{' '.join(said().split())} ({command} --help says more)")
    return int(status or 0) if _heard() else int(status or NOBODY_LISTENS)


def _refuse(sentence: str) -> int:
    print(screen(sys.stderr).spelled(f"attnlab: {sentence}"), file=sys.stderr)
    return REFUSED


def _heard() -> bool:
    """Whether what was written arrived; if not, the rest goes nowhere, or Python would complain on its way out."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
