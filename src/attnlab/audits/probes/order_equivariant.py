"""Do tokens in another order get their answers in that order?"""

from collections.abc import Iterator

import torch

from attnlab.audits.measure import Setting, asked, dtype_of, gap, number, rounding, size_of, told, tried
from attnlab.audits.probe import Broke, Held, Outcome, Probe
from attnlab.errors import listed
from attnlab.randomness import stream
from attnlab.subjects.subject import Subject


def settings(full: int) -> Iterator[Setting]:
    for length in (2, 3, 5, full):
        yield Setting(length=length)
    for whole in (10.0, 100.0):
        yield Setting(length=5, whole=whole)
    for draw in (1, 2):
        yield Setting(draw=draw, length=7, batch=1)
    yield Setting(length=6, tracked=False)
    yield Setting(draw=1, length=37)


def look(subject: Subject) -> Outcome:
    """In evaluation: while training, dropout goes by place."""
    within = rounding(subject)
    heard: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
        y = told(subject, module, x, at)
        for order in orders(at.length):
            z = told(subject, module, x[:, order], at)
            moved = gap(z, y[:, order]) / size_of(z, y)
            if bool((moved > within).any()):
                place = int(moved.argmax())
                return Broke(
                    f"token {int(order[place])} is answered otherwise at place {place} ({at.words()})",
                    {
                        "token": int(order[place]),
                        "place": place,
                        "moved": number(float(moved[place])),
                        "order": order.tolist(),
                        "setting": at._asdict(),
                    },
                )
        heard.append(at)
    lengths = listed(map(str, sorted({at.length for at in heard})))
    return Held(f"tokens in another order are answered in that order, at {lengths} tokens", tried(heard, refused))


def orders(length: int) -> list[torch.Tensor]:
    """The two last change places, all turn around, and any order."""
    places = torch.arange(length)
    swapped = places.clone()
    swapped[-2:] = swapped[-2:].flip(0)
    return [swapped, places.flip(0), torch.randperm(length, generator=stream(0, "order"))]


PROBE = Probe(
    code="order-equivariant",
    promise="order-equivariant",
    family="order",
    says="Tokens in another order are answered in that order.",
    cause="a mask or a position is added where none was meant, or tokens are mixed with features in a reshape",
    example="attnlab audit attention --promise order-equivariant says: token 0 is answered otherwise at place 1 (2 "
    "tokens, batch of 2)",
    look=look,
    meant="as it should be wherever a mask or positions are meant",
)
