"""What the README says is true: its programs run, its commands work, its map is the disk's."""

import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest

from attnlab.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.S)
COMMANDS = re.findall(r"^    (attnlab .*?)\s*(?:#.*)?$", README, re.M)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    """Programs and commands are given as a reader in the checkout would type them."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("program", PROGRAMS, ids=["ten lines", "answers"])
def test_a_program_of_the_readme_runs(program):
    exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})


def test_the_ten_lines_are_an_example_and_no_more_than_ten():
    example = (ROOT / "examples" / "ten_lines.py").read_text(encoding="utf-8")
    assert PROGRAMS[0] == example
    assert sum(1 for line in example.splitlines() if line.strip()) <= 10


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_works(command, capsys):
    assert main(shlex.split(command)[1:]) == 0
    shown = capsys.readouterr()
    assert shown.out
    assert not shown.err


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(example):
    runpy.run_path(str(example), run_name="__main__")


def test_an_example_says_which_mechanism_hears_the_future(capsys):
    runpy.run_path("examples/hearing.py", run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "reweight-token: no output hears its future",
        "reweight-sequence: output 0 hears token 1",
    ]


def test_the_map_is_the_disks():
    drawn = README.split("## The map")[1]
    lines = re.findall(r"^( {4}| {8})(\S.*?)(?: {2,}.*)?$", drawn, re.M)
    outside = {
        name for indent, names in lines if len(indent) == 4 for name in names.split() if "." in name or "/" in name
    }
    inside = {name.rstrip("/") for indent, name in lines if len(indent) == 8}
    package = ROOT / "src" / "attnlab"
    on_disk = {
        path.name
        for path in package.iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and not path.name.startswith("__")
    }
    assert inside == on_disk
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {name.split("/")[0] for name in tracked if "/" in name and not name.startswith((".", "src"))}
    assert folders == {name.rstrip("/") for name in outside if name.endswith("/") and not name.startswith("src")}
    for name in outside:
        assert (ROOT / name).exists(), name


def test_every_page_that_is_linked_exists():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} → {target}"
