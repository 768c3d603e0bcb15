"""A real Flink job keeps its state in Weir, loses a worker, changes its parallelism, and is right to the row.

Run by `./weir demo`. What happens is told in story; install gets what is needed, session has the run's folder, data makes
the input, cluster and job speak to Flink, fluss starts the store's servers, verdict compares with DuckDB, report prints.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import install
from session import HOME, Session

DAYS, SMALL_DAYS, FEWEST_DAYS = 365, 40, 10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="weir demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", choices=("weir", "rocksdb", "hashmap"), default="weir")
    parser.add_argument(
        "--store",
        choices=("embedded", "fluss"),
        default="embedded",
        help="where Weir keeps the state: SlateDB inside the TaskManagers, or a Fluss cluster that the demo starts",
    )
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
    if options.store != "embedded" and options.backend != "weir":
        parser.error(f"--store {options.store} is a store of Weir: not with --backend {options.backend}")
    options.days = options.days or (SMALL_DAYS if options.small else DAYS)
    # How long the input is spread over, so that there is time for what happens meanwhile.
    options.seconds = 15 if options.small else 45
    options.interval = options.interval or (1.5 if options.small else 3)
    options.managed = options.managed or (8 if options.big else 16 if options.small else 32)
    return options


def main() -> int:
    options = parse()

    def body(flink: Path, run: Path) -> list[str]:
        from story import Story  # needs DuckDB, which the environment has

        report = Story(options, run, flink, install.flights(HOME)).run()
        report.print()
        return report.wrong()

    session = Session("demo", options.backend, options.keep)
    return session.run(body, "Every result row equals what DuckDB computes from the same files.")


if __name__ == "__main__":
    sys.exit(main())
