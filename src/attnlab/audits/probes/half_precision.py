"""Does it stay a number in float16 and bfloat16?"""

import torch
from torch import Tensor, nn

from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.weights import REFUSALS, number, real_of
from attnlab.randomness import stream
from attnlab.subjects.files import in_one_line
from attnlab.subjects.subject import Subject

PRECISIONS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
LOUD = (1.0, 10.0, 30.0)
# What is larger itself has every right to overflow.
ROOM = 0.1


def look(subject: Subject) -> Outcome:
    asked: list[str] = []
    refused: list[str] = []
    for name, dtype in PRECISIONS.items():
        for loud in LOUD[:1] if subject.way.ids else LOUD:
            for padded in (False, True) if subject.hears_padding else (False,):
                try:
                    broken = _looked(subject, name, dtype, loud, padded)
                except REFUSALS as error:
                    words = in_one_line(error)
                    if "overflow" in words:
                        return Broke(f"it cannot run in {name}: {words}", {"dtype": name, "loud": loud, "error": words})
                    refused.append(f"{name}: {words}")
                    continue
                if broken is not None:
                    return broken
                asked.append(name)
    ran = list(dict.fromkeys(asked))
    if not ran:
        return Silent(f"it does not run at half precision ({refused[0]})")
    left = "" if len(ran) == len(PRECISIONS) else f"; it does not run in {refused[0]}"
    return Held(f"its output and gradients stay numbers in {' and '.join(ran)}{left}", {"precisions": ran})


def _looked(subject: Subject, name: str, dtype: torch.dtype, loud: float, padded: bool) -> Broke | None:
    module = subject.build(dtype=dtype)
    x = subject.give(6, batch=3, loud=loud)
    x = x if subject.way.ids else x.to(dtype)
    real = real_of(3, 6) if padded else None
    true = subject.ask(subject.build(), x if subject.way.ids else x.double(), real=real).detach()
    if not float(true.abs().nan_to_num(0.0, 0.0, 0.0).max()) < ROOM * torch.finfo(dtype).max:
        return None
    if not subject.way.ids:
        x = x.requires_grad_()
    y = subject.ask(module, x, real=real)
    wrong = ~y.isfinite().all(dim=-1)
    if real is not None:
        wrong &= real
    said = f"{name}, 6 tokens{f', {loud:g} times as loud' if loud != 1 else ''}{', with padding' if padded else ''}"
    evidence = {"dtype": name, "loud": loud, "padded": padded, "length": 6}
    if bool(wrong.any()):
        token = int(wrong.nonzero()[0][1])
        size = number(true.abs().nan_to_num(0.0, 0.0, 0.0).max())
        return Broke(
            f"output {token} is no number, where in float64 none is above {size:.3g} ({said})",
            {"token": token, "size": size, "where": "output", **evidence},
        )
    broken = _slopes(module, x, y, real)
    if broken is not None:
        return Broke(
            f"the gradient at {broken} is no number ({said})", {"parameter": broken, "where": "gradient", **evidence}
        )
    return None


def _slopes(module: nn.Module, x: Tensor, y: Tensor, real: Tensor | None) -> str | None:
    """The first parameter whose gradient is no number."""
    if not y.requires_grad:
        return None
    direction = torch.randn(y.shape, generator=stream(0, "direction"), dtype=torch.float64).to(y)
    kept = y if real is None else y.masked_fill(~real[:, :, None], 0.0)
    named: list[tuple[str, Tensor]] = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    named += [("the input", x)] if x.requires_grad else []
    slopes = torch.autograd.grad((kept * direction).sum(), [p for _, p in named], allow_unused=True)
    for (name, _), slope in zip(named, slopes, strict=True):
        if slope is not None and not bool(slope.isfinite().all()):
            return name
    return None


PROBE = Probe(
    code="half-precision",
    promise="finite",
    family="numbers",
    says="In float16 and bfloat16 the output and the gradients are finite.",
    cause="products that are scaled too late, a floor like -1e9, or an epsilon that float16 rounds to zero",
    example="attnlab audit tests/museum/overflow_in_half.py says: output 0 is no number, where in float64 none is "
    "above 17.3 (float16, 6 tokens, 10 times as loud)",
    look=look,
    said=True,
    meant="it cannot be trained in mixed precision",
)
