"""A Flink standalone cluster of real processes on this machine, and its REST interface."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from install import DemoError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ports import free_ports

_LIBC = ctypes.CDLL(None)  # loaded here: little may be done between fork and exec

WEIR_FACTORY = "io.weir.flink.WeirStateBackendFactory"


@dataclass
class Process:
    """A process of the cluster; `name` is what people call it, `id` what Flink calls a TaskManager."""

    name: str
    id: str
    popen: subprocess.Popen[bytes]


@dataclass
class Cluster:
    """One JobManager and some TaskManagers; configuration, logs and data lie in `run`.

    `flink` is the distribution, `managed` the managed memory of a TaskManager in MiB: the bound of the state in memory.
    """

    flink: Path
    run: Path
    backend: str
    managed: int
    interval: float
    task_managers: int = 2
    slots: int = 2
    extra: dict[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    port: int = 0
    _started: int = 0

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def logs(self) -> Path:
        return self.run / "log"

    @property
    def checkpoints(self) -> Path:
        return self.run / "checkpoints"

    def configuration(self) -> dict[str, str]:
        self.port, rpc, blob = free_ports(3)
        return {
            # The one line that puts Weir under every job of the cluster.
            "state.backend.type": WEIR_FACTORY if self.backend == "weir" else self.backend,
            # All processes on the loopback interface; the ports stay free until they are bound.
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": str(rpc),
            "jobmanager.bind-host": "127.0.0.1",
            "blob.server.port": str(blob),
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": str(self.port),
            "taskmanager.host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            # Slots enough for the larger parallelism; tasks spread over the TaskManagers, so that each has state.
            "taskmanager.numberOfTaskSlots": str(self.slots),
            "taskmanager.load-balance.mode": "SLOTS",
            # Memory: heaps under 1 GB. The JobManager has little to do: leave the cores to the TaskManagers.
            "env.java.opts.jobmanager": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "jobmanager.memory.heap.size": "512m",
            "jobmanager.memory.jvm-overhead.min": "64m",
            "taskmanager.memory.framework.heap.size": "128m",
            "taskmanager.memory.task.heap.size": "640m",
            "taskmanager.memory.managed.size": f"{self.managed}m",
            # About 20 exchanges of parallelism 3 need more buffers than a tenth of this small process.
            "taskmanager.memory.network.min": "128m",
            "taskmanager.memory.network.max": "128m",
            "taskmanager.memory.jvm-overhead.min": "64m",
            # Should the native library crash a worker, the JVM's report belongs to the logs.
            "env.java.opts.taskmanager": f"-XX:ErrorFile={self.logs}/hs_err_%p.log",
            "io.tmp.dirs": str(self.run / "tmp"),
            # Checkpoints: as often as the run is short; kept when the job is cancelled, to restart from.
            "execution.checkpointing.dir": self.checkpoints.as_uri(),
            "execution.checkpointing.interval": f"{int(self.interval * 1000)} ms",
            "execution.checkpointing.min-pause": "200 ms",
            "execution.checkpointing.timeout": "5 min",
            "execution.checkpointing.incremental": "true",
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            # An aborted checkpoint (there is one, when the TaskManager is killed) is no reason to fail the job.
            "execution.checkpointing.tolerable-failed-checkpoints": "10",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "10",
            "restart-strategy.fixed-delay.delay": "1 s",
            # A dead TaskManager is noticed after two missed heartbeats of 1 s; a slow one is given 60 s.
            "heartbeat.interval": "1000",
            "heartbeat.rpc-failure-threshold": "2",
            "heartbeat.timeout": "60000",
            # On a busy machine a worker may take longer than 10 s to take a task; that is no failure.
            "pekko.ask.timeout": "60 s",
            # The demo must see a checkpoint while it is in progress: no caching of what the REST interface answers.
            "web.refresh-interval": "500",
            "rest.cache.checkpoint-statistics.timeout": "1 ms",
            # Long enough for the page to show every checkpoint of the run.
            "web.checkpoints.history": "200",
            **self.extra,
        }

    def start(self) -> None:
        conf = self.run / "conf"
        shutil.copytree(self.flink / "conf", conf)
        for folder in (self.logs, self.checkpoints, self.run / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        # Of the shipped configuration only the JVM options (module opens for Java 17) are needed.
        java = re.search(r"^ *all: (--add.*)$", (conf / "config.yaml").read_text(), re.MULTILINE)
        if not java:
            raise DemoError(f"{self.flink}/conf/config.yaml has no JVM options; remove {self.flink} and run again")
        settings = {"env.java.opts.all": java[1], **self.configuration()}
        (conf / "config.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
        self._start("jobmanager", "JobManager", "jobmanager")
        for _ in range(self.task_managers):
            self.start_task_manager()
        self.wait(lambda: len(self.registered()) == self.task_managers, "the TaskManagers to register", 120)

    def start_task_manager(self) -> Process:
        self._started += 1
        identity = f"taskmanager-{self._started}"
        return self._start("taskmanager", f"TaskManager {self._started}", identity, f"-Dtaskmanager.resource-id={identity}")

    def registered(self) -> list[dict[str, Any]]:
        """The TaskManagers that the JobManager knows; none while it starts."""
        try:
            return list(self.get("/taskmanagers")["taskmanagers"])
        except OSError:
            return []

    def process_of(self, task_manager: str) -> Process:
        """The process behind a TaskManager's id."""
        for process in self.processes:
            if process.id == task_manager:
                return process
        raise DemoError(f"{task_manager}, which the JobManager knows, is no TaskManager of the demo; see {self.logs}")

    def forget(self, process: Process) -> None:
        """Says that this process is meant to be dead."""
        process.popen.wait()
        self.processes.remove(process)

    def check(self) -> None:
        """Fails when a process of the cluster has ended by itself."""
        for process in self.processes:
            if process.popen.poll() is not None:
                words = self._last_words(process)
                raise DemoError(f"the {process.name} ended with code {process.popen.returncode}; see {self.logs}{words}")

    def wait(self, ready: Callable[[], Any], what: str, timeout: float, pause: float = 0.2) -> Any:
        """Waits until `ready` answers something true, and returns that."""
        end = time.monotonic() + timeout
        while True:
            answer = ready()
            if answer:
                return answer
            self.check()
            if time.monotonic() > end:
                raise DemoError(f"waited {timeout:.0f} s for {what}; see {self.logs}")
            time.sleep(pause)

    def get(self, path: str) -> Any:
        return self._request("GET", path)

    def cancel(self, job: str) -> None:
        self._request("PATCH", f"/jobs/{job}?mode=cancel")

    def sql(self, text: str, name: str, **settings: str) -> str:
        """Submits a script through Flink's SQL client; returns the id of its one job."""
        script = self.run / f"{name}.sql"
        script.write_text("".join(f"SET '{key}' = '{value}';\n" for key, value in settings.items()) + text)
        # A slow machine is no reason to give up: the client starts a JVM and plans the whole statement set.
        result = subprocess.run(
            [self.flink / "bin" / "sql-client.sh", "-f", script, "-hist", self.run / "tmp" / "sql-history"],
            env=self._environment(),
            cwd=self.run,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        (self.logs / f"sql-client-{name}.out").write_text(result.stdout + result.stderr)
        job = re.search(r"Job ID: ([0-9a-f]{32})", result.stdout)
        if result.returncode or "[ERROR]" in result.stdout or not job:
            raise DemoError(
                f"the SQL client refused the job:\n{(result.stdout + result.stderr)[-4000:]}\nsee {self.logs}"
            )
        return job[1]

    def stop(self) -> None:
        """Ends every process that was started, kindly first. Idempotent."""
        for process in reversed(self.processes):
            process.popen.terminate()
        end = time.monotonic() + 10
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(max(0.1, end - time.monotonic()))
            if process.popen.poll() is None:
                process.popen.kill()
                process.popen.wait()
        self.processes.clear()

    def _start(self, script: str, name: str, identity: str, *arguments: str) -> Process:
        # In the foreground the script replaces itself by the JVM, so the process id is the JVM's.
        with (self.logs / f"{identity}.start").open("wb") as output:
            popen = subprocess.Popen(
                [self.flink / "bin" / f"{script}.sh", "start-foreground", *arguments],
                env=self._environment(),
                cwd=self.run,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is the demo's to handle
                preexec_fn=_die_with_parent,
            )
        process = Process(name, identity, popen)
        self.processes.append(process)
        return process

    def _last_words(self, process: Process) -> str:
        """What a process that ended said of it: its last errors and their causes. TaskManagers share their logs."""
        entry = "standalonesession" if process.id == "jobmanager" else "taskexecutor"
        logs = [self.logs / f"{process.id}.start", *sorted(self.logs.glob(f"flink-*-{entry}-*"))]
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        errors = [line for line in lines if " ERROR " in line or line.startswith("Caused by: ")]
        return "".join(f"\n    {line}" for line in (errors or lines)[-12:])

    def _environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("FLINK_", "HADOOP_", "HBASE_"))}
        return clean | {
            "FLINK_CONF_DIR": str(self.run / "conf"),
            "FLINK_LOG_DIR": str(self.logs),
            "FLINK_PID_DIR": str(self.run / "tmp"),
            "FLINK_IDENT_STRING": "demo",
            # The client lives for seconds: do not spend them on optimising it.
            "FLINK_ENV_JAVA_OPTS_CLI": "-Xmx512m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "STD_REDIRECT_TO_FILE": "true",
        }

    def _request(self, method: str, path: str) -> Any:
        request = urllib.request.Request(self.page + path, method=method)
        try:
            # No proxy: this is the loopback interface.
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
                return json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise OSError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error


def _die_with_parent() -> None:
    """Has the kernel kill this process when the demo's ends, even by kill -9 (PR_SET_PDEATHSIG)."""
    _LIBC.prctl(1, signal.SIGKILL)
