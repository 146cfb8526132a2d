"""Does setting up work the same everywhere, and say plainly when it cannot?"""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "constraints.txt").read_text()
PIN = re.compile(r"[a-z0-9][a-z0-9-]*==[0-9][0-9a-z.]*( ; [a-z0-9_ .'<>=!()]+)?", re.IGNORECASE)


def beside_the_pins(lock: str) -> list[str]:
    """The lines that are not simply a name, a public version and perhaps a marker."""
    return [line for line in lock.splitlines() if not line.startswith("#") and not PIN.fullmatch(line)]


def pinned(lock: str) -> dict[str, set[str]]:
    """The versions of each package; a newer Python may have one of its own."""
    versions: dict[str, set[str]] = {}
    for line in lock.splitlines():
        if not line.startswith("#"):
            name, version = line.split(" ;")[0].split("==")
            versions.setdefault(canonicalize_name(name), set()).add(version)
    return versions


@pytest.fixture
def make(tmp_path: Path) -> ModuleType:
    """make.py in a folder of its own, where .venv looks as after `make test`."""
    for name in ("make.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    spec = importlib.util.spec_from_file_location("make", tmp_path / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PYTHON.parent.mkdir(parents=True)
    module.PYTHON.touch()
    module.STAMP.write_text(f"{module.fingerprint()} test")
    return module


def test_the_lock_holds_only_names_and_public_versions() -> None:
    assert beside_the_pins(LOCK) == []


@pytest.mark.parametrize(
    "line",
    [
        "torch==2.13.0+cpu",
        "torch @ file:///somewhere/torch.whl",
        "--index-url https://example.org/simple",
        "--find-links /somewhere",
        "torch>=2.6",
        "einops==0.8.2 --hash=sha256:00",
    ],
)
def test_a_line_that_other_machines_could_not_follow_is_found(line: str) -> None:
    assert beside_the_pins(f"{LOCK}{line}\n") == [line]


def test_the_lock_holds_the_one_torch_that_was_asked_for() -> None:
    assert (ROOT / "pins.in").read_text().split() == ["torch==2.13.0"]
    assert pinned(LOCK)["torch"] == {"2.13.0"}


def test_the_lock_holds_a_version_within_every_range() -> None:
    versions = pinned(LOCK)
    extras = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
    asked = [Requirement(line) for line in [*PROJECT["dependencies"], *extras]]
    missing = [
        str(one)
        for one in asked
        if one.name != PROJECT["name"]
        and not any(one.specifier.contains(version) for version in versions.get(canonicalize_name(one.name), ()))
    ]
    assert {"torch", "numpy", "einops", "jaxtyping", "typer"} <= {one.name for one in asked}
    assert missing == []


def test_the_lock_says_how_it_is_refreshed() -> None:
    assert "python3 make.py lock" in LOCK.split("==")[0]


def test_an_old_python_is_told_what_to_run_instead(make: ModuleType) -> None:
    assert make.unfit((3, 10, 4), True, lambda: "python3.12").splitlines() == [
        "attnlab needs Python 3.11 or newer, and this is 3.10.",
        "Run: python3.12 make.py",
    ]
    assert "python.org" in make.unfit((3, 10, 4), True, lambda: "")


def test_a_python_without_ensurepip_is_told_what_to_install(make: ModuleType) -> None:
    said = make.unfit((3, 12, 1), False, lambda: "").splitlines()
    assert len(said) == 2
    assert said[1].endswith("apt install python3.12-venv")


def test_this_python_is_fit(make: ModuleType) -> None:
    assert make.unfit(sys.version_info, True, lambda: "") == ""


def test_an_old_python_can_read_make_py_as_far_as_its_sentence() -> None:
    ast.parse((ROOT / "make.py").read_text(), feature_version=(3, 7))
    with pytest.raises(SyntaxError):
        ast.parse("if complaint := unfit(): pass", feature_version=(3, 7))


def test_what_is_installed_is_not_installed_again(make: ModuleType) -> None:
    assert make.ready("")
    assert make.ready("test")
    assert not make.ready("dev")


@pytest.mark.parametrize("file", ["pyproject.toml", "constraints.txt"])
def test_another_line_in_what_should_be_installed_installs_again(file: str, make: ModuleType) -> None:
    with (make.HERE / file).open("a") as lines:
        lines.write("# another\n")
    assert not make.ready("test")


def test_half_an_install_is_not_taken_for_a_whole_one(make: ModuleType) -> None:
    make.STAMP.unlink()
    assert not make.ready("")


def test_an_environment_whose_python_is_gone_is_made_again(make: ModuleType) -> None:
    make.PYTHON.unlink()
    assert not make.ready("")
    assert not make.works(make.PYTHON, "pip")


def test_an_environment_without_pip_is_made_again(make: ModuleType) -> None:
    assert make.works(sys.executable, "sys")
    assert not make.works(sys.executable, "no_such_module")


def test_a_folder_that_has_moved_is_installed_again(make: ModuleType, tmp_path: Path) -> None:
    moved = shutil.copytree(tmp_path, tmp_path.with_name("moved"))
    make.HERE, make.STAMP = moved, moved / ".venv" / make.STAMP.name
    assert make.STAMP.exists()
    assert not make.ready("")


@pytest.mark.parametrize("words", [["nonsense"], ["clean", "--help"], ["lint", "src"]])
def test_words_that_mean_nothing_are_refused_and_nothing_is_removed(words: list[str], make: ModuleType) -> None:
    said = subprocess.run([sys.executable, make.__file__, *words], capture_output=True, text=True)
    assert said.returncode == 2
    assert make.STAMP.exists()
