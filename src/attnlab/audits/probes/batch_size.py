"""Is a sentence alone answered as it is within a batch?"""

from collections.abc import Iterator

from attnlab.audits.measure import Setting, asked, dtype_of, moved_at, number, rounding, size_of, told, tried
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.errors import listed
from attnlab.subjects import files
from attnlab.subjects.subject import Subject


def settings(full: int) -> Iterator[Setting]:
    """Also batches that could be taken for the length or the heads."""
    for length, batch in ((2, 2), (3, 2), (4, 4), (5, 3), (5, 5), (full, 2), (3, 9)):
        yield Setting(length=length, batch=batch)
    yield Setting(length=3, batch=3, whole=30.0)
    yield Setting(length=4, batch=3, tracked=False)
    for draw in (1, 2):
        yield Setting(draw=draw, length=7, batch=3)


def look(subject: Subject) -> Outcome:
    """In evaluation: while training, dropout goes by place."""
    within = rounding(subject)
    heard: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    parts: set[int] = set()
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        x = subject.give(at.length, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
        y = told(subject, module, x, at)
        for first, end in dict.fromkeys(((0, 1), (at.batch - 1, at.batch), (0, at.batch - 1))):
            try:
                z = told(subject, module, x[first:end], at)
            except Exception as error:
                refused.append((at, f"batch of {end - first}: {files.in_one_line(error)}"))
                continue
            parts.add(end - first)
            moved = moved_at(z, y[first:end]) / size_of(z, y[first:end])
            if bool((moved > within).any()):
                place, token = divmod(int(moved.flatten().argmax()), at.length)
                few = "alone" if len(z) == 1 else f"in a batch of {len(z)}"
                return Broke(
                    f"sentence {first + place} is answered otherwise {few} than in a batch ({at.words()})",
                    {
                        "sentence": first + place,
                        "token": token,
                        "batch": len(z),
                        "moved": number(float(moved.max())),
                        "setting": at._asdict(),
                    },
                )
        heard.append(at)
    if not parts:
        return Silent(f"it takes a batch of one size only: {refused[-1][1]}")
    sizes = listed(map(str, sorted(parts | {at.batch for at in heard})))
    return Held(f"a sentence is answered alike in batches of {sizes}", tried(heard, refused) | {"alone": 1 in parts})


PROBE = Probe(
    code="batch-size",
    promise="batch-independent",
    family="independence",
    says="A sentence alone is answered as it is within a batch.",
    cause="a mask is built for one size of the batch, or a statistic runs over the batch",
    example="attnlab audit reweight-batch says: sentence 0 is answered otherwise alone than in a batch (2 tokens, "
    "batch of 2)",
    look=look,
    quick=True,
)
