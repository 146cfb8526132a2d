"""How is a reader's module called? With what its signature accepts, and no more."""

import inspect
from typing import Any

from torch import Tensor, nn

from attnlab.errors import Refused
from attnlab.mechanisms.tokens import Tokens
from attnlab.shapes import Memory, Vectors


class Adapted(nn.Module):
    """A module of (x) as a mixer: it is told of memory and tokens only what it can be told."""

    def __init__(self, inside: Any, accepts: frozenset[str]) -> None:
        super().__init__()
        self.inside, self.accepts = inside, accepts

    def forward(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Vectors:
        told = {"memory": memory, "tokens": tokens, "memory_tokens": memory_tokens}
        if memory is not None and "memory" not in self.accepts:
            raise Refused(f"{type(self.inside).__name__} takes no memory, so it cannot attend to one")
        y: Tensor | tuple[Tensor, ...] = self.inside(
            x, **{name: value for name, value in told.items() if name in self.accepts}
        )
        first = y if isinstance(y, Tensor) else y[0]
        if first.shape != x.shape:
            raise Refused(
                f"{type(self.inside).__name__} was given {tuple(x.shape)} and returned {tuple(first.shape)};"
                " a mixer returns the shape it was given"
            )
        return first


def adapted(mixer: Any) -> Any:
    """The mixer itself where it can be told everything, an adapter around it where it cannot."""
    call = mixer.forward if isinstance(mixer, nn.Module) else mixer
    wanted = inspect.signature(call).parameters
    everything = {"memory", "tokens", "memory_tokens"}
    any_word = any(one.kind is one.VAR_KEYWORD for one in wanted.values())
    accepts = frozenset(everything if any_word else everything & set(wanted))
    return mixer if accepts == everything and isinstance(mixer, nn.Module) else Adapted(mixer, accepts)
