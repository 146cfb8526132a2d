"""Does it look ahead when it is asked for its weights, or asked to leave them out?"""

from collections.abc import Iterator

from attnlab.audits.measure import Asking, Setting, asked, future, leak, reached, rounding, tried, weight_words
from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.errors import listed
from attnlab.subjects import files
from attnlab.subjects.subject import Subject


def settings(full: int) -> Iterator[Setting]:
    for length in (2, 3, 5, full):
        yield Setting(length=length)
    yield Setting(length=5, loud=30.0)
    yield Setting(length=3, whole=300.0)
    yield Setting(draw=1, length=7, batch=1)
    yield Setting(draw=2, length=7, batch=4, tracked=False)
    for dropout in (None, 0.3):
        yield Setting(length=5, train=True, dropout=dropout)


def look(subject: Subject) -> Outcome:
    words = weight_words(subject.build())
    if not words:
        return Silent("its call has no option that returns weights or leaves them out")
    within = rounding(subject)
    heard: list[Setting] = []
    refused: list[tuple[Setting, str]] = []
    for at, module in asked(subject, settings(subject.sizes.length), refused=refused):
        for word in words:
            for value in (True, False):
                try:
                    moved = reached(subject, Asking(module, **{word: value}), at, range(1, at.length))
                except Exception as error:
                    refused.append((at, f"{word}={value}: {files.in_one_line(error)}"))
                    continue
                found = future(moved, within=within)
                if found:
                    worst = found[0]
                    return Broke(
                        f"with {word}={value} output {worst.output} hears token {worst.token}, which comes later"
                        f" ({at.words()})",
                        leak(found, moved, at) | {"word": word, "value": value},
                    )
                heard.append(at)
    if not heard:
        return Silent(f"with {words[0]} it cannot be called: {refused[-1][1]}")
    said = f"with {listed(words)} or without, no output moves when a later token changes"
    return Held(said, tried(heard, refused) | {"words": list(words)})


PROBE = Probe(
    code="future-with-weights",
    promise="causal",
    family="sees",
    says="No output hears a later token, whether or not the weights are asked for.",
    cause="the path that returns the weights and the one that does not are two pieces of code, and one forgets the"
    " mask",
    example="attnlab audit tests/museum/mask_only_without_weights.py says: with need_weights=True output 0 hears "
    "token 1, which comes later (2 tokens, batch of 2)",
    look=look,
    meant="a leak if this is meant as a decoder",
)
