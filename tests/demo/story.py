"""What happens in the demo, from the first file of input to the verdict."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from string import Template

import install
from cluster import Cluster
from data import READINGS_A_FILE, Feeder, Step, make_later_readings, make_readings, split_by_day
from fluss import Fluss
from install import DemoError
from job import Job
from report import Phase, Report, Restore, disk_bytes, mb
from session import FLUSS
from verdict import Verdict

HERE = Path(__file__).resolve().parent

#: Parallelism before and after the restart.
BEFORE, AFTER = 2, 3
#: Parts of the input after which the kill and the restart come; each leaves enough for what follows.
KILL_AT, STOP_AT = 0.4, 0.75
#: Part of the input that comes in while the kill or the restart happens.
MEANWHILE = 0.1
#: With --big the state is this many times the working set.
BIG_FACTOR = 20
#: Bytes of state of one generated sensor, a first guess; more are made until the state is large enough.
SENSOR_BYTES = 330

# Changes are published as debezium-json. Files are rolled every second and published by the next checkpoint, so results
# appear while the job runs.
SINK = ", ".join(
    f"'{key}' = '{value}'"
    for key, value in {
        "connector": "filesystem",
        "format": "debezium-json",
        "debezium-json.encode.decimal-as-plain-number": "true",
        "sink.rolling-policy.check-interval": "500 ms",
        "sink.rolling-policy.rollover-interval": "1 s",
        "sink.rolling-policy.inactivity-interval": "1 s",
    }.items()
)


class Story:
    """One run; all its data lies in the folder `run`."""

    def __init__(self, options: argparse.Namespace, run: Path, flink: Path, source: Path) -> None:
        self.options = options
        self.begun = time.monotonic()
        self.last_status = 0.0
        self.stage = run / "stage"
        self.cluster = Cluster(flink, run, options.backend, options.managed, options.interval)
        # Bytes of state that the cluster may hold in memory: the managed memory of its TaskManagers.
        self.working_set = (self.cluster.task_managers * options.managed) << 20
        # When last looked: counting them costs seconds.
        self.readings = 0
        self.sensors = (options.events or BIG_FACTOR * self.working_set // SENSOR_BYTES) if options.big else 0

        self.say(f"Input: {options.days} days of flights from New York in 2013, their planes and the weather")
        steps = split_by_day(source, self.stage, options.days)
        if options.big:
            steps = self._with_later_readings(steps)
        self.feeder = Feeder(steps, run / "input", options.seconds / len(steps))
        names = {
            "input": (run / "input").as_uri(),
            "output": (run / "output").as_uri(),
            "sink": SINK,
            "monitor_interval": "200 ms",
        }
        self.sql = self._template("job.sql", names)
        self.verdict = Verdict(self._template("expected.sql", {"input": str(run / "input")}), run / "output")
        # What fills the disk beside the state.
        self.fluss = Fluss(run / FLUSS, tablets=1) if options.store == "fluss" else None
        if self.fluss:
            note = "Fluss's log of all changes among it, which is kept for table.log.ttl, 7 days"
        elif options.backend == "weir":
            note = "merged files stay on disk for state.backend.weir.embedded.gc.min-age, 5 minutes, before they are removed"
        else:
            note = ""
        self.report = Report(self.working_set, note)
        self.job: Job

    def run(self) -> Report:
        try:
            self.start()
            self.kill()
            self.rescale()
            self.finish()
        finally:
            self.say("Stopping the cluster")
            self.feeder.stop()
            self.cluster.stop()
            if self.fluss:
                self.fluss.stop()
        return self.report

    def start(self) -> None:
        """The cluster comes up and the job starts; with --big its state grows first."""
        if self.fluss:
            self.say("Starting Fluss: ZooKeeper, a coordinator, a tablet server")
            self.fluss.start()
            self.cluster.extra |= self.fluss.settings()
        self.say(
            f"Starting Flink {install.FLINK_VERSION}: a JobManager, {self.cluster.task_managers} TaskManagers, "
            f"state backend {self.options.backend}{' in Fluss' if self.fluss else ''}"
        )
        self.cluster.start()
        self.say(f"Flink's page: {self.cluster.page} (logs: {self.cluster.logs})")
        for table, title in self.verdict.titles.items():
            self.say(f"  query {table}: {title}")
        self.say("Flink's SQL client plans the queries")
        self._submit("start", BEFORE)
        self.job.wait_running()
        self.say(f"The job runs at parallelism {BEFORE}: {self.cluster.page}/#/job/running/{self.job.id}/checkpoints")
        self.feeder.start()
        if self.options.big:
            self._grow_state()

    def kill(self) -> None:
        """A worker dies in the middle of a snapshot, with input coming in."""
        self.feeder.allow(KILL_AT)
        self._until(lambda: self.feeder.waiting and len(self.job.completed()) >= 3, "three checkpoints")
        before = self.job.completed()
        self.report.phases.append(Phase(f"parallelism {BEFORE}, before the kill", before))

        self.feeder.allow(KILL_AT + MEANWHILE)
        published = set(self.verdict.published())
        kill = self.job.kill_task_manager_in_snapshot()
        self.report.kill, self.report.left_at_kill = kill, self.feeder.left
        self.say(
            f"Killed {kill.process} (kill -9 {kill.pid}) while checkpoint {kill.checkpoint} had {kill.acknowledged} of "
            f"{kill.subtasks} subtasks; that checkpoint never completed. {self.feeder.left} of "
            f"{len(self.feeder.steps)} files of input were to come. A new TaskManager starts"
        )
        self._restored("kill -9", published, kill.at)
        self.feeder.allow(STOP_AT)
        self._until(lambda: self.feeder.waiting, "more input")
        self._two_checkpoints()
        known = {each.id for each in before}
        self.report.phases.append(
            Phase("after the kill", [each for each in self.job.completed() if each.id not in known])
        )
        # The dead worker can be noticed in more than one way, until the job runs again.
        again = kill.at + self.report.restores[-1].seconds
        self.report.unplanned += [each for each in self.job.failures() if not kill.at <= each.at <= again]

    def rescale(self) -> None:
        """The job is stopped and started again from its last checkpoint, at another parallelism."""
        published, at = set(self.verdict.published()), time.time()
        last, address = self.job.cancel()
        self.say(f"Stopped the job; it starts again from checkpoint {last} at parallelism {AFTER}")
        self.say("Flink's SQL client plans the queries again")
        self._submit("restart", AFTER, **{"execution.state-recovery.path": address})
        self.feeder.allow(STOP_AT + MEANWHILE)
        self._restored(f"parallelism {BEFORE} to {AFTER}", published, at)

    def finish(self) -> None:
        """The rest of the input goes in; what is published then is compared."""
        self.feeder.allow(1)
        self._until(lambda: not self.feeder.left, "the rest of the input")
        self._until(lambda: self._flights() >= self.feeder.flights, "all flights to be counted", pause=2)
        if self.options.big:
            self._until(lambda: self._readings() >= self.feeder.readings, "all readings to be counted", pause=10)
        self.say("All input is counted. Two more checkpoints publish what remains; then DuckDB compares")
        # The barrier that published the last count had passed every operator, so this is enough; a slow machine may
        # roll its last file a checkpoint later.
        for _ in range(5):
            self._two_checkpoints()
            self.say("DuckDB computes the queries and compares every row")
            self.report.results = self.verdict.compare()
            if all(result.equal for result in self.report.results):
                break
        self.report.rows = self.verdict.input_rows()
        self.report.phases.append(Phase(f"parallelism {AFTER}", self.job.completed()))
        self.report.unplanned += self.job.failures()
        store = self.fluss.root / "data" if self.fluss else self.cluster.checkpoints
        self.report.stored = disk_bytes(store)
        self.job.cancel()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.begun:5.0f} s] {text}", flush=True)

    def _status(self, text: Callable[[], str]) -> None:
        """Says where a long step stands, every few seconds."""
        if time.monotonic() - self.last_status >= 5:
            self.last_status = time.monotonic()
            self.say(text())

    def _progress(self) -> str:
        last = self.job.completed()[-1:]
        checkpoint = (
            f"checkpoint {last[0].id}: {mb(last[0].state)} in {last[0].seconds:.1f} s"
            if last
            else f"no checkpoint at parallelism {self.job.parallelism} yet"
        )
        readings = f"{self.readings:,} of {self.feeder.readings:,} readings counted when last looked, " if self.readings else ""
        return (
            f"{self.feeder.given} of {len(self.feeder.steps)} files given, "
            f"{self._flights():,} of {self.feeder.flights:,} flights counted, {readings}{checkpoint}"
        )

    def _flights(self) -> int:
        return self.verdict.counted("carriers", "flights")

    def _readings(self) -> int:
        self.readings = self.verdict.counted("sensors", "readings")
        return self.readings

    def _until(self, done: Callable[[], bool], what: str, timeout: float = 1800, pause: float = 0.5) -> None:
        """Waits, telling where the run stands, until `done`."""

        def step() -> bool:
            self.job.check()
            self._status(self._progress)
            return done()

        self.cluster.wait(step, what, timeout, pause)

    def _two_checkpoints(self) -> None:
        seen = self.job.completed()[-1].id
        self._until(lambda: self.job.completed()[-1].id >= seen + 2, "two more checkpoints")

    def _submit(self, name: str, parallelism: int, **settings: str) -> None:
        common = {"parallelism.default": str(parallelism), "pipeline.name": f"weir demo at parallelism {parallelism}"}
        self.job = Job(self.cluster, self.cluster.sql(self.sql, name, **common, **settings), parallelism)

    def _restored(self, what: str, published: set[Path], since: float) -> None:
        """Waits for a restore and for a result file that was written to after `since` and is published."""

        running = 0.0

        def found() -> bool:
            nonlocal running
            if not running and self.job.restored() and self.job.running():
                running = time.time() - since
            files = self.verdict.published().items()
            return running > 0 and any(path not in published and written > since for path, written in files)

        self._until(found, "the first new result", 600, pause=0.2)
        restore = Restore(what, self.job.restored(), running, time.time() - since)
        self.report.restores.append(restore)
        self.say(
            f"Checkpoint {restore.checkpoint} was restored: all tasks ran again after {running:.1f} s, "
            f"the first new result was published after {restore.seconds:.1f} s"
        )

    def _template(self, name: str, values: dict[str, str]) -> str:
        """The text of an SQL file of this folder, filled in; without --big, without the parts that are for it."""
        lines, kept = [], True
        for line in (HERE / name).read_text().splitlines(keepends=True):
            if line.startswith("-- big: "):
                kept = self.options.big or line.strip() == "-- big: end"
            elif kept:
                lines.append(line)
        return Template("".join(lines)).substitute(values)

    def _with_later_readings(self, steps: list[Step]) -> list[Step]:
        """Adds readings of sensors long seen to every tenth day, before and after the kill and the restart."""
        return [
            step + make_later_readings(self.stage, READINGS_A_FILE // 2, self.sensors, i) if i % 10 == 5 else step
            for i, step in enumerate(steps)
        ]

    def _grow_state(self) -> None:
        """Gives new sensors, first the number planned, until the state is BIG_FACTOR times the working set."""
        goal = BIG_FACTOR * self.working_set
        self.say(f"Growing the state to {mb(goal)}: {BIG_FACTOR} times the working set of {mb(self.working_set)}")
        made = seen = 0
        while True:
            done = self.job.completed()
            size = max((each.state for each in done), default=0)
            if made >= self.sensors and size >= goal:
                break
            # Once the number planned has arrived, one file more at each further checkpoint that is still too small.
            if made < self.sensors or len(done) > seen and self._readings() >= made:
                seen = len(done)
                self.feeder.give_extra(make_readings(self.stage, READINGS_A_FILE, made))
                made += READINGS_A_FILE
            if made > 4 * self.sensors:
                raise DemoError(f"{made:,} sensors make a state of only {mb(size)}; give --events a larger number")
            self.job.check()
            self.cluster.check()
            self._status(f"{made:,} sensors given, state {mb(size)} of {mb(goal)}".format)
            time.sleep(0.3)
        self.say(f"{made:,} sensors make a state of {mb(size)}")
