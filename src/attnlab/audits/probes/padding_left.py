"""Does it matter what stands in hidden padding on the left?"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.audits.measure import Setting, asked, dtype_of, number, rounding, told, tried
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.probes.padding_right import furthest, listens
from attnlab.errors import listed
from attnlab.subjects import files
from attnlab.subjects.subject import Subject


def settings(full: int) -> Iterator[Setting]:
    for real, padded in ((1, 1), (3, 1), (3, 3), (5, 7), (full - 3, 3)):
        yield Setting(length=real + padded, padded=padded)
    yield Setting(length=67, padded=30)
    yield Setting(length=5, batch=5, padded=2)
    yield Setting(length=4, batch=1, padded=1)
    for loud in (30.0, 1e3):
        yield Setting(length=6, padded=3, loud=loud)
    for whole in (30.0, 300.0, 1e4):  # a finite floor is reached where every real score is low
        for draw in (0, 1):
            yield Setting(draw=draw, length=3, batch=6, padded=2, whole=whole)
    for draw in (1, 2):
        yield Setting(draw=draw, length=8, batch=3, padded=3, loud=10.0)
    yield Setting(length=6, batch=3, padded=3, train=True)


def look(subject: Subject) -> Outcome:
    """Only what the padding holds may not matter: that it shifts absolute positions is a fact and no fault."""
    if not subject.hears_padding:
        return Silent("it cannot be told which tokens are padding; text on the left is then text")
    within = rounding(subject)
    heard: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    shift = 0.0
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        if not heard and not listens(subject, module):
            return Silent("being told of padding changes nothing here; text on the left is then text")
        x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
        starts = torch.tensor([at.padded - sentence % (at.padded + 1) for sentence in range(at.batch)])
        real = torch.arange(at.length)[None] >= starts[:, None]
        x = never_padding_ids(subject, module, x, ~real)
        changed = subject.other(x, (~real,), loud=at.loud * at.whole)
        try:
            y = told(subject, module, x, at, real=real)
            z = told(subject, module, never_padding_ids(subject, module, changed, ~real), at, real=real)
            alone = told(subject, module, x[:, at.padded :], at)
        except Exception as error:
            refused.append((at, files.in_one_line(error)))
            continue
        heard.append(at)
        found = furthest(z, y, real)
        lost = alone[0].isfinite().all() and not y[0, at.padded :].isfinite().all()
        if found.moved > within or lost:
            which = f"real token {found.token} of sentence {found.sentence} is answered"
            how = "otherwise when its padding holds something else" if found.moved > within else "with no number"
            return Broke(
                f"{which} {how} ({at.words()})",
                {
                    "sentence": found.sentence,
                    "token": found.token,
                    "moved": number(found.moved),
                    "setting": at._asdict(),
                },
            )
        if not at.train:
            shift = max(shift, furthest(y[:1, at.padded :], alone[:1], real[:1, at.padded :]).moved)
    if not heard:
        return Silent(f"it could not be told of padding: {refused[-1][1]}")
    paddings = listed(map(str, sorted({at.padded for at in heard})))
    moves = "moves no answer" if shift <= within else "moves the answers, as absolute positions do"
    return Held(
        f"what stands in hidden padding on the left does not matter, in {paddings} tokens; the padding itself {moves}",
        tried(heard, refused) | {"shift": number(shift), "shifts": shift > within},
    )


def never_padding_ids(subject: Subject, module: nn.Module, x: Tensor, where: Tensor) -> Tensor:
    """No id that stands for padding among them: some models count their positions by it."""
    if not subject.way.ids:
        return x
    taken = {part.padding_idx for part in module.modules() if isinstance(part, nn.Embedding)}
    free = next((one for one in range(subject.vocab) if one not in taken), 0)
    for one in taken - {None}:
        x = torch.where(where & (x == one), free, x)
    return x


PROBE = Probe(
    code="padding-left",
    promise="padding-invariant",
    family="independence",
    says="What stands in hidden padding on the left changes no real token's answer.",
    cause="the padding mask is missing, of the wrong polarity or along the wrong axis; or a mean counts the padding",
    example="attnlab audit tests/museum/counts_padded_keys.py says: what stands in hidden padding on the left does "
    "not matter, in 1, 2, 3, 7, 30 tokens; the padding itself moves the answers, as absolute positions do",
    look=look,
)
