"""The figures of a run, and the table and the verdict made from them."""

from __future__ import annotations

import contextlib
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from job import Checkpoint, Failure, Kill
from verdict import Result


@dataclass(frozen=True)
class Phase:
    """The completed checkpoints of a part of the run."""

    name: str
    checkpoints: list[Checkpoint]


@dataclass(frozen=True)
class Restore:
    """Why a checkpoint was restored, its id (0: none was), and the seconds until all tasks ran and had their state
    opened, and until the first new result, which takes a checkpoint to be published.
    """

    what: str
    checkpoint: int
    running: float
    seconds: float


@dataclass
class Report:
    """What a run adds up to. `working_set` and `stored` in bytes; `left_at_kill` in files of input."""

    working_set: int
    disk_note: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)
    kill: Kill | None = None
    left_at_kill: int = 0
    stored: int = 0
    results: list[Result] = field(default_factory=list)
    unplanned: list[Failure] = field(default_factory=list)

    def wrong(self) -> list[str]:
        """What speaks against the run; nothing if all is right."""
        return [
            *differences(self.results),
            *(["the kill came after the input's end"] if not self.left_at_kill else []),
            *(f"no checkpoint was restored after {each.what}" for each in self.restores if not each.checkpoint),
        ]

    def print(self) -> None:
        last = self.phases[-1].checkpoints[-1]
        line = "{:<18}{}".format
        print()
        print(line("Rows in", ", ".join(f"{count:,} {name}" for name, count in self.rows.items())))
        print(line("State", f"{mb(last.state)} in the last checkpoint ({last.id}); {mb(self.stored)} on disk"))
        if self.disk_note:
            print(line("", f"({self.disk_note})"))
        ratio = last.state / self.working_set
        print(
            line(
                "Working set",
                f"at most {mb(self.working_set)}, the managed memory; the state is {ratio:.1f} times that",
            )
        )
        print(line("Machine", machine()))
        print()
        print_phases(self.phases)
        print()
        if self.kill:
            print(
                f"{self.kill.process} was killed during checkpoint {self.kill.checkpoint} ({self.kill.acknowledged} of "
                f"{self.kill.subtasks} subtasks done), with {self.left_at_kill} files of input to come"
            )
        for each in self.restores:
            print(
                f"After {each.what}: checkpoint {each.checkpoint} restored, all tasks ran after {each.running:.1f} s, "
                f"first new result after {each.seconds:.1f} s"
            )
        print()
        print_results(self.results)
        for failure in self.unplanned:
            print(f"WARNING: the job also failed and recovered by itself: {failure.trace.splitlines()[0]}")
        print()


def differences(results: list[Result]) -> list[str]:
    """The queries whose result is not what it must be."""
    return [f"{each.table} differs in {each.missing + each.surplus:,} rows" for each in results if not each.equal]


def print_phases(phases: list[Phase]) -> None:
    print(
        f"{'checkpoints':<34}{'number':>7}{'seconds: median':>17}{'max':>7}"
        f"{'written: median':>17}{'max':>10}{'full size':>11}"
    )
    for phase in phases:
        if phase.checkpoints:
            seconds = [each.seconds for each in phase.checkpoints]
            written = [each.bytes for each in phase.checkpoints]
            print(
                f"{phase.name:<34}{len(seconds):>7}{statistics.median(seconds):>17.2f}{max(seconds):>7.2f}"
                f"{mb(statistics.median(written)):>17}{mb(max(written)):>10}{mb(phase.checkpoints[-1].state):>11}"
            )


def print_results(results: list[Result]) -> None:
    print(f"{'query':<14}{'rows':>10}{'changes':>11}{'missing':>9}{'surplus':>9}  what it is")
    for result in results:
        print(
            f"{result.table:<14}{result.rows:>10,}{result.changes:>11,}{result.missing:>9,}{result.surplus:>9,}"
            f"  {result.title}"
        )
        for sample in result.samples:
            print(f"    {sample}")


def machine() -> str:
    load = ", ".join(f"{each:.0f}" for each in os.getloadavg())
    return f"{os.cpu_count()} processors, load {load} (last 1, 5, 15 minutes)"


def disk_bytes(folder: Path) -> int:
    """What the files below a folder add up to; those that go meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
