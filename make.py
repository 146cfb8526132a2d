"""Sets attnlab up in this folder and uses it: python3 make.py demo | test | lint | ci | lock | clean.

Needs only Python 3.11 or newer. Words after the task go on to it: python3 make.py test -k cosine
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "installed.txt"
SETS = {  # what can be installed, by the extra that names it; each holds the one before it
    "": "attnlab",
    "test": "attnlab and its test tools",
    "dev": "attnlab and its development tools",
}
LINTERS = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    "lint-imports": ["-c", "from importlinter.cli import lint_imports_command as lint; lint(['--no-logo'])"],
    "codespell": ["-m", "codespell_lib"],
}
LITTER = [".venv", "build", "dist", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".import_linter_cache"]
LITTER += [".hypothesis", "src/**/__pycache__", "tests/**/__pycache__", "examples/**/__pycache__"]


def main(words):
    task, rest = (words[0], words[1:]) if words else ("help", [])
    if task not in TASKS:
        print(__doc__.strip())
        return 0 if task in ("help", "-h", "--help") else 2
    if rest and task in ("lint", "clean"):
        print(f"{task} takes no more words, and was given: {' '.join(rest)}", file=sys.stderr)
        return 2
    complaint = unfit(sys.version_info, importlib.util.find_spec("ensurepip") is not None, newer_python)
    if complaint:
        print(complaint, file=sys.stderr)
        return 2
    try:
        return TASKS[task](rest)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    except subprocess.CalledProcessError as failure:
        print("set-up failed for the reason above; the same command tries again", file=sys.stderr)
        return failure.returncode


def unfit(version, has_ensurepip, look_for_newer):
    """Why this Python cannot set attnlab up and what would, in two lines; empty when it can."""
    release = f"{version[0]}.{version[1]}"
    if version < (3, 11):
        newer = look_for_newer()
        fix = f"Run: {newer} make.py" if newer else "Install a newer one, for example from python.org."
        return f"attnlab needs Python 3.11 or newer, and this is {release}.\n{fix}"
    if not has_ensurepip:
        fix = f"On Debian or Ubuntu, run: sudo apt install python{release}-venv"
        return f"This Python cannot make a virtual environment: its module ensurepip is missing.\n{fix}"
    return ""


def newer_python():
    """A command that attnlab can be set up with; empty if there is none."""
    names = ("python3.14", "python3.13", "python3.12", "python3.11")
    return next((name for name in names if works(name, "ensurepip")), "")


def works(python, module):
    """Whether it runs, is new enough and has the module: a command that is found may be none of these."""
    question = f"import sys, {module}; sys.exit(sys.version_info < (3, 11))"
    try:
        return subprocess.run([python, "-c", question], stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def prepare(extra):
    """Brings .venv to where attnlab runs with this extra, from nothing or from half an install."""
    if ready(extra):
        return
    STAMP.unlink(missing_ok=True)
    if not works(PYTHON, "pip"):
        say("making .venv …")
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    say(f"installing {SETS[extra]} (about a minute the first time) …")
    # Only with the constraints does every machine get the versions that were tested together.
    install = ["-m", "pip", "install", "-qq", "-c", "constraints.txt", "-e", f".[{extra}]" if extra else "."]
    subprocess.run([PYTHON, *install], cwd=HERE, check=True)
    STAMP.write_text(f"{fingerprint()} {extra}")


def ready(extra):
    """Whether .venv holds this extra. The stamp is written last, so half an install has none."""
    if not (PYTHON.exists() and STAMP.exists()):
        return False
    key, _, held = STAMP.read_text().partition(" ")
    order = list(SETS)
    return key == fingerprint() and order.index(extra) <= order.index(held)


def fingerprint():
    """What should be installed and where; a folder that has moved is another one."""
    files = [(HERE / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"\0".join([*files, os.fsencode(HERE)])).hexdigest()


def say(line):
    print(line, flush=True)


def run(*words):
    return subprocess.run([PYTHON, *words], cwd=HERE).returncode


def demo(words):
    prepare("")
    return run("-m", "attnlab", "demo", *words)


def test(words):
    prepare("test")
    say("running the tests …")
    return run("-m", "pytest", "-q", "-n", str(min(2, os.cpu_count() or 1)), *words)


def lint(words=()):
    prepare("dev")
    failed = []
    for name, command in LINTERS.items():
        say(f"{name} …")
        if run(*command):
            failed.append(name)
    say(f"not clean: {', '.join(failed)}" if failed else "clean")
    return 1 if failed else 0


def ci(words):
    return max(lint(), test(words))


def lock(words):
    prepare("dev")
    say("compiling constraints.txt …")
    scope = ["--universal", "--python-version", "3.11", "--all-extras", "-c", "pins.in", "pyproject.toml"]
    style = ["-q", "--no-annotate", "--custom-compile-command", "python3 make.py lock"]
    return run("-m", "uv", "pip", "compile", *scope, *style, "-o", "constraints.txt", *words)


def clean(words):
    for path in (path for pattern in LITTER for path in sorted(HERE.glob(pattern))):
        say(f"removing {path.relative_to(HERE)} …")
        shutil.rmtree(path)
    return 0


TASKS = {"demo": demo, "test": test, "lint": lint, "ci": ci, "lock": lock, "clean": clean}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
