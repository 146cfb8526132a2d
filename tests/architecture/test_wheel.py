"""Does attnlab also work away from its checkout?"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", built, ROOT)
    (one,) = built.glob("*.whl")
    return one


def pip(*words: str | Path) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *words, "-qq"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_the_package_its_plug_in_and_nothing_else(wheel: Path) -> None:
    package = ROOT / "src" / "attnlab"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {path.relative_to(package.parent).as_posix() for path in files} | {"pytest_attnlab.py"}
    assert {"attnlab/__init__.py", "attnlab/py.typed"} <= names


def test_the_wheel_carries_its_license_and_its_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as inside:
        about = {Path(name).name: name for name in inside.namelist() if ".dist-info/" in name}
        entries = inside.read(about["entry_points.txt"]).decode()
        assert "attnlab = attnlab.cli:main" in entries
        assert "[pytest11]\npytest_attnlab = pytest_attnlab" in entries
        assert inside.read(about["LICENSE"]) == (ROOT / "LICENSE").read_bytes()


def test_an_installed_copy_runs_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    pip("install", "--no-deps", "--target", tmp_path / "copy", wheel)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def ran(*words: str) -> str:
        found = {**os.environ, "PYTHONPATH": str(tmp_path / "copy")}
        done = subprocess.run([sys.executable, *words], cwd=elsewhere, env=found, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(ran("-c", "import attnlab; print(attnlab.__file__)")).is_relative_to(tmp_path / "copy")
    assert "Usage" in ran("-m", "attnlab", "--help")
