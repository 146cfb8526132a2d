"""Does the command line start at once, and does it go quietly?"""

import os
import signal
import subprocess
import sys
import time

import pytest

COMMAND = [sys.executable, "-m", "attnlab"]
HEAVY = "import sys; {}; print(sorted({{'torch', 'numpy', 'rich', 'pydantic'}} & set(sys.modules)))"
RUN = "from attnlab.cli import main; main({words!r})"
LIMIT = 0.1  # seconds of CPU beyond the bare interpreter,
BARE = 0.01  # where that one takes this long; a slow or busy machine is slow for both


def spent(words: list[str], enough: float = 0.0, times: int = 12) -> float:
    """CPU time of a process, the least of several: a busy machine adds to it and takes nothing away."""
    least = float("inf")
    while least > enough and (times := times - 1) >= 0:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, words
        least = min(least, usage.ru_utime + usage.ru_stime)
    return least


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["list"],
        ["list", "--question", "score", "--json"],
        ["show", "--help"],
        ["demo", "-h"],
        ["audit", "--help"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported_to_say_what_there_is(words: list[str]) -> None:
    program = HEAVY.format(RUN.format(words=words))
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.splitlines()[-1] == "[]", said.stderr


def test_the_import_guard_sees_what_is_imported() -> None:
    said = subprocess.run([sys.executable, "-c", HEAVY.format("import numpy")], capture_output=True, text=True)
    assert said.stdout == "['numpy']\n"


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="the system does not say what a process has spent")
@pytest.mark.parametrize("words", [["--help"], ["list"], ["list", "--json"], ["show", "--help"]], ids=" ".join)
def test_what_needs_no_torch_takes_a_tenth_of_a_second_of_computing(words: list[str]) -> None:
    bare = spent([sys.executable, "-c", "pass"])
    most = bare + LIMIT * max(1.0, bare / BARE)
    assert spent([*COMMAND, *words], enough=most) < most


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="the system does not say what a process has spent")
def test_the_stopwatch_sees_what_takes_too_long() -> None:
    wait = "import time; end = time.process_time() + 0.15\nwhile time.process_time() < end: pass"
    assert spent([sys.executable, "-c", wait], times=1) > LIMIT


def test_completion_knows_the_names_without_torch() -> None:
    asked = {
        "show cos": "cosine",
        "list --question sc": "score",
        "show cosine --set position=ro": "position=rotary",
        "show cosine --set nor": "normalizer=",
    }
    for words, expected in asked.items():
        shell = {"_ATTNLAB_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"attnlab {words}"}
        program = (
            "import atexit, sys; atexit.register(lambda: sys.stderr.write(str('torch' in sys.modules)));"
            "from attnlab.cli import main; sys.exit(main())"
        )
        said = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **shell}, capture_output=True, text=True
        )
        assert expected in said.stdout
        assert said.stderr == "False"


@pytest.mark.skipif(os.name == "nt", reason="a pipe ends otherwise there")
def test_a_reader_who_goes_away_is_not_complained_of() -> None:
    process = subprocess.Popen([*COMMAND, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141
    process.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_sentence() -> None:
    with open("/dev/full", "w") as full:
        said = subprocess.run([*COMMAND, "list"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert said.returncode == 2
    assert said.stderr == "attnlab: No space left on device\n"


@pytest.mark.skipif(os.name == "nt", reason="no such signal")
def test_an_interrupt_ends_with_130_and_no_traceback(tmp_path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\nopen('started', 'w').close()\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [*COMMAND, "show", str(slow)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not (tmp_path / "started").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "")
    assert process.returncode == 130


def test_a_terminal_without_greek_letters_is_told_in_others() -> None:
    said = subprocess.run(
        [*COMMAND, "list", "--question", "score"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0
    assert "s_ij = q_i*k_j / sqrt(terms*d)" in said.stdout
    assert "cos(q_i, k_j) / tau" in said.stdout
