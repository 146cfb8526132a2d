"""Do the examples in docstrings still say what happens?"""

import doctest
import importlib
import sys
from pathlib import Path
from types import ModuleType

import jaxtyping
import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "attnlab"
PATHS = [path.relative_to(PACKAGE.parent).with_suffix("") for path in sorted(PACKAGE.rglob("*.py"))]
MODULES = [".".join(path.parts).removesuffix(".__init__") for path in PATHS if path.name != "__main__"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_say_what_happens(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(("answer", "failed"), [("4", 0), ("5", 1)])
def test_an_example_is_run_although_the_shape_checker_has_wrapped_its_function(
    answer: str, failed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def double(x: int) -> int:
        return 2 * x

    module = ModuleType("arithmetic")
    double.__doc__, double.__module__ = f">>> double(2)\n{answer}\n", module.__name__
    vars(module)["double"] = jaxtyping.jaxtyped(double, typechecker=None)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert doctest.testmod(module) == (failed, 1)
