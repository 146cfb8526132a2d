"""The input is normalized in place: whoever called it finds another input."""

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class NormInPlace(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x -= x.mean(dim=-1, keepdim=True)
        return scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
