"""Which Hugging Face model is meant? A local folder or a configuration becomes a module; nothing is fetched."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from attnlab.catalog import NAMES
from attnlab.errors import LabError, UserCodeError
from attnlab.subjects.files import in_one_line

CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "*.bin")


def is_model(what: str) -> bool:
    """Whether it is a folder or a configuration, by its looks; ./attention is one where attention is a name of ours."""
    if "/" in what and ".py" not in what and "(" not in what:
        return True
    path = Path(what)
    return (path.is_dir() and what not in NAMES) or (path.suffix == ".json" and path.is_file())


def maker(what: str) -> Callable[[int], nn.Module]:
    """The model as it was saved, or as its configuration alone would have it drawn."""
    path = Path(what)
    if not path.exists():
        raise LabError(f"there is no folder or configuration {what}; a model is given by one that lies here")
    file = path / CONFIG if path.is_dir() else path
    if not file.is_file():
        raise LabError(f"{what} is a folder without a {CONFIG}; a folder that save_pretrained has written has one")
    try:
        import transformers
    except ImportError as error:
        raise LabError(
            f"{what} is a Hugging Face model, which needs more: pip install 'attnlab[pretrained]'"
        ) from error
    with _told_as_ours(what):
        config = transformers.AutoConfig.from_pretrained(str(file), local_files_only=True)
        name = next(iter(config.architectures or ()), "AutoModel")
        kind: Any = getattr(transformers, name, transformers.AutoModel)
    if not (path.is_dir() and any(found for pattern in WEIGHTS for found in path.glob(pattern))):
        return lambda draw: kind.from_config(config) if hasattr(kind, "from_config") else kind(copy.deepcopy(config))
    with _told_as_ours(what):
        saved = kind.from_pretrained(str(path), local_files_only=True)
    return lambda draw: copy.deepcopy(saved)


@contextmanager
def _told_as_ours(what: str) -> Iterator[None]:
    """Its errors in one line, and its remarks not at all."""
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    except Exception as error:
        raise UserCodeError(f"{what} could not be loaded: {in_one_line(error)}") from error
    finally:
        log.setLevel(level)
