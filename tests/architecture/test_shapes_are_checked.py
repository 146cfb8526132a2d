"""Are shapes really checked while the tests run?"""

import os
import subprocess
import sys

import pytest
import torch
from jaxtyping import TypeCheckError

import attnlab.mechanisms.normalizers
from attnlab.mechanisms.normalizers import Softmax

pytestmark = pytest.mark.skipif(os.environ.get("ATTNLAB_SHAPES") == "off", reason="ATTNLAB_SHAPES=off")

# Torch would stretch the one key of this mask over all four, and nobody would notice.
ONE_KEY_SHORT = """
import torch
from attnlab.mechanisms.normalizers import Softmax
Softmax()(torch.zeros(1, 1, 3, 4), torch.ones(1, 1, 3, 1, dtype=torch.bool))
"""


def test_an_axis_of_the_wrong_length_is_refused_where_torch_would_broadcast() -> None:
    with pytest.raises(TypeCheckError, match="allowed"):
        Softmax()(torch.zeros(1, 1, 3, 4), torch.ones(1, 1, 3, 1, dtype=torch.bool))


def test_a_type_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(TypeCheckError, match="allowed"):
        Softmax()(torch.zeros(1, 1, 3, 4), torch.ones(1, 1, 3, 4))


def test_the_refusal_is_the_checkers_and_not_torchs() -> None:
    unchecked = subprocess.run([sys.executable, "-c", ONE_KEY_SHORT], capture_output=True, text=True)
    assert unchecked.returncode == 0, unchecked.stderr


def test_no_part_of_attnlab_was_imported_before_the_checker() -> None:
    ours = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "attnlab"}
    loaders = {name: type(module.__spec__.loader).__module__.split(".")[0] for name, module in ours.items()}
    assert attnlab.mechanisms.normalizers.__name__ in loaders
    assert {name for name, loader in loaders.items() if loader != "jaxtyping"} == set()


def test_a_worker_uses_one_thread() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("this run has no workers")
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])
