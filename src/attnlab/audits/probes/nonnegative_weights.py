"""Is any weight below zero?"""

from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.weights import Place, weighed
from attnlab.subjects.subject import Subject

WITHIN = 1e-12


def look(subject: Subject) -> Outcome:
    lengths = set()
    for one, shown in weighed(subject):
        for layer, weights in enumerate(shown.layers):
            below = (weights < -WITHIN).nonzero()
            if len(below):
                b, h, i, j = (int(at) for at in below[0])
                place = Place(layer, b, h, i, j)
                weight = float(weights[b, h, i, j].detach())
                where = place.words(len(shown.layers), weights.shape[1])
                return Broke(
                    f"a weight is {weight:.3g}: {where}, key {j} ({one.words()})",
                    {**place._asdict(), "weight": weight, **one.evidence()},
                )
        lengths.add(one.at.length)
    if not lengths:
        return Silent("it shows no weights")
    return Held(f"no weight is negative, at {sorted(lengths)} tokens", {"lengths": sorted(lengths)})


PROBE = Probe(
    code="nonnegative-weights",
    promise="nonnegative",
    family="weights",
    says="No weight is negative.",
    cause="scores are returned in place of weights, or weights are mixed or subtracted after the softmax",
    example="attnlab audit differential --promise nonnegative says: a weight is -0.0688: head 1, row 1, key 0 (2 "
    "tokens, batch of 3)",
    look=look,
    quick=True,
    meant="a fault if they are meant as shares",
)
