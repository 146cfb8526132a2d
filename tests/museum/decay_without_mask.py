"""A decay that falls with the signed distance and has no mask: towards the future it grows."""

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid


class DecayWithoutMask(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.gate = nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        fallen = logsigmoid(self.gate(x)).cumsum(dim=1)
        decay = torch.exp(fallen - fallen.mT)
        return (self.query(x) @ self.key(x).mT * decay) @ self.value(x)
