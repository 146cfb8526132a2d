"""What did one do before attention? A state that every token changes."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.errors import Refused
from attnlab.mechanisms.tokens import Tokens
from attnlab.randomness import Stream, by_width
from attnlab.shapes import Memory, Vectors

State = Float[Tensor, "1 b w"]


class Recurrent(nn.Module):
    """y_i = W_o h_i, h_i = cells(x_i, h_{i-1}), h_{-1} = 0; padding leaves the state as it was."""

    def __init__(self, cells: nn.RNN | nn.GRU) -> None:
        super().__init__()
        self.cells = cells
        self.out = nn.Linear(cells.hidden_size, cells.input_size)

    def draw(self, stream: Stream) -> None:
        for name, parameter in self.cells.named_parameters():
            generator = stream(f"cells.{name}")
            if name.startswith("bias"):
                parameter.zero_()
            elif name.startswith("weight_hh"):
                for gate in parameter.split(self.cells.hidden_size):
                    nn.init.orthogonal_(gate, generator=generator)
            else:
                parameter.normal_(0.0, by_width(parameter), generator=generator)

    def forward(
        self,
        x: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> Vectors:
        return self.step(x, self.start(x, memory), tokens=tokens)[0]

    def start(
        self,
        like: Vectors,
        memory: Memory | None = None,
        *,
        tokens: Tokens | None = None,
        memory_tokens: Tokens | None = None,
    ) -> State:
        if memory is not None:
            raise Refused("a recurrent mixer reads one run from left to right, so it cannot attend to a memory")
        return like.new_zeros(1, len(like), self.cells.hidden_size)

    def step(self, x: Vectors, state: State, *, tokens: Tokens | None = None) -> tuple[Vectors, State]:
        if tokens is None or "real" not in tokens.marks:
            h, state = self.cells(x, state)
            return self.out(h), state
        real = tokens.marks["real"].bool().expand(len(x), -1)
        # Real tokens first, as if they stood alone; then every place holds the state after the real ones up to it.
        alone = real.int().argsort(dim=1, descending=True, stable=True)
        h, _ = self.cells(torch.take_along_dim(x, alone[..., None], dim=1), state)
        states = torch.cat([state[0, :, None].to(h.dtype), h], dim=1)
        held = torch.take_along_dim(states, real.cumsum(dim=1)[..., None], dim=1)
        return self.out(held), held[None, :, -1].contiguous()


def recurrent(*, d_model: int) -> Recurrent:
    """h_i = tanh(W x_i + b + U h_{i-1} + c)"""
    return Recurrent(nn.RNN(d_model, d_model, batch_first=True))


def relu_recurrent(*, d_model: int) -> Recurrent:
    """h_i = max(W x_i + b + U h_{i-1} + c, 0)"""
    return Recurrent(nn.RNN(d_model, d_model, nonlinearity="relu", batch_first=True))


def gru(*, d_model: int) -> Recurrent:
    """h_i = z ⊙ h_{i-1} + (1 - z) ⊙ tanh(W x_i + b + r ⊙ (U h_{i-1} + c)), r and z gates of x_i and h_{i-1}

    Each gate is σ(W x_i + b + U h_{i-1} + c) with maps of its own (arXiv 1406.1078, r applied after U as in cuDNN).
    """
    return Recurrent(nn.GRU(d_model, d_model, batch_first=True))
