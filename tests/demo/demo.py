"""A real Flink job keeps its state in Weir, loses a worker, changes its parallelism, and is right to the row.

Run by `./weir demo`. What happens is told in story; install gets what is needed, data makes the input, cluster and job
speak to Flink, verdict compares with DuckDB, report prints.
"""

from __future__ import annotations

import argparse
import fcntl
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import IO, NoReturn

import install
from install import DemoError

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".weir"
JARS = ROOT / "java" / "flink" / "build" / "libs"

DAYS, SMALL_DAYS, FEWEST_DAYS = 365, 40, 10

#: In the folder of a run with --keep.
KEPT = "keep"

interrupted = False


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="weir demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", choices=("weir", "rocksdb", "hashmap"), default="weir")
    parser.add_argument(
        "--big", action="store_true", help="add generated keys until the state is 20 times the working set"
    )
    parser.add_argument(
        "--events", type=int, metavar="N", help="generated keys to begin with (with --big; default: by size)"
    )
    parser.add_argument("--small", action="store_true", help=f"only {SMALL_DAYS} days of flights, and faster: for CI")
    parser.add_argument("--days", type=int, metavar="N", help=f"days of flights (default: {DAYS}, the whole year)")
    parser.add_argument(
        "--managed", type=int, metavar="MIB", help="managed memory of each TaskManager, the bound of the working set"
    )
    parser.add_argument("--interval", type=float, metavar="S", help="seconds between checkpoints")
    parser.add_argument("--keep", action="store_true", help="keep the run's data and logs")
    options = parser.parse_args()
    if options.days is not None and not FEWEST_DAYS <= options.days <= DAYS:
        parser.error(f"--days: from {FEWEST_DAYS}, so that there is time for what happens, to {DAYS}")
    options.days = options.days or (SMALL_DAYS if options.small else DAYS)
    # How long the input is spread over, so that there is time for what happens meanwhile.
    options.seconds = 15 if options.small else 45
    options.interval = options.interval or (1.5 if options.small else 3)
    options.managed = options.managed or (8 if options.big else 16 if options.small else 32)
    return options


def main() -> int:
    options = parse()
    run = HOME / "demo" / time.strftime("%Y%m%d-%H%M%S")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    passed = False
    try:
        install.enter_environment(HOME)
        install.check_java()
        with lock(HOME / "demo.lock"):
            flink, source = install.flink(HOME), install.flights(HOME)
            place_jar(flink, options.backend)
            from story import Story  # needs DuckDB, which the environment has

            for earlier in run.parent.glob("*"):
                clear(earlier, (earlier / KEPT).exists(), False)  # of a run that was killed, only the logs stay
            run.mkdir(parents=True)
            if options.keep:
                (run / KEPT).touch()
            report = Story(options, run, flink, source).run()
            report.print()
        if wrong := report.wrong():
            print(f"VERDICT: FAILED: {'; '.join(wrong)}. Logs: {run / 'log'}")
        else:
            passed = True
            print("VERDICT: exact. Every result row equals what DuckDB computes from the same files.")
        return 0 if passed else 1
    except DemoError as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, RuntimeError):
        if not interrupted:
            raise
        print(f"\nInterrupted; everything that was started is stopped. Logs: {run / 'log'}", file=sys.stderr)
        return 130
    finally:
        clear(run, options.keep, passed)


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
        raise DemoError("another demo runs; wait for it or stop it") from None
    return stream


def clear(run: Path, keep: bool, passed: bool) -> None:
    """Removes what the run wrote; of a failed one the logs and the configuration stay."""
    if keep or not run.exists():
        return
    if passed:
        shutil.rmtree(run, ignore_errors=True)
        return
    for path in run.iterdir():
        if path.is_dir() and path.name not in ("log", "conf"):
            shutil.rmtree(path, ignore_errors=True)


def interrupt(*_: object) -> NoReturn:
    global interrupted
    interrupted = True  # DuckDB turns the exception into one of its own
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
