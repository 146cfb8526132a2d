"""What is left out while training? Drawn from a generator of its own, saved with the module's state."""

import torch
from torch import Tensor, nn

from attnlab.errors import BadSetting
from attnlab.randomness import Stream, stream


class Dropout(nn.Module):
    """x·m / (1 - p), each m 0 with chance p; x itself in evaluation."""

    def __init__(self, p: float, *, seed: int = 0) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise BadSetting(f"dropout={p} must be at least 0 and below 1")
        self.p = p
        self.generator = stream(seed, "dropout")

    def draw(self, stream: Stream) -> None:
        self.generator = stream("dropout")

    def forward(self, x: Tensor, /) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
        return x * kept / (1 - self.p)

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state)
