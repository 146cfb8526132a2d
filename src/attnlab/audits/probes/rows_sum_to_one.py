"""Does each query give away exactly one?"""

import torch

from attnlab.audits.probe import Broke, Held, Outcome, Probe, Silent
from attnlab.audits.weights import Place, number, weighed
from attnlab.subjects.subject import Subject

# A softmax in float32 inside a module of float64 is off by 1e-7 and no fault.
WITHIN = 1e-5


def look(subject: Subject) -> Outcome:
    lengths = set()
    furthest = 0.0
    for one, shown in weighed(subject):
        for layer, weights in enumerate(shown.layers):
            sums = weights.detach().double().sum(dim=-1)
            # What loudness alone turns into NaN is the concern of loud-scores.
            off = (sums - 1).abs().nan_to_num(nan=torch.inf if one.at.whole == 1 else 0.0)
            if one.real is not None:  # what padding asks for is nobody's concern
                off = off.masked_fill(~one.real[:, None], 0.0)
            if bool((off > WITHIN).any()):
                b, h, i = (int(at) for at in (off > WITHIN).nonzero()[0])
                place = Place(layer, b, h, i)
                total = number(sums[b, h, i])
                said = "is no number" if total is None else f"sums to {total:.4g}"
                return Broke(
                    f"a row of weights {said}: {place.words(len(shown.layers), weights.shape[1])} ({one.words()})",
                    {**place._asdict(), "sum": total, **one.evidence()},
                )
            furthest = max(furthest, float(off.max()) if off.numel() else 0.0)
        lengths.add(one.at.length)
    if not lengths:
        return Silent("it shows no weights")
    return Held(
        f"every row of weights sums to one, at {sorted(lengths)} tokens",
        {"lengths": sorted(lengths), "furthest": furthest},
    )


PROBE = Probe(
    code="rows-sum-to-one",
    promise="rows-sum-to-one",
    family="weights",
    says="The weights of each query sum to one.",
    cause="the mask is applied after the softmax, dropout is left on, or the softmax runs over another axis",
    example="attnlab audit zero-after-softmax --promise rows-sum-to-one says: a row of weights sums to 0.1412: head "
    "0, row 0 (2 tokens, batch of 3)",
    look=look,
    quick=True,
    meant="a fault if they are meant as shares",
)
