"""How many parameters, how many floating-point operations?"""

from torch import Tensor, nn

from attnlab.audits.measure import Setting, as_built, dtype_of
from attnlab.audits.probe import Held, Outcome, Probe
from attnlab.costs import Costs, cost
from attnlab.subjects.subject import Subject


def look(subject: Subject) -> Outcome:
    n = subject.sizes.length
    for _, module in as_built(subject, (Setting(length=length, batch=1) for length in (n, 8, 5))):
        found = counted(subject, module, subject.give(n, batch=1, dtype=dtype_of(module)))
        forward, training = found.forward.total, found.training.total
        unknown = f" (not counted by a rule: {', '.join(found.guessed)})" if found.guessed else ""
        return Held(
            f"{found.parameters:,} parameters; {forward:,} floating-point operations for {n} tokens,"
            f" {training / max(forward, 1):.1f} times as many to train{unknown}",
            {
                "parameters": found.parameters,
                "length": n,
                "forward": forward,
                "products": found.forward.products,
                "training": training,
                "guessed": list(found.guessed),
            },
        )
    raise AssertionError("asked raises where nothing is accepted")


def counted(subject: Subject, module: nn.Module, x: Tensor) -> Costs:
    """What one call costs, called as the subject wants to be called."""
    return cost(Whole(subject, module), x)


class Whole(nn.Module):
    """The subject's own way of calling, as a module of x."""

    def __init__(self, subject: Subject, module: nn.Module) -> None:
        super().__init__()
        self.inside = module
        self.answer = (subject,)  # held apart: a subject is no part of what is copied

    def __deepcopy__(self, memo: dict[int, object]) -> "Whole":
        import copy

        return Whole(self.answer[0], copy.deepcopy(self.inside, memo))

    def forward(self, x: Tensor) -> Tensor:
        return self.answer[0].ask(self.inside, x)


PROBE = Probe(
    code="size",
    promise="",
    family="cost",
    says="A fact: its parameters and the floating-point operations of one call.",
    cause="",
    example="attnlab audit attention says: 1,088 parameters; 56,576 floating-point operations for 16 tokens, 2.8 "
    "times as many to train",
    look=look,
)
