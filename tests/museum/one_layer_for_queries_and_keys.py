"""Keys come from the layer of the queries by a slip of the pen; the layer of the keys is left over."""

import torch
from torch import Tensor, nn


class OneLayerForQueriesAndKeys(nn.Module):
    promises = ("causal", "standard-attention")

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (
            part(x).view(b, n, self.n_heads, -1).transpose(1, 2) for part in (self.query, self.query, self.value)
        )
        scores = q @ k.mT / q.shape[-1] ** 0.5
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, d))
