"""Is code that hangs, prints, raises, ends its process, eats memory or leaves children behind no harm to who asks?"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from attnlab.audits import run
from attnlab.audits.probe import Held, Probe
from attnlab.audits.run import Told, contained, forks, in_process
from attnlab.errors import LabError
from attnlab.subjects.found import subject_of

HEAD = "import os, sys, time\nimport torch\nfrom torch import nn\n"
MODULE = """
class It(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim)
    def forward(self, x):
        if x.shape[1] == 3:
            {at_three}
        return self.map(x)
"""
needs_fork = pytest.mark.skipif(not forks(), reason="nothing forks here")


def at_length(n):
    def look(subject):
        return Held(f"{n} tokens are well: {subject.ask(subject.build(), subject.give(n)).shape[1]}")

    return look


def ask_three(subject):
    return at_length(3)(subject)


def ask_four(subject):
    return at_length(4)(subject)


def probe(code, look):
    return Probe(code=code, promise="finite", family="sees", says="it answers", cause="it does not", look=look)


PROBES = (probe("three", ask_three), probe("four", ask_four))


@pytest.fixture
def file(tmp_path):
    """A file whose module does something at three tokens."""

    def write(at_three="pass", text=MODULE, head=HEAD):
        path = tmp_path / "it.py"
        path.write_text(head + text.format(at_three=at_three))
        return partial(subject_of, str(path), promises=("finite",))

    return write


def heard(found, *, seconds=10.0, probes=PROBES, **limits):
    told, *findings = contained(found, probes, seconds=seconds, **limits)
    assert isinstance(told, Told)
    return findings


def children():
    """Processes that we have started and not waited for, the dead ones included."""
    listed = subprocess.run(["ps", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True).stdout
    mine = [line.split(None, 3) for line in listed.splitlines()]
    return [row for row in mine if row[1] == str(os.getpid()) and not row[3].startswith("ps ")]


TROUBLE = {
    "a hang": ("time.sleep(100)", "took longer than 1 s"),
    "a hang that ignores signals": (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)",
        "took longer than 1 s",
    ),
    "a loop": ("while True: pass", "took longer than 1 s"),
    "an error": ("raise KeyError('no such key')", "KeyError: 'no such key' (it.py, line 11)"),
    "an error that cannot say itself": (
        "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})",
        "Odd (it.py, line 11)",
    ),
    "an interrupt of its own": ("raise KeyboardInterrupt", "KeyboardInterrupt (it.py, line 11)"),
    "sys.exit": ("sys.exit(3)", "it called sys.exit(3) (it.py, line 11)"),
    "os._exit": ("os._exit(0)", "it ended its own process with status 0"),
    "a crash": ("os.kill(os.getpid(), 11)", "its process was killed by SIGSEGV"),
    "memory": ("torch.ones(3 * 2**28)", "it asked for more memory than 1 GiB"),
    "memory in Python": ("[bytes(2**28) for _ in range(10)]", "it asked for more memory than 1 GiB"),
    "a question": ("input('who is there? ')", "EOFError"),
    "endless recursion": ("f = lambda: f(); f()", "RecursionError: maximum recursion depth exceeded"),
}


@needs_fork
@pytest.mark.parametrize(("at_three", "sentence"), TROUBLE.values(), ids=TROUBLE)
def test_trouble_is_an_error_of_one_check_and_the_next_goes_on(at_three, sentence, file, capfd) -> None:
    if "memory" in sentence and not run._limits_memory():
        pytest.skip("memory cannot be limited here")
    three, four = heard(file(at_three), seconds=1.0, gibibytes=1.0)
    assert (three.code, three.status) == ("three", "error")
    assert three.sentence.startswith("could not be measured: ")
    assert sentence in three.sentence
    assert (four.code, four.status) == ("four", "kept")
    assert capfd.readouterr() == ("", "")
    assert children() == []


@needs_fork
@pytest.mark.parametrize(
    "at_three",
    [
        "print('hello'); print('world', file=sys.stderr)",
        "os.write(1, b'hello'); os.write(2, b'world')",
        "os.system('echo hello; echo world >&2')",
        "import warnings; warnings.warn('hello')",
        "sys.__stdout__.write('hello')",
    ],
    ids=["print", "write", "a shell", "a warning", "the first stdout"],
)
def test_what_it_prints_is_not_our_answer(at_three, file, capfd) -> None:
    assert [one.status for one in heard(file(at_three))] == ["kept", "kept"]
    assert capfd.readouterr() == ("", "")


@needs_fork
@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        ("import time; time.sleep(100)\n", "while it was being built, it took longer than 1 s"),
        ("import os; os._exit(7)\n", "while it was being built, it ended its own process with status 7"),
        ("import sys; sys.exit('bye')\n", "it.py, line 1: SystemExit: bye"),
        ("1 / 0\n", "it.py, line 1: ZeroDivisionError: division by zero"),
        ("def f(:\n", "it.py, line 1: SyntaxError"),
    ],
    ids=["hangs", "ends", "exits", "raises", "is no Python"],
)
def test_a_file_that_cannot_be_read_is_a_sentence(head, sentence, file) -> None:
    with pytest.raises(LabError) as caught:
        heard(file(head=head + HEAD), seconds=1.0)
    assert sentence in str(caught.value)
    assert children() == []


@needs_fork
def test_what_it_leaves_running_is_ended(file, tmp_path) -> None:
    left = tmp_path / "left"
    start = f"import subprocess; open({str(left)!r}, 'w').write(str(subprocess.Popen(['sleep', '300']).pid))"
    for after in ("", "; time.sleep(100)", "; os._exit(0)"):
        heard(file(start + after), seconds=1.0)
        assert gone(int(left.read_text()))


def gone(pid, within=5.0):
    until = time.monotonic() + within
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True  # ended, and waits for init to notice
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@needs_fork
def test_a_child_that_holds_the_line_open_does_not_hold_us(file) -> None:
    """A grandchild inherits the pipe, so that the end of its parent goes unheard by it."""
    began = time.monotonic()
    three, _ = heard(file("os.fork() or time.sleep(100); os._exit(0)"), seconds=20.0)
    assert "ended its own process" in three.sentence
    assert time.monotonic() - began < 10


@needs_fork
def test_a_fork_that_comes_back_twice_answers_once(file) -> None:
    assert [one.status for one in heard(file("os.fork()"))] == ["kept", "kept"]
    assert children() == []


@needs_fork
def test_after_three_that_hang_the_rest_is_left_out(file) -> None:
    slow = [probe(f"slow-{n}", ask_three) for n in range(5)]
    began = time.monotonic()
    findings = heard(file("time.sleep(100)"), seconds=0.5, probes=slow)
    assert [one.code for one in findings] == [one.code for one in slow]
    assert [one.status for one in findings] == ["error"] * 5
    assert "was not asked" in findings[3].sentence
    assert time.monotonic() - began < 10


@needs_fork
def test_a_reader_who_stops_listening_leaves_no_child(file) -> None:
    words = contained(file("time.sleep(100)"), PROBES)
    assert isinstance(next(words), Told)
    assert len(children()) == 1
    words.close()
    assert children() == []


@needs_fork
def test_it_computes_in_a_child_of_a_parent_that_has_computed(file) -> None:
    large = torch.ones(512, 512)
    (large @ large).sum().item()
    assert [one.status for one in heard(file())] == ["kept", "kept"]


@needs_fork
def test_nothing_of_what_it_does_to_its_process_comes_back(file) -> None:
    before = torch.get_default_dtype(), os.getcwd(), torch.is_grad_enabled()
    heard(file(head=HEAD + "torch.set_default_dtype(torch.float16); os.chdir('/'); torch.set_grad_enabled(False)\n"))
    assert (torch.get_default_dtype(), os.getcwd(), torch.is_grad_enabled()) == before


@pytest.mark.parametrize(
    ("at_three", "sentence"), [("pass", ""), ("os._exit(5)", "with status 5"), ("time.sleep(100)", "longer than")]
)
def test_where_nothing_forks_a_fresh_process_does_the_same(at_three, sentence, tmp_path, capfd) -> None:
    from attnlab.audits.probes import future_by_value

    path = tmp_path / "it.py"
    text = MODULE.format(at_three=f"print('hello'); {at_three}").replace("== 3", "== 2")
    path.write_text(HEAD + text)
    found = partial(subject_of, str(path), promises=("causal",))
    told, finding = contained(found, [future_by_value.PROBE], seconds=4.0 if sentence else 60.0, fork=False)
    assert told.name == str(path)
    assert finding.status == ("error" if sentence else "kept")
    assert sentence in finding.sentence
    assert capfd.readouterr() == ("", "")
    assert children() == []
    assert not [one for one in threading.enumerate() if one.name.startswith("listener")]


def test_a_module_in_memory_is_asked_here_and_what_it_prints_is_kept_away(capfd) -> None:
    class Loud(nn.Module):
        def forward(self, x):
            print("hello")
            if x.shape[1] == 3:
                sys.exit(2)
            return x

    told, three, four = in_process(partial(subject_of, Loud(), promises=("finite",)), PROBES, why="because")
    assert "in this process and without limits" in told.asked
    assert "it called sys.exit(2)" in three.sentence
    assert four.status == "kept"
    assert capfd.readouterr() == ("", "")


@needs_fork
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_who_asked_may_be_ended_and_takes_the_child_along(how, tmp_path) -> None:
    path, started = tmp_path / "it.py", tmp_path / "started"
    path.write_text(HEAD + f"open({str(started)!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "attnlab", "audit", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 60
    while not (started.exists() and started.read_text()) and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(how)
    assert process.communicate() == (b"", b"")
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    assert gone(int(started.read_text()))
