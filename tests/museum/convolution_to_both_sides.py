"""A convolution of 3 padded by 1 on both sides: every output hears the next token."""

from torch import Tensor, nn


class ConvolutionToBothSides(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mixed = nn.Conv1d(dim, dim, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.mixed(x.mT).mT
