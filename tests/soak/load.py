"""The soak's input: files of random events and names, by a seed, for as long as they are wanted."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from data import Step, give, staged

#: Keys there are; half of the events go to the hot ones.
KEYS, HOT_KEYS, KINDS = 50_000, 500, 40
#: Seconds between two files, and keys that get their name in one.
PAUSE, NAMES_A_FILE = 0.5, 40


class Load:
    """Gives a file of `rate` events a second, half a second's each; what is in the files depends on the seed alone."""

    def __init__(self, seed: int, rate: int, run: Path) -> None:
        self.events = 0
        self._seed = seed
        self._events_a_file = max(1, int(rate * PAUSE))
        self._stage, self._target = run / "stage", run / "input"
        self._unnamed = list(range(KEYS))
        random.Random(f"{seed} names").shuffle(self._unnamed)
        self._files = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._give_files, name="load", daemon=True)
        for folder in ("events", "names"):
            (self._target / folder).mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Gives no more; idempotent."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _give_files(self) -> None:
        due = time.monotonic()
        while not self._stopped.is_set():
            step = self._make()
            give(step, self._target)
            self.events += self._events_a_file
            # A machine that was too slow for a while is not given a flood.
            due = max(due + PAUSE, time.monotonic())
            self._stopped.wait(due - time.monotonic())

    def _make(self) -> Step:
        numbers = random.Random(f"{self._seed} events {self._files}")
        first = self._files * self._events_a_file
        lines = []
        for n in range(first, first + self._events_a_file):
            key = numbers.randrange(HOT_KEYS if numbers.random() < 0.5 else KEYS)
            lines.append(f"{key},{numbers.randrange(KINDS)},{numbers.randrange(-1_000_000, 1_000_000)},{n}\n")
        name = f"{self._files:06}.csv"
        files = [staged(self._stage, "events", name, lines)]
        new, self._unnamed = self._unnamed[:NAMES_A_FILE], self._unnamed[NAMES_A_FILE:]
        if new:
            files.append(staged(self._stage, "names", name, [f"{key},name of {key}\n" for key in new]))
        self._files += 1
        return Step(tuple(files))
