"""A real Flink cluster under load loses processes at random, again and again, and its counts are right to the row.

Run by `./weir soak`. strikes is the plan of kills, load makes the input, siege runs both and prints; all else is the demo's.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "demo"))

from session import Session
from strikes import WEIGHTS


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="weir soak",
        description=(__doc__ or "").splitlines()[0],
        epilog="Exit status 0: every row of every result is what DuckDB computes from the same files. About 10 s a kill.",
    )
    parser.add_argument("--store", choices=sorted(WEIGHTS), default="embedded", help="where the state lies (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, metavar="N", help="makes the input and the plan of kills (default: random, and printed)")
    parser.add_argument("--rate", type=int, default=1000, metavar="N", help="events a second (default: %(default)s)")
    parser.add_argument(
        "--managed", type=int, default=8, metavar="MIB", help="managed memory of each TaskManager (default: %(default)s)"
    )
    parser.add_argument("--interval", type=float, default=1.5, metavar="S", help="seconds between checkpoints (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the run's data and logs")
    options = parser.parse_args()
    if options.kills < 1 or options.rate < 1:
        parser.error("--kills and --rate are at least 1")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
        sys.argv += ["--seed", str(options.seed)]  # the program is started again, in its environment
    return options


def main() -> int:
    options = parse()

    def body(flink: Path, run: Path) -> list[str]:
        from siege import Siege  # needs DuckDB, which the environment has

        return Siege(options, flink, run).hold()

    return Session("soak", "weir", options.keep).run(
        body, f"After {options.kills} kills every result row equals what DuckDB computes from the same files."
    )


if __name__ == "__main__":
    sys.exit(main())
