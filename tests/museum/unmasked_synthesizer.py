"""A dense synthesizer writes a weight for every position from one token alone, and nobody masks them."""

import torch
from torch import Tensor, nn


class UnmaskedSynthesizer(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int, length: int) -> None:
        super().__init__()
        self.first, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.second = nn.Linear(dim, length)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.second(torch.relu(self.first(x)))[..., : x.shape[1]]
        return scores.softmax(dim=-1) @ self.value(x)
