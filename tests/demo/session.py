"""One run of a program on a Flink cluster of its own: what it needs, its folder, its lock, and what stays of it."""

from __future__ import annotations

import fcntl
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

import install
from install import DemoError

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".weir"
JARS = ROOT / "java" / "flink" / "build" / "libs"

#: In the folder of a run with --keep.
KEPT = "keep"

#: The folder of a run's Fluss cluster, which has logs and a configuration of its own.
FLUSS = "fluss"

interrupted = False


@dataclass(frozen=True)
class Session:
    """`name` is the program's; `backend` is the state backend, whose jar is put into Flink's lib/."""

    name: str
    backend: str
    keep: bool

    def run(self, body: Callable[[Path, Path], list[str]], exact: str) -> int:
        """Calls `body` with Flink's folder and one for the run; returns the exit status.

        It answers with what is wrong; nothing: the verdict is `exact`.
        """
        run = HOME / self.name / time.strftime("%Y%m%d-%H%M%S")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, interrupt)
        passed = False
        try:
            install.enter_environment(HOME)
            install.check_java()
            with lock(HOME / "flink.lock"):
                flink = install.flink(HOME)
                place_jar(flink, self.backend)
                for earlier in run.parent.glob("*"):
                    clear(earlier, (earlier / KEPT).exists(), False)  # of a run that was killed, only the logs stay
                run.mkdir(parents=True)
                if self.keep:
                    (run / KEPT).touch()
                wrong = body(flink, run)
            if wrong:
                print(f"VERDICT: FAILED: {'; '.join(wrong)}. Logs: {run / 'log'}")
            else:
                passed = True
                print(f"VERDICT: exact. {exact}")
            return 0 if passed else 1
        except DemoError as error:
            print(f"\nThe {self.name} failed: {error}", file=sys.stderr)
            return 1
        except (KeyboardInterrupt, RuntimeError):
            if not interrupted:
                raise
            print(f"\nInterrupted; everything that was started is stopped. Logs: {run / 'log'}", file=sys.stderr)
            return 130
        finally:
            clear(run, self.keep, passed)


def place_jar(flink: Path, backend: str) -> None:
    """Puts the Weir jar, and only if it is asked for, into Flink's lib/."""
    for old in (flink / "lib").glob("weir-*.jar"):
        old.unlink()
    if backend == "weir":
        jars = list(JARS.glob("weir-flink-*.jar"))
        if len(jars) != 1:
            raise DemoError(
                f"there must be one weir-flink-*.jar in {JARS}, and there are {len(jars)}; ./weir build makes it"
            )
        shutil.copy(jars[0], flink / "lib")


def lock(path: Path) -> IO[str]:
    """Keeps two runs from sharing one Flink folder, until it is closed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = path.open("w")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DemoError("another run of demo or soak is under way; wait for it or stop it") from None
    return stream


def clear(run: Path, keep: bool, passed: bool) -> None:
    """Removes what the run wrote; of a failed one the logs and the configuration stay."""
    if keep or not run.exists():
        return
    if passed:
        shutil.rmtree(run, ignore_errors=True)
        return
    for path in run.iterdir():
        if path.name == FLUSS:
            clear(path, keep, passed)
        elif path.is_dir() and path.name not in ("log", "conf"):
            shutil.rmtree(path, ignore_errors=True)


def interrupt(*_: object) -> NoReturn:
    global interrupted
    interrupted = True  # DuckDB turns the exception into one of its own
    raise KeyboardInterrupt
