"""The job's input: real flights in a file a day, generated readings, and a feeder that hands them to Flink."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

#: Rows of generated readings in a file.
READINGS_A_FILE = 50_000


@dataclass(frozen=True)
class Step:
    """Files that are moved into the watched folders together, and the rows in them."""

    files: tuple[tuple[Path, Path], ...]
    flights: int = 0
    readings: int = 0

    def __add__(self, other: Step) -> Step:
        return Step(self.files + other.files, self.flights + other.flights, self.readings + other.readings)


def split_by_day(source: Path, stage: Path, days: int) -> list[Step]:
    """Cuts the flights and the weather of the first `days` days into files, lines unchanged and without header.

    The first step brings the planes, each other step one day: its weather and its flights.
    """
    weather = _lines_by_day(source / "weather.csv", first_column=1)
    flights = _lines_by_day(source / "flights.csv", first_column=0)
    planes = (source / "planes.csv").read_text().splitlines(keepends=True)[1:]
    steps = [Step((staged(stage, "planes", "planes.csv", planes),))]
    for day in sorted(flights)[:days]:
        name = f"{day[0]}-{day[1]:02}-{day[2]:02}.csv"
        files = [staged(stage, "flights", name, flights[day])]
        if day in weather:
            files.insert(0, staged(stage, "weather", name, weather[day]))
        steps.append(Step(tuple(files), len(flights[day])))
    return steps


def make_readings(stage: Path, sensors: int, first: int) -> Step:
    """Writes one file with a first reading of each of `sensors` new sensors, numbered from `first`."""
    numbers = random.Random(first)
    lines = [f"{sensor},{numbers.randrange(1_000_000)}\n" for sensor in range(first, first + sensors)]
    return Step((staged(stage, "readings", f"new-{first:09}.csv", lines),), readings=sensors)


def make_later_readings(stage: Path, rows: int, sensors: int, number: int) -> Step:
    """Writes one file with `rows` readings of random sensors that have been seen: cold state is read and changed."""
    numbers = random.Random(f"later {number}")
    lines = [f"{numbers.randrange(sensors)},{numbers.randrange(1_000_000)}\n" for _ in range(rows)]
    return Step((staged(stage, "readings", f"later-{number:04}.csv", lines),), readings=rows)


def give(step: Step, target: Path) -> None:
    """Moves a step's files into the watched folders below `target`."""
    # A move within a file system is atomic, so Flink never sees half a file.
    for source, path in step.files:
        source.rename(target / path)


class Feeder:
    """Moves steps into the folder `input` at `pause` seconds a step, up to a limit that the demo raises."""

    def __init__(self, steps: list[Step], target: Path, pause: float) -> None:
        self.steps = steps
        self.given = 0
        self.flights = sum(step.flights for step in steps)
        self.readings = sum(step.readings for step in steps)
        self._target = target
        self._pause = pause
        self._limit = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        for folder in ("planes", "weather", "flights", "readings"):
            (target / folder).mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def allow(self, fraction: float) -> None:
        """Lets this part of all steps go, and keeps the rest."""
        self._limit = max(self._limit, int(len(self.steps) * fraction))

    @property
    def waiting(self) -> bool:
        """Whether everything allowed is given."""
        return self.given >= self._limit

    @property
    def left(self) -> int:
        """Steps not yet given."""
        return len(self.steps) - self.given

    def give_extra(self, step: Step) -> None:
        """Gives a step that is not one of `steps`, at once."""
        self.flights += step.flights
        self.readings += step.readings
        give(step, self._target)

    def _feed(self) -> None:
        while not self._stopped.is_set() and self.left:
            if self.waiting:
                time.sleep(0.05)
                continue
            give(self.steps[self.given], self._target)
            self.given += 1
            self._stopped.wait(self._pause)


def _lines_by_day(path: Path, first_column: int) -> dict[tuple[int, int, int], list[str]]:
    days: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    with path.open() as stream:
        next(stream)
        for line in stream:
            year, month, day = line.split(",", first_column + 3)[first_column : first_column + 3]
            days[int(year), int(month), int(day)].append(line)
    return days


def staged(stage: Path, folder: str, name: str, lines: list[str]) -> tuple[Path, Path]:
    """Writes a file for a step; it lies below `stage` until `give` moves it."""
    path = stage / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
    return path, Path(folder) / name
