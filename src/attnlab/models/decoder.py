"""The decoder: embeddings, blocks of a mixer and a small network, and a head that names the next token."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.errors import Refused
from attnlab.mechanisms.dropout import Dropout
from attnlab.mechanisms.parts import StepsThrough, Weighs
from attnlab.mechanisms.positions import Absolute
from attnlab.mechanisms.tokens import Tokens
from attnlab.randomness import initialize, undisturbed
from attnlab.shapes import Ids, Logits, Vectors, Weights

# layers, heads, width
SIZES = {"nano": (3, 3, 48), "small": (4, 8, 256)}
SPREAD = 0.02


class Block(nn.Module):
    """x + mixer(norm x), then x + network(norm x)."""

    def __init__(self, *, mixer: Any, d_model: int, d_hidden: int, dropout: float) -> None:
        super().__init__()
        self.before_mixer, self.before_network = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.mixer = mixer
        self.widen, self.narrow = nn.Linear(d_model, d_hidden), nn.Linear(d_hidden, d_model)
        self.bend = nn.GELU(approximate="tanh")
        self.drop_mixed, self.drop_made = Dropout(dropout), Dropout(dropout)

    def forward(self, x: Vectors, *, tokens: Tokens | None = None) -> Vectors:
        return self.network(x + self.drop_mixed(self.mixer(self.before_mixer(x), tokens=tokens)))

    def network(self, x: Vectors) -> Vectors:
        made = self.narrow(self.bend(self.widen(self.before_network(x))))
        return x + self.drop_made(made)


class Decoder(nn.Module):
    """Logits of the next token. It is given its mixers, one a layer, and never looks one up by name."""

    def __init__(
        self,
        *,
        vocab: int,
        d_model: int,
        mixers: Sequence[Any],
        d_hidden: int,
        absolute: Absolute | None = None,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with undisturbed():
            self.embedding = nn.Embedding(vocab, d_model)
            self.absolute = absolute
            self.drop = Dropout(dropout)
            blocks = [Block(mixer=mixer, d_model=d_model, d_hidden=d_hidden, dropout=dropout) for mixer in mixers]
            self.n_layers = len(blocks)
            self.blocks: Iterable[Block] = nn.ModuleList(blocks)  # type: ignore[assignment]
            self.norm = nn.LayerNorm(d_model)
            self.head = nn.Linear(d_model, vocab, bias=False)
        self._draw(seed)

    def _draw(self, seed: int) -> None:
        """Normal with a spread of 0.02; what is added to the stream less, the more layers add to it."""
        initialize(self, seed, std=lambda _: SPREAD)
        with torch.no_grad():
            for block in self.blocks:
                for added in (block.narrow, getattr(block.mixer, "out", None)):
                    if isinstance(added, nn.Linear):
                        added.weight.mul_((2 * self.n_layers) ** -0.5)

    def forward(self, ids: Ids, *, tokens: Tokens | None = None) -> Logits:
        tokens = Tokens.count(ids.shape[1], device=ids.device) if tokens is None else tokens
        x = self.embed(ids, tokens)
        for block in self.blocks:
            x = block(x, tokens=tokens)
        return self.name(x)

    def weights(self, ids: Ids, *, tokens: Tokens | None = None) -> list[Weights]:
        """The attention weights of each layer, for mixers that have them."""
        tokens = Tokens.count(ids.shape[1], device=ids.device) if tokens is None else tokens
        x = self.embed(ids, tokens)
        found = []
        for block in self.blocks:
            if not isinstance(block.mixer, Weighs):
                raise Refused(f"{type(block.mixer).__name__} has no attention weights to show")
            found.append(block.mixer.weights(block.before_mixer(x), tokens=tokens))
            x = block(x, tokens=tokens)
        return found

    def start(self, like: Ids) -> tuple[Any, ...]:
        """A state for each layer, to go token by token; refused where a mixer cannot."""
        x = self.embed(like[:, :0], Tokens.count(0, device=like.device))
        for block in self.blocks:
            if not isinstance(block.mixer, StepsThrough):
                raise Refused(f"{type(block.mixer).__name__} cannot go token by token")
        return (0, *(block.mixer.start(x) for block in self.blocks))

    def step(self, ids: Ids, state: tuple[Any, ...]) -> tuple[Logits, tuple[Any, ...]]:
        """Logits after one or more new tokens."""
        seen, *layers = state
        tokens = Tokens.count(ids.shape[1], first=seen, device=ids.device)
        x = self.embed(ids, tokens)
        after: list[Any] = [seen + ids.shape[1]]
        for block, before in zip(self.blocks, layers, strict=True):
            mixed, kept = block.mixer.step(block.before_mixer(x), before, tokens=tokens)
            x = block.network(x + block.drop_mixed(mixed))
            after.append(kept)
        return self.name(x), tuple(after)

    def embed(self, ids: Tensor, tokens: Tokens) -> Tensor:
        x = self.embedding(ids)
        if self.absolute is not None:
            x = x + self.absolute(tokens).to(x.dtype)
        return self.drop(x)

    def name(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x))
        return logits
