"""What did one do before attention?"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attnlab.oracles.projections import affine, sigma
from attnlab.oracles.tokens import Answer, Parameters, Run, Vector, stacked

Cell = Callable[[Vector, Vector], Vector]


def recurrent(x: Tensor, runs: Sequence[Run], *, p: Parameters) -> Answer:
    """y_i = W_o h_i, h_i = tanh(W x_i + b + U h_{i-1} + c)"""
    return _along(x, runs, p, lambda x, h: torch.tanh(_sum(p, x, h)))


def relu_recurrent(x: Tensor, runs: Sequence[Run], *, p: Parameters) -> Answer:
    """y_i = W_o h_i, h_i = max(W x_i + b + U h_{i-1} + c, 0)"""
    return _along(x, runs, p, lambda x, h: _sum(p, x, h).clamp(min=0))


def gru(x: Tensor, runs: Sequence[Run], *, p: Parameters) -> Answer:
    """y_i = W_o h_i, h = z ⊙ h' + (1 - z) ⊙ tanh(W x + b + r ⊙ (U h' + c)); r, z = σ(W x + b + U h' + c)"""

    def cell(x: Vector, h: Vector) -> Vector:
        # The rows of one map after another: of r, of z, of the new state.
        (xr, xz, xn), (hr, hz, hn) = _asks(p, x).chunk(3), _recalls(p, h).chunk(3)
        r, z = sigma(xr + hr), sigma(xz + hz)
        return z * h + (1 - z) * torch.tanh(xn + r * hn)

    return _along(x, runs, p, cell)


def _asks(p: Parameters, x: Vector) -> Vector:
    return p["cells.weight_ih_l0"] @ x + p["cells.bias_ih_l0"]


def _recalls(p: Parameters, h: Vector) -> Vector:
    return p["cells.weight_hh_l0"] @ h + p["cells.bias_hh_l0"]


def _sum(p: Parameters, x: Vector, h: Vector) -> Vector:
    return _asks(p, x) + _recalls(p, h)


def _along(x: Tensor, runs: Sequence[Run], p: Parameters, cell: Cell) -> Answer:
    """One token after another, from a state of zeros; padding leaves the state as it was."""
    output = []
    for tokens, run in zip(x, runs, strict=True):
        h = x.new_zeros(p["cells.weight_hh_l0"].shape[1])
        ys = []
        for i, t in enumerate(tokens):
            if "real" not in run.marks or run.marks["real"][i]:
                h = cell(t, h)
            ys.append(affine(p, "out", h))
        output.append(ys)
    return Answer(stacked(output))
