"""A real Fluss cluster for the length of a run, made by tests/fluss/cluster.py, which `./weir fluss` runs too."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from install import DemoError

PROGRAM = Path(__file__).resolve().parents[1] / "fluss" / "cluster.py"


class Fluss:
    """A cluster of one or three tablet servers below `root`; it ends with this process, however that ends."""

    def __init__(self, root: Path, tablets: int) -> None:
        self.root = root
        self.tablets = tablets
        self.bootstrap = ""
        self._keeper: subprocess.Popen[str] | None = None
        self._one_command = threading.Lock()

    def start(self) -> None:
        """Starts it and waits until it is ready, about 10 s."""
        command = [sys.executable, str(PROGRAM), "run", "--keep", "--tablets", str(self.tablets), "--root", str(self.root)]
        self._keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        answer = self._answer()
        if not answer.startswith("{"):
            raise DemoError(f"the Fluss cluster did not start (its program says why above); see {self.root}/log")
        self.bootstrap = json.loads(answer)["bootstrap"]

    def settings(self) -> dict[str, str]:
        """The lines of Flink's configuration that put Weir's store into this cluster."""
        return {
            "state.backend.weir.store": "fluss",
            "state.backend.weir.fluss.bootstrap-servers": self.bootstrap,
            "state.backend.weir.fluss.replication": str(self.tablets),
            # For a few cores.
            "state.backend.weir.fluss.buckets": "4",
        }

    def servers(self) -> list[str]:
        """The tablet servers and the coordinator."""
        return [f"tablet-{i}" for i in range(self.tablets)] + ["coordinator"]

    def kill(self, server: str) -> None:
        """Ends a server at once, as a crash does."""
        self._command(f"kill {server}")

    def restart(self, server: str) -> None:
        """Starts a server again and waits until it is ready."""
        self._command(f"start {server}")

    def settle(self) -> None:
        """Waits until every replica has everything, so that the next server may die."""
        self._command("settle")

    def stop(self) -> None:
        """Ends every process of it. Idempotent."""
        if self._keeper:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait()

    def _command(self, line: str) -> None:
        with self._one_command:
            assert self._keeper is not None and self._keeper.stdin is not None
            try:
                self._keeper.stdin.write(line + "\n")
                self._keeper.stdin.flush()
            except OSError as error:
                raise DemoError(f"the Fluss cluster is gone ({error}); see {self.root}/log") from error
            if (answer := self._answer()) != "done":
                raise DemoError(f"the Fluss cluster cannot '{line}': {answer or 'its program ended'}; see {self.root}/log")

    def _answer(self) -> str:
        assert self._keeper is not None and self._keeper.stdout is not None
        return self._keeper.stdout.readline().strip()
