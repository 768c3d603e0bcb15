"""One running Flink job as Flink's REST interface shows it: its state and its checkpoints."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from cluster import Cluster
from install import DemoError

#: After this many checkpoints that were over too fast to be caught half acknowledged, any that has begun will do.
PATIENCE = 8


@dataclass(frozen=True)
class Checkpoint:
    """A completed checkpoint: `bytes` written for it, `state` its full size, `seconds` from trigger to completion.

    `began` is in seconds since the epoch.
    """

    id: int
    began: float
    bytes: int
    state: int
    seconds: float


@dataclass(frozen=True)
class Kill:
    """A TaskManager killed at `at` (seconds since the epoch) while `checkpoint` had `acknowledged` of `subtasks`."""

    at: float
    process: str
    pid: int
    checkpoint: int
    acknowledged: int
    subtasks: int


@dataclass(frozen=True)
class Failure:
    """An exception that made the job fail or restart, `at` seconds since the epoch, with its stack trace."""

    at: float
    trace: str


class Job:
    """The job with this id at this parallelism."""

    def __init__(self, cluster: Cluster, id: str, parallelism: int) -> None:
        self.id = id
        self.parallelism = parallelism
        self.cluster = cluster

    def check(self) -> None:
        """Fails, with the cause, when the job has come to an end."""
        state = self.cluster.get(f"/jobs/{self.id}")["state"]
        if state in ("FAILED", "FAILING", "FINISHED", "CANCELED", "SUSPENDED"):
            cause = "".join(each.trace for each in self.failures()[:1]) or "no exception is recorded"
            raise DemoError(f"the job is {state}:\n{cause}\nsee {self.cluster.logs}")

    def running(self) -> bool:
        """Whether every task runs."""
        self.check()
        details = self.cluster.get(f"/jobs/{self.id}")
        return details["state"] == "RUNNING" and all(
            v["status"] in ("RUNNING", "FINISHED") for v in details["vertices"]
        )

    def failures(self) -> list[Failure]:
        """What the job failed of so far, newest first."""
        history = self.cluster.get(f"/jobs/{self.id}/exceptions?maxExceptions=20")["exceptionHistory"]
        return [Failure(entry["timestamp"] / 1000, entry["stacktrace"]) for entry in history["entries"]]

    def completed(self) -> list[Checkpoint]:
        """The completed checkpoints, oldest first."""
        return [
            Checkpoint(
                each["id"],
                each["trigger_timestamp"] / 1000,
                each["checkpointed_size"],
                each["state_size"],
                each["end_to_end_duration"] / 1000,
            )
            for each in reversed(self._checkpoints()["history"])
            if each["status"] == "COMPLETED"
        ]

    def counts(self) -> dict[str, int]:
        """How many checkpoints were completed, failed and restored so far."""
        counts = self._checkpoints()["counts"]
        return {name: int(counts[name]) for name in ("completed", "failed", "restored")}

    def restored(self) -> int:
        """The id of the checkpoint last restored, 0 if none."""
        return int((self._checkpoints()["latest"]["restored"] or {}).get("id", 0))

    def restored_at(self) -> float:
        """When a checkpoint was last restored, in seconds since the epoch; 0 if none was."""
        return float((self._checkpoints()["latest"]["restored"] or {}).get("restore_timestamp", 0)) / 1000

    def wait_running(self, timeout: float = 180) -> None:
        self.cluster.wait(self.running, "all tasks of the job to run", timeout)

    def cancel(self) -> tuple[int, str]:
        """Stops the job; returns the id and the address of its last completed checkpoint, which is kept."""
        self.cluster.cancel(self.id)
        self.cluster.wait(lambda: self.cluster.get(f"/jobs/{self.id}")["state"] == "CANCELED", "the job to stop", 120)
        last = self._checkpoints()["latest"]["completed"]
        return last["id"], last["external_path"]

    def kill_task_manager_in_snapshot(self) -> Kill:
        """Kills the busiest TaskManager (SIGKILL) while a checkpoint is in progress, and starts another in its place.

        Returns when the checkpoint in progress is known to have failed. A checkpoint that completed all the same does
        not count: then the kill is repeated at the next one.
        """
        for _ in range(3):
            self.wait_running()
            kill = self._kill_in_progress()
            self.cluster.start_task_manager()
            if self._wait_end(kill.checkpoint) != "COMPLETED":
                return kill
        raise DemoError("three checkpoints completed although a TaskManager was killed during each; run again")

    def _kill_in_progress(self) -> Kill:
        busiest = min(self.cluster.registered(), key=lambda each: each["freeSlots"])
        process = self.cluster.process_of(busiest["id"])
        missed: set[int] = set()
        end = time.monotonic() + 180
        while time.monotonic() < end:
            for each in self._checkpoints()["history"][:1]:
                done, of = each["num_acknowledged_subtasks"], each["num_subtasks"]
                if each["status"] != "IN_PROGRESS":
                    missed.add(each["id"])
                elif done < of and (done > 0 or len(missed) > PATIENCE):
                    at = time.time()
                    os.kill(process.popen.pid, signal.SIGKILL)
                    self.cluster.forget(process)
                    return Kill(at, process.name, process.popen.pid, each["id"], done, of)
        raise DemoError(f"no checkpoint began within 180 s; see {self.cluster.page} and {self.cluster.logs}")

    def _wait_end(self, checkpoint: int) -> str:
        """The status in which a checkpoint ends."""
        status = self.cluster.wait(lambda: self._ended(checkpoint), f"the end of checkpoint {checkpoint}", 120)
        return str(status)

    def _ended(self, checkpoint: int) -> str | None:
        for each in self._checkpoints()["history"]:
            if each["id"] == checkpoint:
                return each["status"] if each["status"] != "IN_PROGRESS" else None
        return None

    def _checkpoints(self) -> Any:
        return self.cluster.get(f"/jobs/{self.id}/checkpoints")
