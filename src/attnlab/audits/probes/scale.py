"""How large are the outputs beside the input, before anything is learned?"""

from attnlab.audits.measure import Setting, asked, dtype_of
from attnlab.audits.probe import Held, Outcome, Probe
from attnlab.subjects.subject import Subject


def look(subject: Subject) -> Outcome:
    shares = []
    settings = (Setting(draw=draw, length=length) for draw in (0, 1, 2) for length in (subject.sizes.length, 5))
    for at, module in asked(subject, settings):
        x = subject.give(at.length, batch=at.batch, dtype=dtype_of(module))
        y = subject.ask(module, x).detach().double()
        shares.append(float(y.nan_to_num().std()) / (1.0 if subject.way.ids else float(x.std())))
    low, high = min(shares), max(shares)
    beside = "" if subject.way.ids else " times its input"
    spread = f"{low:.2g}" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g}"
    if high == 0:
        return Held("its output is zero at initialization, so that at first it adds nothing", {"scale": shares})
    return Held(f"at initialization its output is {spread}{beside} in size (standard deviation)", {"scale": shares})


PROBE = Probe(
    code="scale",
    promise="",
    family="learning",
    says="A fact: how large its output is at initialization, beside its input.",
    cause="",
    example="attnlab audit attention says: at initialization its output is 0.67 to 0.81 times its input in size "
    "(standard deviation)",
    look=look,
)
