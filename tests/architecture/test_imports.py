"""Do imports point down, never sideways?"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = "from importlinter.cli import lint_imports_command as lint; lint(['--no-logo', '--no-cache'])"

FORBIDDEN = [
    ("oracles/borrowing.py", "import attnlab.mechanisms.scores", "attnlab.oracles is not allowed to import"),
    ("mechanisms/peeking.py", "import attnlab.oracles", "attnlab.mechanisms is not allowed to import"),
    ("mechanisms/reaching_up.py", "import attnlab.models", "attnlab.mechanisms is not allowed to import"),
    ("errors.py", "import attnlab.shapes", "attnlab.errors is not allowed to import"),
    ("app/server.py", "import attnlab.mechanisms", "attnlab.app.server is not allowed to import"),
    ("helpers.py", "", "not listed as layers"),
]


def linted(root: Path) -> subprocess.CompletedProcess[str]:
    """import-linter's answer about the package in this folder."""
    found = {**os.environ, "PYTHONPATH": str(root / "src")}
    return subprocess.run([sys.executable, "-c", LINT], cwd=root, env=found, capture_output=True, text=True)


def test_every_import_points_down() -> None:
    answer = linted(ROOT)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "Contracts: 2 kept" in answer.stdout


@pytest.mark.parametrize(("file", "line", "sentence"), FORBIDDEN, ids=[file for file, *_ in FORBIDDEN])
def test_a_forbidden_import_is_caught(file: str, line: str, sentence: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    stray = tmp_path / "src" / "attnlab" / file
    stray.parent.mkdir(exist_ok=True)
    (stray.parent / "__init__.py").touch()
    stray.write_text(f"{stray.read_text() if stray.exists() else ''}\n{line}\n")
    answer = linted(tmp_path)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert sentence in " ".join(answer.stdout.split())
