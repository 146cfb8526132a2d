"""What every test stands on: shapes are checked, workers share the machine, real data is found or skipped."""

import os
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

# Must come before the first import of attnlab; tests of compiled code run in a call of their own without it.
# The numeric tower lets a whole number stand for a float, as mypy does.
if os.environ.get("ATTNLAB_SHAPES") != "off":
    tower = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    jaxtyping.install_import_hook("attnlab", tower)

# Workers run side by side, so each takes one thread. Torch reads this if and when a test imports it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is no failure; a build server sees the same examples each time.
hypothesis.settings.register_profile("attnlab", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("attnlab")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data sets."""
    named = os.environ.get("ATTNLAB_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        if named:
            pytest.fail(f"ATTNLAB_DATA={named} is no folder")
        pytest.skip("needs the real data sets; ATTNLAB_DATA names their folder")
    return folder
