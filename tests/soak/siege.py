"""What happens in the soak, from the first file of input to the verdict."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from cluster import Cluster
from fluss import Fluss
from install import FLINK_VERSION, DemoError
from job import Checkpoint, Job
from load import Load
from report import Phase, differences, disk_bytes, machine, mb, print_phases, print_results
from session import FLUSS
from story import SINK
from strikes import Strike, plan
from verdict import Result, Verdict

HERE = Path(__file__).resolve().parent

PARALLELISM = 2
#: Seconds after a kill within which all tasks must run and a checkpoint be complete, on a busy machine too.
RECOVERY = 600.0


@dataclass
class Blow:
    """A strike that was carried out at `at` (seconds since the epoch) on `name`.

    `running` and `recovered`: seconds until all tasks ran again, and until a checkpoint begun after the kill was complete;
    `None` if the next kill came before.
    """

    strike: Strike
    name: str
    at: float
    running: float | None = None
    recovered: float | None = None


@dataclass
class Siege:
    """One run; all its data lies in the folder `run`."""

    options: argparse.Namespace
    flink: Path
    run: Path
    blows: list[Blow] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begun = time.monotonic()
        self._last_status = 0.0
        self._strikes = plan(self.options.seed, self.options.kills, self.options.store, self.options.interval)
        self._load = Load(self.options.seed, self.options.rate, self.run)
        self._fluss = Fluss(self.run / FLUSS, tablets=3) if self.options.store == "fluss" else None
        self._mending: threading.Thread | None = None
        self._broken: list[DemoError] = []
        self._checkpoints: dict[int, Checkpoint] = {}
        text = (HERE / "expected.sql").read_text()
        self._verdict = Verdict(Template(text).substitute(input=self.run / "input"), self.run / "output")
        self._job: Job
        self._cluster: Cluster

    def hold(self) -> list[str]:
        """Runs it, prints the table; returns what is wrong."""
        self._cluster = Cluster(
            self.flink, self.run, "weir", self.options.managed, self.options.interval, task_managers=PARALLELISM, slots=1
        )
        try:
            self._start()
            for number, strike in enumerate(self._strikes, 1):
                self._await_moment(strike)
                self._strike(number, strike)
            self._recover()
            self._finish()
        finally:
            self._say("Stopping the clusters")
            self._load.stop()
            self._cluster.stop()
            if self._fluss:
                self._fluss.stop()
        return self._wrong()

    def _start(self) -> None:
        self._say(f"Seed {self.options.seed}: --seed {self.options.seed} makes the same input and the same plan of kills")
        if self._fluss:
            self._say(f"Starting Fluss: a coordinator and {self._fluss.tablets} tablet servers, replication 3")
            self._fluss.start()
            self._cluster.extra |= self._fluss.settings()
        self._cluster.extra |= {
            "state.backend.weir.store": self.options.store,
            # However often it is killed, the job goes on.
            "restart-strategy.fixed-delay.attempts": str(1 << 30),
            "execution.checkpointing.tolerable-failed-checkpoints": str(1 << 30),
            "web.checkpoints.history": "1000",
        }
        self._say(f"Starting Flink {FLINK_VERSION}: a JobManager and {PARALLELISM} TaskManagers, store {self.options.store}")
        self._cluster.start()
        self._say(f"Flink's page: {self._cluster.page} (logs: {self._cluster.logs})")
        names = {
            "input": (self.run / "input").as_uri(),
            "output": (self.run / "output").as_uri(),
            "sink": SINK,
            "monitor_interval": "200 ms",
        }
        settings = {"parallelism.default": str(PARALLELISM), "pipeline.name": "weir soak"}
        sql = Template((HERE / "job.sql").read_text()).substitute(names)
        self._job = Job(self._cluster, self._cluster.sql(sql, "soak", **settings), PARALLELISM)
        self._job.wait_running()
        self._load.start()
        self._until(lambda: len(self._completed()) >= 2, "two checkpoints", RECOVERY)

    def _await_moment(self, strike: Strike) -> None:
        """Waits until it is time for the strike."""
        if strike.early:
            due = self.blows[-1].at + strike.delay
            self._until(lambda: time.time() >= due, "the next kill", RECOVERY, pause=0.02)
        else:
            self._recover()
            due = time.time() + strike.delay
            self._until(lambda: time.time() >= due, "the next kill", RECOVERY, pause=0.02)

    def _strike(self, number: int, strike: Strike) -> None:
        if strike.kind == "TaskManager":
            workers = [each for each in self._cluster.processes if each.id.startswith("taskmanager-")]
            victim = workers[int(strike.choice * len(workers))]
            name = victim.name
            at = time.time()
            os.kill(victim.popen.pid, signal.SIGKILL)
            self._cluster.forget(victim)
            self._cluster.start_task_manager()
        else:
            assert self._fluss is not None
            # A majority of each bucket's replicas must live: one server at a time.
            self._await_mended()
            servers = [each for each in self._fluss.servers() if each.startswith(strike.kind.split()[0])]
            name = servers[int(strike.choice * len(servers))]
            at = time.time()
            self._fluss.kill(name)
            self._mending = threading.Thread(target=self._mend, args=(name,), name="mending", daemon=True)
            self._mending.start()
        self.blows.append(Blow(strike, name, at))
        how = "before the job had recovered" if strike.early else f"{strike.delay:.1f} s after a checkpoint"
        self._say(f"Kill {number} of {len(self._strikes)}: {name}, {how}; it starts again")

    def _mend(self, server: str) -> None:
        assert self._fluss is not None
        try:
            self._fluss.restart(server)
            self._fluss.settle()
        except DemoError as error:
            self._broken.append(error)

    def _await_mended(self) -> None:
        if self._mending:
            thread = self._mending
            self._until(lambda: not thread.is_alive(), "the Fluss server's replicas to be in sync again", RECOVERY)
            self._mending = None

    def _recover(self) -> None:
        """Waits until all tasks run and a checkpoint that began after the last kill is complete."""
        if not self.blows:
            return
        blow = self.blows[-1]

        # Until the JobManager has noticed, the job seems to run. The loss of a Fluss server need not make it restart.
        restarts = blow.strike.kind == "TaskManager"

        def recovered() -> bool:
            if blow.running is None and (not restarts or self._job.restored_at() > blow.at) and self._job.running():
                blow.running = time.time() - blow.at
            done = self._completed()[-1:]
            if blow.running is not None and done and done[0].began > blow.at:
                blow.recovered = time.time() - blow.at
            return blow.recovered is not None

        self._until(recovered, f"the job to recover from the kill of {blow.name}", RECOVERY)

    def _finish(self) -> None:
        self._await_mended()
        self._load.stop()
        self._say(f"The last kill is over; {self._load.events:,} events were given. Waiting until all are counted")
        counted = 0

        def all_counted() -> bool:
            nonlocal counted
            counted = self._verdict.counted("totals", "events")
            return counted >= self._load.events

        self._until(all_counted, "all events to be counted", 1800, pause=2)
        for _ in range(5):
            seen = self._completed()[-1].id
            self._until(lambda last=seen: self._completed()[-1].id >= last + 2, "two more checkpoints", RECOVERY)
            self._say("DuckDB computes the queries and compares every row")
            self.results = self._verdict.compare()
            if not differences(self.results):
                break
        self._report()
        self._job.cancel()

    def _wrong(self) -> list[str]:
        few = len(self.blows) < self.options.kills
        return [*differences(self.results), *(["not every kill was carried out"] if few else [])]

    def _report(self) -> None:
        counts = self._job.counts()
        last = max(self._checkpoints)
        line = "{:<18}{}".format
        print()
        rows = ", ".join(f"{count:,} {name}" for name, count in self._verdict.input_rows().items())
        print(line("Rows in", rows))
        stored = disk_bytes(self._fluss.root / "data" if self._fluss else self._cluster.checkpoints)
        print(line("State", f"{mb(self._checkpoints[last].state)} in checkpoint {last}; {mb(stored)} on disk"))
        print(line("Working set", f"at most {mb(PARALLELISM * self.options.managed << 20)}, the managed memory"))
        print(
            line("Checkpoints", f"{counts['completed']} completed, {counts['failed']} failed; restored {counts['restored']} times")
        )
        print(line("Machine", machine()))
        print()
        print_phases([Phase("the whole run", sorted(self._checkpoints.values(), key=lambda each: each.id))])
        print()
        print(
            f"{'killed':<16}{'times':>7}{'early':>7}{'all tasks ran, seconds: median':>34}{'max':>7}"
            f"{'next checkpoint: median':>25}{'max':>7}"
        )
        for kind in sorted({each.strike.kind for each in self.blows}):
            of_kind = [each for each in self.blows if each.strike.kind == kind]
            running = [each.running for each in of_kind if each.running is not None]
            recovered = [each.recovered for each in of_kind if each.recovered is not None]
            print(
                f"{kind:<16}{len(of_kind):>7}{sum(each.strike.early for each in of_kind):>7}"
                f"{_median(running):>34}{_most(running):>7}{_median(recovered):>25}{_most(recovered):>7}"
            )
        print("(early: the job had not recovered from the kill before; the time of that one is not taken)")
        print()
        print_results(self.results)
        print()

    def _completed(self) -> list[Checkpoint]:
        """The completed checkpoints that Flink still lists; all are remembered for the table."""
        listed = self._job.completed()
        self._checkpoints |= {each.id: each for each in listed}
        return listed

    def _until(self, done: Callable[[], bool], what: str, timeout: float, pause: float = 0.2) -> None:
        def step() -> bool:
            if self._broken:
                raise self._broken[0]
            self._job.check()
            if time.monotonic() - self._last_status >= 10:
                self._last_status = time.monotonic()
                last = self._completed()[-1:]
                checkpoint = f"checkpoint {last[0].id}: {mb(last[0].state)} in {last[0].seconds:.1f} s" if last else "no checkpoint"
                self._say(f"{len(self.blows)} of {len(self._strikes)} kills, {self._load.events:,} events given, {checkpoint}")
            return done()

        self._cluster.wait(step, what, timeout, pause)

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._begun:5.0f} s] {text}", flush=True)


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.1f}" if values else "-"


def _most(values: list[float]) -> str:
    return f"{max(values):.1f}" if values else "-"
