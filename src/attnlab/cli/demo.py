"""What does attnlab do? Shown in a few seconds."""

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import typer

from attnlab.cli.options import AsJson
from attnlab.cli.screen import Screen, give, say, screen
from attnlab.cli.show import drawing

if TYPE_CHECKING:
    from attnlab.views.twins import Compared

SOUND = ({"mixer": "attention"}, {"position": "alibi"}, {"visibility": "window(last=3)"})
FAULT, MEANT = {"normalizer": "zero-after-softmax"}, {"mixer": "attention"}


def demo(as_json: AsJson = False) -> None:
    """What does attnlab do? Three mechanisms are held against their slow twins, and a planted fault is caught."""
    from attnlab.views.twins import compared

    sound = [compared(variant) for variant in SOUND]
    fault = compared(FAULT, against=MEANT)
    caught = not fault.agrees and bool(fault.maps[1].leaks)
    passed = caught and all(one.agrees for one in sound)
    if as_json:
        give("demo", _payload(sound, fault, caught, passed))
    else:
        say(_lines(sound, fault, caught, passed, screen()))
    raise typer.Exit(0 if passed else 1)


def _payload(sound: list["Compared"], fault: "Compared", caught: bool, passed: bool) -> dict[str, Any]:
    from dataclasses import asdict

    from attnlab.views.twins import WITHIN

    def told(one: "Compared") -> dict[str, Any]:
        return asdict(one) | {"gap": one.gap if isfinite(one.gap) else None}

    return {
        "within": WITHIN,
        "mechanisms": [told(one) for one in sound],
        "fault": told(fault) | {"caught": caught},
        "passed": passed,
    }


def _lines(sound: list["Compared"], fault: "Compared", caught: bool, passed: bool, here: Screen) -> Iterator[str]:
    yield here.paint("Three mechanisms: who looks at whom in the first head, on random tokens", "bold")
    yield ""
    yield from drawing([one.maps[0] for one in sound], here)
    yield ""
    yield here.paint("Each is held against its slow twin, the same formula as plain loops in float64", "bold")
    for one in sound:
        verdict = here.paint("agrees", "good") if one.agrees else here.paint("differs", "alarm")
        yield from here.beside(one.name, [one.formula], indent=2, taken=16)
        yield from here.beside("", [f"{verdict}: largest difference {one.gap:.1e}"], indent=2, taken=16)
    yield ""
    yield here.paint("A planted fault: attention that hides the future after the softmax, not before", "bold")
    yield from here.beside(fault.name, [fault.formula], indent=2, taken=20)
    yield ""
    weights, moves = fault.maps
    yield from drawing([replace(weights, title="its weights"), moves], here)
    yield ""
    verdict = here.paint("caught", "good") if caught else here.paint("not caught", "alarm")
    yield f"  {verdict}: it differs from the twin of {fault.twin} by {fault.gap:.1e}. Its weights look"
    yield "  causal, and still tokens are moved by tokens that come later (right)."
    yield ""
    yield "Every check did what it should." if passed else here.paint("A check failed.", "alarm")
    yield "Next: attnlab show gru, or an idea of yours: attnlab show path/to/mine.py:name"
