"""Does a sentence hear the other sentences of its batch?"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.audits.measure import (
    GRADIENT,
    Setting,
    asked,
    dtype_of,
    following,
    moved_at,
    number,
    pulled,
    rounding,
    size_of,
    told,
    tried,
)
from attnlab.audits.probe import Broke, Held, Outcome, Probe
from attnlab.errors import listed
from attnlab.subjects.subject import Subject


def settings(full: int) -> Iterator[Setting]:
    """Also batches that could be taken for the length or the heads; training last: batch statistics are its own."""
    for length, batch in ((1, 2), (2, 2), (3, 2), (4, 4), (5, 3), (full, 2)):
        yield Setting(length=length, batch=batch)
    for loud in (30.0, 1e3, 1e4):
        yield Setting(length=3, loud=loud)
    for whole in (30.0, 300.0):
        yield Setting(length=3, whole=whole)
    for draw in (1, 2):
        yield Setting(draw=draw, length=5, batch=3, loud=10.0)
    yield Setting(length=5, batch=3, tracked=False)
    for draw, dropout in ((0, None), (1, 0.3), (0, 0.0)):
        yield Setting(draw=draw, length=3, batch=3, train=True, dropout=dropout)


def look(subject: Subject) -> Outcome:
    within = rounding(subject)
    heard: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
        for neighbor in {0, at.batch - 1}:
            for how, moved in (
                ("hears", by_value(subject, module, x, neighbor, at)),
                ("is reached by the gradient of", by_gradient(subject, module, x, neighbor, at)),
            ):
                bound = within if how == "hears" else GRADIENT * within
                if moved is None or not bool((moved > bound).any()):
                    continue
                sentence, token = divmod(int(moved.flatten().argmax()), at.length)
                pair = (sentence, neighbor) if how == "hears" else (neighbor, sentence)
                only = " and only while training" if at.train else ""
                return Broke(
                    f"sentence {pair[0]} of a batch {how} sentence {pair[1]} ({at.words()}){only}",
                    {
                        "sentence": sentence,
                        "neighbor": neighbor,
                        "token": token,
                        "by": "value" if how == "hears" else "gradient",
                        "moved": number(float(moved.max())),
                        "setting": at._asdict(),
                    },
                )
        heard.append(at)
    batches = listed(map(str, sorted({at.batch for at in heard})))
    return Held(f"no sentence hears another of its batch, in batches of {batches}", tried(heard, refused))


def by_value(subject: Subject, module: nn.Module, x: Tensor, neighbor: int, at: Setting) -> Tensor:
    """How far each output moves, against the size of the unchanged sentences, when the neighbor says something else."""
    y = told(subject, module, x, at)
    z = told(subject, module, subject.other(x, (neighbor,), loud=at.loud * at.whole), at)
    mine = [sentence for sentence in range(at.batch) if sentence != neighbor]
    moved = moved_at(z, y) / size_of(z[mine], y[mine])
    moved[neighbor] = 0.0
    return moved


def by_gradient(subject: Subject, module: nn.Module, x: Tensor, neighbor: int, at: Setting) -> Tensor | None:
    """How strongly the neighbor's outputs depend on each token of the others, against its own."""
    if not at.tracked or at.loud != 1:
        return None
    with following(subject, module, x) as (given, starts):
        y = subject.ask(module, given)
    if not starts or not y.requires_grad:
        return None
    felt = pulled(y, starts, (neighbor,))
    strongest = felt.amax().clamp(min=1e-300)
    return torch.where(torch.arange(at.batch)[:, None] == neighbor, 0.0, felt / strongest)


PROBE = Probe(
    code="batch-neighbors",
    promise="batch-independent",
    family="independence",
    says="A sentence is answered the same whatever else is in its batch.",
    cause="a norm or another statistic runs over the whole batch, or the batch is taken for the sequence (batch_first)",
    example="attnlab audit reweight-batch says: sentence 1 of a batch hears sentence 0 (1 token, batch of 2)",
    look=look,
    quick=True,
)
