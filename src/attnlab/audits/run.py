"""How is a subject asked without being trusted? In a process of its own, with limits of time and memory."""

import contextlib
import faulthandler
import io
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from attnlab.audits.probe import Probe
from attnlab.errors import LabError
from attnlab.records.finding import Finding
from attnlab.subjects.files import PREFIX, in_one_line
from attnlab.subjects.subject import Subject

SECONDS = 20.0
GIBIBYTES = 4.0
PATIENCE = 3  # how many probes may take too long before the rest are left out


class Told(NamedTuple):
    """What a card says above its findings."""

    name: str
    kind: str
    guess: str
    promises: tuple[str, ...]
    asked: str = ""


@runtime_checkable
class Named(Protocol):
    """What is asked, as a card names it."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def guess(self) -> str: ...

    @property
    def promises(self) -> tuple[str, ...]: ...


class Job(NamedTuple):
    """What a process is to find and to ask."""

    found: Callable[[], Any]
    probes: tuple[Probe, ...]
    gibibytes: float


Word = Told | Finding | LabError | None
"""What a process says: what the subject is, findings, why there are none; None: that was all."""


class Silence(Exception):
    """Nothing was said for too long."""


class Gone(Exception):
    """The process ended and did not say that it was done."""


@runtime_checkable
class Asked(Protocol):
    """A process that answers."""

    def hear(self, seconds: float) -> Word: ...

    def end(self) -> str: ...


def contained(
    found: Callable[[], Any],
    probes: Sequence[Probe],
    *,
    seconds: float = SECONDS,
    gibibytes: float = GIBIBYTES,
    fork: bool | None = None,
) -> Iterator[Told | Finding]:
    """What the subject is, then a finding for each probe, as they come.

    The subject is found, built and asked in another process that computes on one thread; this one only listens. A
    probe that hangs, dies or eats memory is an error of its own, and the next goes on in a fresh process. Without a
    fork, `found` and the probes travel pickled.
    """
    start = Forked if (forks() if fork is None else fork) else Fresh
    left, told, slow = list(probes), False, 0
    while left or not told:
        child = start(Job(found, tuple(left), gibibytes))
        heard = False  # of this child
        try:
            while True:
                word = child.hear(seconds * (left[0].patience if heard and left else 1.0))
                if isinstance(word, LabError) and not told:
                    raise word
                if isinstance(word, LabError):
                    raise Gone(str(word))
                if word is None:
                    break
                if isinstance(word, Told):
                    heard = True
                    if not told:
                        told = True
                        yield word._replace(asked=_limits(seconds, gibibytes))
                else:
                    left.pop(0)
                    yield word
            continue
        except Silence:
            limit = seconds * (left[0].patience if heard else 1.0)
            why, slow = f"it took longer than {limit:g} s (--seconds gives it more)", slow + 1
        except Gone as gone:
            why = str(gone) or child.end()
        finally:
            child.kill()
        if not told:
            raise LabError(f"it could not be audited: while it was being built, {why}")
        if left:
            again = "" if heard else "when it was built once more, "
            yield left.pop(0).finding("error", f"could not be measured: {again}{why}")
        if slow == PATIENCE:
            for probe in left:
                yield probe.finding("error", f"was not asked: {PATIENCE} before it took longer than {seconds:g} s")
            return


def in_process(found: Callable[[], Subject], probes: Sequence[Probe], *, why: str = "") -> Iterator[Told | Finding]:
    """The same without a process of its own, for a module that exists only in memory."""
    with _hushed():
        subject = found()
    yield told_of(subject)._replace(asked=f"in this process and without limits, {why or 'as it was asked for'}")
    for probe in probes:
        with _hushed():
            finding = finding_of(probe, subject)
        yield finding


def forks() -> bool:
    """Whether a process can be forked from this one and still compute.

    Not on a Mac, whose libraries forbid it, nor where a GPU may have been woken: its threads do not come along.
    """
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin" and not _gpu()


@cache
def _gpu() -> bool:
    return torch.cuda.device_count() > 0


def told_of(subject: Named) -> Told:
    return Told(subject.name, subject.kind, subject.guess, subject.promises)


def finding_of(probe: Probe, subject: Subject) -> Finding:
    """Its own errors are a finding, too."""
    try:
        return probe(subject)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return probe.finding("error", f"could not be measured: {_said(error)}")


def _said(error: BaseException) -> str:
    """The error and its place, in the reader's file if it passed through one."""
    try:
        words = in_one_line(error)
    except Exception:  # an error of the reader's own that cannot say itself
        words = type(error).__name__
    if isinstance(error, SystemExit):
        words = f"it called sys.exit({error.code!r})"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = {module.__file__ for name, module in list(sys.modules.items()) if name.startswith(PREFIX)}
    apart = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    ranked = [frame for frame in frames if frame.filename in theirs] or [
        frame for frame in frames if not frame.filename.startswith(apart)
    ]
    place = (ranked or list(frames))[-1:]
    return words + "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in place)


def _is_of_memory(error: BaseException | None) -> bool:
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in ("allocate memory", "std::bad_alloc"))
    )


def _limits(seconds: float, gibibytes: float) -> str:
    memory = f" and {gibibytes:g} GiB" if _limits_memory() else ""
    return f"in a process of its own, {seconds:g} s{memory} for each probe"


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """What a reader's code prints or warns of is not our answer."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _answer(job: Job, send: Callable[[Word], None]) -> None:
    """What a process does: find the subject, ask it, say what comes."""
    # A child of a process that has computed hangs in its first product unless it says this first.
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _limit_memory(job.gibibytes)
    me, memory = os.getpid(), f"it asked for more memory than {job.gibibytes:g} GiB (--memory gives it more)"
    try:
        subject = job.found()
    except BaseException as error:
        send(_refusal(error, memory))
        return
    send(told_of(subject))
    for probe in job.probes:
        full = False
        try:
            finding = probe(subject)
        except BaseException as error:
            full = _is_of_memory(error)
            finding = probe.finding("error", f"could not be measured: {memory if full else _said(error)}")
        if os.getpid() != me:  # the reader's code has forked and come back twice
            os._exit(1)
        send(finding)
        if full:  # what it holds would be missed by the next
            break
    send(None)


def _refusal(error: BaseException, memory: str) -> LabError:
    """Why there is nothing to ask; as plain words, since what a reader raises may not travel."""
    if _is_of_memory(error) or _is_of_memory(error.__cause__):
        return LabError(f"it could not be audited: while it was being built, {memory}")
    return LabError(str(error) if isinstance(error, LabError) else _said(error))


def _limits_memory() -> bool:
    """Elsewhere the system accepts the limit and ignores it, or knows none; a GPU takes more addresses than any."""
    return sys.platform == "linux" and not _gpu()


def _limit_memory(gibibytes: float) -> None:
    """On top of what is there already."""
    if not _limits_memory():
        return
    try:
        import resource

        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + int(gibibytes * 2**30), resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        return


def _alone() -> None:
    """Whatever is read, printed or started here is cut off from who started us, and ends with them."""
    if hasattr(os, "setsid"):
        with contextlib.suppress(OSError):
            os.setsid()
    faulthandler.disable()
    null = os.open(os.devnull, os.O_RDWR)
    for place in (0, 1, 2):
        os.dup2(null, place)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115


def _end_after(waited: Callable[[], Any]) -> None:
    """This process and all that it started end as soon as what is waited for returns: who asked has gone."""

    def wait() -> None:
        waited()
        if hasattr(os, "killpg"):
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class Forked:
    """A process that begins as a copy of this one."""

    def __init__(self, job: Job) -> None:
        self.ours, theirs = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("fork").Process(target=_forked, args=(theirs, job), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads: the child computes on one
            self.process.start()
        theirs.close()

    def hear(self, seconds: float) -> Word:
        """A grandchild may hold the pipe open, so that its end says nothing: the process itself is asked."""
        until = time.monotonic() + seconds
        while not self.ours.poll(0.05):
            if not self.process.is_alive() and not self.ours.poll(0):
                raise Gone
            if time.monotonic() > until:
                raise Silence
        try:
            word: Word = self.ours.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            raise Gone from None
        return word

    def end(self) -> str:
        self.process.join(1)
        return _ended(self.process.exitcode)

    def kill(self) -> None:
        _kill_group(self.process.pid)
        self.process.kill()
        self.process.join()
        self.process.close()
        self.ours.close()


def _forked(theirs: Any, job: Job) -> None:
    multiprocessing.current_process().daemon = False  # it may start processes of its own
    _alone()
    parent = multiprocessing.parent_process()
    if parent is not None:
        _end_after(parent.join)
    _answer(job, theirs.send)


class Fresh:
    """A process that begins from nothing and is told what to do."""

    def __init__(self, job: Job) -> None:
        told = pickle.dumps(job)
        here = os.pathsep.join([*filter(None, sys.path)])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from attnlab.audits.run import fresh; fresh()"],
            env={**os.environ, "PYTHONPATH": here},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=os.name != "nt",
        )
        self.words: queue.Queue[Any] = queue.Queue()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(told)  # and is left open: its end tells the process of ours
            self.process.stdin.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        while True:
            try:
                self.words.put(pickle.load(self.process.stdout))
            except Exception:
                self.words.put(Gone)
                return

    def hear(self, seconds: float) -> Word:
        until = time.monotonic() + seconds
        while True:
            try:
                word = self.words.get(timeout=0.05)
            except queue.Empty:
                if self.process.poll() is not None and self.words.empty() and not self.listener.is_alive():
                    raise Gone from None
                if time.monotonic() > until:
                    raise Silence from None
                continue
            if word is Gone:
                raise Gone
            told: Word = word
            return told

    def end(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        return _ended(self.process.returncode)

    def kill(self) -> None:
        _kill_group(self.process.pid)
        self.process.kill()
        self.process.wait()
        self.listener.join(1)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        if not self.listener.is_alive():
            self.process.stdout.close()


def fresh() -> None:
    """What a fresh process does: its job comes by standard input, its answers go out where standard output was."""
    told, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    _alone()
    job = pickle.load(told)
    _end_after(told.read)

    def send(word: Word) -> None:
        pickle.dump(word, out)
        out.flush()

    _answer(job, send)
    os._exit(0)


def _kill_group(pid: int | None) -> None:
    """The process and all that it started."""
    if pid is not None and hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _ended(code: int | None) -> str:
    if code is None:
        return "it stopped answering"
    if code >= 0:
        return f"it ended its own process with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was killed by {name}"
