"""Does the last answer depend on the order of the tokens before it?"""

from collections.abc import Iterator

import torch

from attnlab.audits.measure import Setting, asked, dtype_of, moved_at, number, rounding, size_of, told, tried
from attnlab.audits.probe import Broke, Held, Outcome, Probe
from attnlab.subjects.subject import Subject

# Fainter than this an order could not be learned from.
FAINT = 1e-9


def settings(full: int) -> Iterator[Setting]:
    for length in (3, 5, full):
        yield Setting(length=length)
    for draw in (1, 2):
        yield Setting(draw=draw, length=7)
    yield Setting(length=5, whole=10.0)


def look(subject: Subject) -> Outcome:
    within = max(rounding(subject), FAINT)
    heard: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    most = 0.0
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
        y = told(subject, module, x, at)
        for how, order in orders(at.length).items():
            if bool((x[:, order] == x).all()):
                continue
            z = told(subject, module, x[:, order], at)
            moved = float(moved_at(z, y)[:, -1].amax()) / size_of(z[:, -1], y[:, -1])
            most = max(most, moved)
            if moved > within:
                return Held(
                    f"the last answer changes by {moved:.1g} of its size when {how} ({at.words()})",
                    {"moved": number(moved), "order": order.tolist(), "setting": at._asdict()},
                )
        heard.append(at)
    return Broke(
        "the last answer stays the same when earlier tokens change places: it hears what was said, not in which order",
        tried(heard, refused) | {"moved": number(most)},
    )


def orders(length: int) -> dict[str, torch.Tensor]:
    """The last token stays where it is."""
    swapped, turned = torch.arange(length), torch.arange(length)
    swapped[-3:-1] = swapped[-3:-1].flip(0)
    turned[:-1] = turned[:-1].flip(0)
    return {"the two tokens before it change places": swapped, "all tokens before it turn around": turned}


PROBE = Probe(
    code="order-aware",
    promise="order-aware",
    family="order",
    says="The last answer depends on the order of the tokens before it.",
    cause="positions are not added, are the same for every token, or are cancelled on the way",
    example="attnlab audit everything --promise order-aware says: the last answer stays the same when earlier tokens "
    "change places: it hears what was said, not in which order",
    look=look,
    meant="as it should be where no positions are meant",
)
