"""attnlab: an attention laboratory. An idea about attention, in ten lines, and what it does.

What is named here is imported when it is first used, so that the command line starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.audits.audit import audit
    from attnlab.mechanisms import scaffold
    from attnlab.mechanisms.tokens import Pairs, Tokens
    from attnlab.mechanisms.visibility import Visible
    from attnlab.subjects import attention, decoder

__all__ = ["Pairs", "Tokens", "Visible", "attention", "audit", "decoder", "scaffold"]

_HOME = {
    "Pairs": "mechanisms.tokens",
    "Tokens": "mechanisms.tokens",
    "Visible": "mechanisms.visibility",
    "attention": "subjects",
    "audit": "audits.audit",
    "decoder": "subjects",
}


def __getattr__(name: str) -> Any:
    if name == "scaffold":
        return import_module("attnlab.mechanisms.scaffold")
    if name == "__version__":
        return import_module("importlib.metadata").version("attnlab")
    if name not in _HOME:
        raise AttributeError(f"module 'attnlab' has no attribute '{name}'")
    return getattr(import_module(f"attnlab.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
