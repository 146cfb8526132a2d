"""An attention swapped into a pretrained decoder answers its call and leaves the mask lying."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


def _unmasked(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **told: Any) -> Any:
    return scaled_dot_product_attention(q, k, v).transpose(1, 2), None


class SwapThatLosesItsMask(nn.Module):
    promises = ("causal",)

    def __init__(self) -> None:
        from transformers import AttentionInterface, GPT2Config, GPT2LMHeadModel

        super().__init__()
        AttentionInterface.register("unmasked", _unmasked)
        config = GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=32, vocab_size=11)
        self.model = GPT2LMHeadModel(config)
        self.model.set_attn_implementation("unmasked")

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids).logits
        return logits
