"""Does more padding on the right change what the real tokens are answered?"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnlab.audits.measure import Setting, asked, dtype_of, moved_at, number, rounding, size_of, told, tried
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.errors import listed
from attnlab.subjects import files
from attnlab.subjects.subject import Subject


def settings(full: int) -> Iterator[Setting]:
    """Paddings that fill no block; batches that could be taken for the length; loud padding, loud everything."""
    for real, padded in ((1, 1), (3, 1), (3, 3), (5, 7), (full - 3, 3), (full, 1)):
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
    yield Setting(length=6, padded=3, tracked=False)
    yield Setting(length=6, batch=3, padded=3, train=True)


class Moved(NamedTuple):
    """A real token of a sentence whose answer moved, by so much, when its padding did this."""

    sentence: int
    token: int
    moved: float
    why: str


def look(subject: Subject) -> Outcome:
    within = rounding(subject)
    tells = subject.hears_padding
    heard: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        try:
            broken = moved_by_padding(subject, module, at, tells=tells, within=within)
        except Exception as error:
            refused.append((at, files.in_one_line(error)))
            continue
        heard.append(at)
        if broken is None:
            continue
        if not subject.claims("padding-invariant") and not listens(subject, module):
            return Silent("it cannot be told which tokens are padding, and it looks at what comes later")
        how = "" if tells else ", and it cannot be told which tokens are padding"
        return Broke(
            f"real token {broken.token} of sentence {broken.sentence} is answered otherwise when {broken.why}"
            f" ({at.words()}){how}",
            {
                "sentence": broken.sentence,
                "token": broken.token,
                "moved": number(broken.moved),
                "told": tells,
                "setting": at._asdict(),
            },
        )
    if not heard:
        return Silent(f"it could not be told of padding: {refused[-1][1]}")
    paddings = listed(map(str, sorted({at.padded for at in heard})))
    why = "" if tells else ": it never looks that way, and need not be told"
    said = f"{paddings} more tokens of padding on the right change no real token's answer{why}"
    return Held(said, tried(heard, refused) | {"told": tells})


def moved_by_padding(subject: Subject, module: nn.Module, at: Setting, *, tells: bool, within: float) -> Moved | None:
    """Each sentence padded by its own number of tokens, against the same one cut to what is real."""
    x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
    shortest = at.length - at.padded
    # Where it can be told, sentences differ in length; the first has as much padding as there is.
    lengths = [shortest + (sentence % (at.padded + 1) if tells else 0) for sentence in range(at.batch)]
    real = torch.arange(at.length)[None] < torch.tensor(lengths)[:, None]
    mark = real if tells else None
    y = told(subject, module, x, at, real=mark)
    if not at.train:
        for length in sorted(set(lengths)):
            mine = torch.tensor([one == length for one in lengths])
            alone = told(subject, module, x[:, :length], at)
            found = furthest(y[mine, :length], alone[mine], torch.ones(int(mine.sum()), length, dtype=torch.bool))
            if found.moved > within:
                sentence = int(mine.nonzero()[found.sentence])
                return found._replace(sentence=sentence, why=follows(at.length - length))
    z = told(subject, module, subject.other(x, (~real,), loud=at.loud * at.whole), at, real=mark)
    found = furthest(z, y, real)
    return found._replace(why="its padding holds something else") if found.moved > within else None


def follows(padding: int) -> str:
    if padding == 0:
        return "other sentences of its batch are padded"
    return f"{padding} tokens of padding follow" if padding > 1 else "a token of padding follows"


def furthest(one: Tensor, other: Tensor, real: Tensor) -> Moved:
    """The real token that moved most, against the size of what the real ones are answered."""
    moved = moved_at(one, other).masked_fill(~real, 0.0) / size_of(one[real], other[real])
    sentence, token = divmod(int(moved.flatten().argmax()), moved.shape[1])
    return Moved(sentence, token, float(moved.max()), "")


def listens(subject: Subject, module: nn.Module) -> bool:
    """Whether telling it of padding makes any difference; tokens that carry marks may be taken and never read."""
    if not subject.hears_padding:
        return False
    if subject.way.padding is not None:
        return True
    x = subject.give(6, batch=2, dtype=dtype_of(module))
    for side in (torch.arange(6) >= 3, torch.arange(6) < 3):
        real = side[None].expand(2, -1)
        moved = moved_at(told(subject, module, x, real=real), told(subject, module, x)).masked_fill(~real, 0.0)
        if bool((moved > 0).any()):
            return True
    return False


PROBE = Probe(
    code="padding-right",
    promise="padding-invariant",
    family="independence",
    says="Padding on the right, whatever it holds, changes no real token's answer.",
    cause="the padding mask is missing, of the wrong polarity or along the wrong axis; or a mean counts the padding",
    example="attnlab audit tests/museum/mean_over_padding.py says: real token 0 of sentence 0 is answered otherwise "
    "when a token of padding follows (2 tokens, batch of 2, 1 of the tokens padding)",
    look=look,
    quick=True,
)
