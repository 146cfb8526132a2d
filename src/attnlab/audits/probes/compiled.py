"""Does it say the same once it is compiled?"""

from typing import Any

import torch
from torch import Tensor

from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.probes.rounding import conditioning
from attnlab.audits.weights import number
from attnlab.subjects.files import in_one_line
from attnlab.subjects.subject import Subject

WITHIN = 1e-9
ROUNDINGS = 32.0
LENGTHS = (6, 7)


def look(subject: Subject) -> Outcome:
    if not subject.claims("compiled-equals-eager"):
        return Silent("a compilation takes 10 to 25 seconds, so it is looked at only where it is promised")
    import torch._dynamo
    import torch._inductor.config

    module = subject.build()
    torch._dynamo.reset()
    compiled: Any = torch.compile(module, dynamic=True)
    furthest = 0.0
    try:
        # A pool of compilers would outlive this.
        with torch._inductor.config.patch(compile_threads=1):
            for length in LENGTHS:
                x = subject.give(length)
                expected, slope = _asked(subject, module, x)
                try:
                    y, slope_compiled = _asked(subject, compiled, x)
                except Exception as error:
                    if "C++" in str(error) or "compiler" in type(error).__name__.lower():
                        return Silent(f"nothing can be compiled here: {in_one_line(error)}")
                    return Broke(f"it cannot be compiled: {in_one_line(error)}", {"length": length})
                noise = ROUNDINGS * conditioning(subject, module, x)
                for what, one, other in (("output", y, expected), ("gradient at token", slope_compiled, slope)):
                    if one is None or other is None:
                        continue
                    gap = (one - other).detach().abs()
                    size = float(other.detach().abs().max().clamp(min=1e-300))
                    if not float(gap.max()) <= WITHIN * size + noise:
                        token = int(gap.nan_to_num(torch.inf).amax(dim=(0, 2)).argmax())
                        return Broke(
                            f"compiled, {what} {token} differs ({length} tokens)",
                            {"token": token, "apart": number(gap.max() / size), "length": length},
                        )
                    furthest = max(furthest, float(gap.max()) / size)
    finally:
        torch._dynamo.reset()
    return Held(f"compiled it says the same, to {furthest:.0e} of its size", {"furthest": furthest})


def _asked(subject: Subject, module: Any, x: Tensor) -> tuple[Tensor, Tensor | None]:
    x = x if subject.way.ids else x.detach().requires_grad_()
    y = subject.ask(module, x)
    if not x.requires_grad or not y.requires_grad:
        return y, None
    return y, torch.autograd.grad(y.square().sum(), x)[0]


PROBE = Probe(
    code="compiled",
    promise="compiled-equals-eager",
    family="agreement",
    says="Compiled it gives the same output and gradient.",
    cause="a value of the input is read while the graph is built, or a state is kept outside of it",
    example="attnlab audit attention --promise compiled-equals-eager says: compiled it says the same, to 2e-16 of its"
    " size",
    look=look,
    patience=6.0,
    meant="it runs one way while it is written and another while it is used",
)
