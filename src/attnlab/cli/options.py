"""Which options mean the same in every command?"""

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="As one JSON object.")]
