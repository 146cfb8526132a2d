"""Asked for its weights, it goes another way, and that one forgets the mask."""

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class MaskOnlyWithoutWeights(nn.Module):
    promises = ("causal",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor, need_weights: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = self.query(x), self.key(x), self.value(x)
        if not need_weights:
            return scaled_dot_product_attention(q, k, v, is_causal=True)
        weights = (q @ k.mT / x.shape[-1] ** 0.5).softmax(dim=-1)
        return weights @ v, weights
