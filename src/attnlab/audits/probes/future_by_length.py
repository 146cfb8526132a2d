"""Does an output know how long the rest of the input is?"""

from collections.abc import Iterator

from attnlab.audits.measure import Setting, asked, dtype_of, gap, number, rounding, size_of, told, tried
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.errors import listed
from attnlab.subjects import files
from attnlab.subjects.subject import Subject


def settings(full: int) -> Iterator[Setting]:
    for length in (2, 3, 5, full):
        yield Setting(length=length)
    yield Setting(length=7, whole=30.0)
    yield Setting(length=6, batch=1)
    yield Setting(length=7, tracked=False)
    for draw in (1, 2):
        yield Setting(draw=draw, length=full)
    for length in (37, 67, 130, 260, 520):
        yield Setting(draw=1, length=length, batch=1)


def look(subject: Subject) -> Outcome:
    within = rounding(subject)
    heard: list[Setting] = []
    shorts: set[int] = set()
    refused: list[tuple[Setting, str]] = []
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        n = at.length
        x = subject.give(n, batch=at.batch, loud=at.whole, dtype=dtype_of(module))
        y = told(subject, module, x, at)
        for m in cut_to(n):
            try:
                short = told(subject, module, x[:, :m], at)
            except Exception as error:
                refused.append((at._replace(length=m), files.in_one_line(error)))
                continue
            moved = gap(short, y[:, :m]) / size_of(short, y[:, :m])
            if bool((moved > within).any()):
                output = int(moved.argmax())
                return Broke(
                    f"output {output} of {m} tokens is another one when {n - m} more follow ({at.words()})",
                    {
                        "output": output,
                        "short": m,
                        "length": n,
                        "moved": number(float(moved[output])),
                        "setting": at._asdict(),
                    },
                )
            shorts.add(m)
        heard.append(at)
    if not shorts:
        return Silent("it accepts one length only, so nothing can be cut short")
    evidence = tried(heard, refused) | {"cut to": sorted(shorts)}
    lengths = listed(map(str, evidence["lengths"]))
    return Held(f"the first outputs stay the same when the input is cut short, at {lengths} tokens", evidence)


def cut_to(n: int) -> list[int]:
    """Short ones first; in a long input where a block may end and just after, since calls are dear there."""
    block = 1 << ((n - 1).bit_length() - 1)
    found = {block - 1, block, block + 1, n - 1} if n > 80 else {1, 2, 3, 5, 8, n // 2, n // 2 + 1, n - 3, n - 1}
    return sorted(m for m in found if 1 <= m < n)


PROBE = Probe(
    code="future-by-length",
    promise="causal",
    family="sees",
    says="The first outputs are the same whether or not more tokens follow.",
    cause="something is divided by the length of the whole input, or counted from its end, or a mask is of one length",
    example="attnlab audit tests/museum/divides_by_the_length.py says: output 0 of 1 tokens is another one when 1 "
    "more follow (2 tokens, batch of 2)",
    look=look,
    meant="a leak if this is meant as a decoder",
)
