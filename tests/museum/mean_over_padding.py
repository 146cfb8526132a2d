"""The sentence's mean is taken over the padding, too."""

from torch import Tensor, nn


class MeanOverPadding(nn.Module):
    promises = ("padding-invariant",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.token, self.sentence = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is not None:
            x = x * attention_mask[..., None]
        return self.token(x) + self.sentence(x.mean(dim=1, keepdim=True))
