"""Does the place of a sentence in its batch matter?"""

from collections.abc import Iterator

import torch

from attnlab.audits.measure import Setting, asked, dtype_of, moved_at, number, rounding, size_of, told, tried
from attnlab.audits.probe import Broke, Held, Outcome, Probe
from attnlab.errors import listed
from attnlab.subjects.subject import Subject


def settings(full: int) -> Iterator[Setting]:
    for length, batch in ((1, 2), (3, 2), (4, 4), (5, 3), (full, 5)):
        yield Setting(length=length, batch=batch)
    yield Setting(length=3, batch=3, whole=30.0)
    yield Setting(length=4, batch=3, tracked=False)
    for draw in (1, 2):
        yield Setting(draw=draw, length=5, batch=3)


def look(subject: Subject) -> Outcome:
    """In evaluation: while training, dropout goes by place."""
    within = rounding(subject)
    heard: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
        y = told(subject, module, x, at)
        for order in (torch.arange(at.batch).roll(1), torch.arange(at.batch).flip(0)):
            z = told(subject, module, x[order], at)
            moved = moved_at(z, y[order]) / size_of(z, y)
            if bool((moved > within).any()):
                place, token = divmod(int(moved.flatten().argmax()), at.length)
                return Broke(
                    f"sentence {int(order[place])} is answered otherwise in place {place} of the batch ({at.words()})",
                    {
                        "sentence": int(order[place]),
                        "place": place,
                        "token": token,
                        "moved": number(float(moved.max())),
                        "order": order.tolist(),
                        "setting": at._asdict(),
                    },
                )
        heard.append(at)
    batches = listed(map(str, sorted({at.batch for at in heard})))
    return Held(f"a batch in another order is answered in that order, in batches of {batches}", tried(heard, refused))


PROBE = Probe(
    code="batch-order",
    promise="batch-independent",
    family="independence",
    says="A batch in another order is answered in that order.",
    cause="a mask or a bias of the first sentence is used for all, or the batch is taken for another axis in a reshape",
    example="attnlab audit gru --promise batch-independent says: a batch in another order is answered in that order, "
    "in batches of 2, 3, 4, 5",
    look=look,
)
