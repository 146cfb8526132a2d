"""Words in, words out: one file per command, and the one place where an error becomes a sentence."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from attnlab.cli.demo import demo
from attnlab.cli.list import list_
from attnlab.cli.quick import Command, Group
from attnlab.cli.show import show
from attnlab.errors import LabError

REFUSED, INTERRUPTED, NOBODY_LISTENS = 2, 130, 141

app = typer.Typer(
    cls=Group,
    invoke_without_command=True,
    rich_markup_mode=None,  # plain help starts in half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def attnlab(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Say which attnlab this is.")] = False,
) -> None:
    """An attention laboratory: what does an idea about attention do, and is that true?

    WHAT is a name (attnlab list shows all), a part with settings as in "window(last=16)", or your own
    file.py:name.
    """
    if version:
        from importlib.metadata import version as version_of

        print(f"attnlab {version_of('attnlab')}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


app.command("list", cls=Command)(list_)
app.command("show", cls=Command)(show)
app.command("demo", cls=Command)(demo)


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command and says how it went: 0, 1 for a check that failed, 2 for what was refused."""
    try:
        status: Any = app(args=words, prog_name="attnlab", standalone_mode=False)
        sys.stdout.flush()
        return int(status or 0)
    except LabError as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _nobody_listens()
    except SystemExit as end:  # typer's own: a completion was written, or the reader went away
        return end.code if isinstance(end.code, int) else REFUSED if end.code else 0
    except Exception as error:
        said = getattr(error, "format_message", None)
        if said is None:
            raise
        # Words that typer could not read.
        command = getattr(getattr(error, "ctx", None), "command_path", "attnlab")
        return _refuse(f"{' '.join(said().split())} ({command} --help says more)")


def _refuse(sentence: str) -> int:
    from attnlab.cli.screen import screen

    print(screen(sys.stderr).spelled(f"attnlab: {sentence}"), file=sys.stderr)
    return REFUSED


def _nobody_listens() -> int:
    """What is left to write goes nowhere, or Python would complain of it on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return NOBODY_LISTENS
