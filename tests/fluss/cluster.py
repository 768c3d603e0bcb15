"""A real Fluss cluster on loopback: ZooKeeper, a coordinator and one or three tablet servers.

Run by `./weir fluss`, and by tests as `cluster.py run`, which keeps a cluster until its standard input ends. The server
is the artifact that Fluss publishes on Maven Central, fetched once and checked against its SHA-256.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

from zookeeper import ZooKeeper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ports import free_ports

HOME = Path(__file__).resolve().parents[2] / ".weir" / "fluss"
MAVEN = "https://repo1.maven.org/maven2"
VERSION = "0.9.1-incubating"
#: Path below the Maven repository and SHA-256. The server's jar also holds ZooKeeper, RocksDB and the logging API.
JARS = (
    (
        f"org/apache/fluss/fluss-server/{VERSION}/fluss-server-{VERSION}.jar",
        "fdda82aa7cc936086c420090920836066d48d741cf7e0aadde3c0e6f0832a169",
    ),
    (
        "org/apache/logging/log4j/log4j-slf4j-impl/2.25.3/log4j-slf4j-impl-2.25.3.jar",
        "f835ac2bf1a895d5e687b4ebf238bff05316dd672e572dff235024b6e320bcc9",
    ),
    (
        "org/apache/logging/log4j/log4j-core/2.25.3/log4j-core-2.25.3.jar",
        "362b7fcb65b73aa46cc4bc53abf4eb216f444a83b5d1a037cb6fdfff0ae9f0f9",
    ),
    (
        "org/apache/logging/log4j/log4j-api/2.25.3/log4j-api-2.25.3.jar",
        "e886682920fa0fb9d6eb6395dcb4de088443f8646c89c5e5846e168e327f406f",
    ),
)

ZOOKEEPER = "org.apache.fluss.shaded.zookeeper3.org.apache.zookeeper.server.quorum.QuorumPeerMain"
COORDINATOR = "org.apache.fluss.server.coordinator.CoordinatorServer"
TABLET = "org.apache.fluss.server.tablet.TabletServer"
#: Heap of each kind of process in MiB; a tablet server has as much again, at most, outside of its heap.
HEAP = {"zookeeper": 128, "coordinator": 256, "tablet": 512}
#: Seconds for a process to answer, and to end after it was asked to.
START_SECONDS, STOP_SECONDS = 300, 40


class ClusterError(Exception):
    """The cluster cannot do what was asked; the message says why and what to do."""


class Cluster:
    """The processes of one cluster, as its folder records them: config, logs, data and process ids."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # What the folder says.

    def layout(self) -> dict:
        """Ports, number of tablet servers and security, as they were when the cluster was first started."""
        return json.loads((self.root / "layout.json").read_text())

    def names(self) -> list[str]:
        return ["zookeeper", "coordinator"] + [f"tablet-{i}" for i in range(self.layout()["tablets"])]

    def process(self, name: str) -> int | None:
        """The id of a process, if that very process still runs."""
        try:
            pid, began = (self.root / "pid" / name).read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if _began(int(pid)) == began else None

    # Start and stop.

    def start(
        self, tablets: int, port: int, user: str | None, settings: list[str], dies_with_parent: bool = False
    ) -> None:
        jars = fetch()
        fresh = not (self.root / "layout.json").exists()
        if fresh:
            ports = _ports(tablets + 2, port)
            layout = {"zookeeper": ports[0], "coordinator": ports[1], "tablet": ports[2:], "tablets": tablets}
            layout["user"] = user
            layout["settings"] = dict(setting.split("=", 1) for setting in settings)
            for folder in ("conf", "log", "pid", "data", "remote"):
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            (self.root / "layout.json").write_text(json.dumps(layout))
        for name in self.names():
            self.launch(name, jars, dies_with_parent)

    def launch(self, name: str, jars: list[Path] | None = None, dies_with_parent: bool = False) -> None:
        """Starts one process and waits until it is ready: for a tablet server, until the coordinator has taken it."""
        if self.process(name):
            return
        seen = self._registrations(name)
        kind = name.split("-")[0]
        heap = HEAP[kind]
        options = [f"-Xms{heap // 4}m", f"-Xmx{heap}m", "-Xss512k", "-XX:+UseSerialGC"]
        options += [f"-XX:MaxDirectMemorySize={heap}m", "--add-opens=java.base/java.nio=ALL-UNNAMED"]
        options += [f"-Dlog4j2.configurationFile={self._logging(name)}"]
        classes = ":".join(str(jar) for jar in jars or fetch())
        main, arguments = self._main(name)
        with (self.root / "log" / f"{name}.out").open("ab") as output:
            process = subprocess.Popen(
                [_java(), *options, "-cp", classes, main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if dies_with_parent else None,
            )
        (self.root / "pid" / name).write_text(f"{process.pid} {_began(process.pid)}")
        port = self._port(name)
        deadline = time.monotonic() + START_SECONDS
        while not (_answers(port) and (kind != "tablet" or self._registrations(name) > seen)):
            if process.poll() is not None:
                raise ClusterError(f"{name} ended with status {process.returncode}: {self._last_words(name)}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{name} is not ready after {START_SECONDS} s: {self._last_words(name)}")
            time.sleep(0.05)

    def stop(self) -> None:
        for name in reversed(self.names()):
            self.end(name)

    def end(self, name: str) -> None:
        """Asks a process to end, and ends it if it does not."""
        pid = self.process(name)
        if pid:
            self.signal(name, signal.SIGCONT)
            self.signal(name, signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            while self.process(name) and time.monotonic() < deadline:
                _reap(pid)
                time.sleep(0.05)
            if self.process(name):
                self.kill(name)
        (self.root / "pid" / name).unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """Ends a process at once, as a crash does."""
        pid = self.process(name)
        if pid is None:
            raise ClusterError(f"{name} does not run")
        os.kill(pid, signal.SIGKILL)
        while self.process(name):
            _reap(pid)
            time.sleep(0.01)
        (self.root / "pid" / name).unlink(missing_ok=True)

    def signal(self, name: str, number: int) -> None:
        pid = self.process(name)
        if pid is None:
            raise ClusterError(f"{name} does not run")
        os.kill(pid, number)

    def status(self) -> dict:
        layout = self.layout()
        return {
            "bootstrap": f"127.0.0.1:{layout['coordinator']}",
            "root": str(self.root),
            "processes": {name: self.process(name) for name in self.names()},
        }

    def behind(self) -> list[str] | None:
        """The buckets of which a replica lacks something or is gone; `None` if ZooKeeper does not say.

        While a bucket is one of them, losing another of its servers can cost what was acknowledged.
        """
        tables, found = "/fluss/tabletservers/tables", []
        try:
            with ZooKeeper(self.layout()["zookeeper"]) as nodes:
                for table in nodes.children(tables):
                    assigned = json.loads(nodes.data(f"{tables}/{table}") or b"{}").get("buckets", {})
                    for bucket, replicas in assigned.items():
                        state = json.loads(nodes.data(f"{tables}/{table}/buckets/{bucket}/leader_isr") or b"{}")
                        if set(state.get("isr", [])) != set(replicas):
                            found.append(f"table {table} bucket {bucket}: {state.get('isr')} of {replicas}")
        except OSError:
            return None
        return found

    def settle(self) -> None:
        """Waits until every replica has everything."""
        deadline = time.monotonic() + START_SECONDS
        while (behind := self.behind()) != []:
            if time.monotonic() > deadline:
                raise ClusterError(f"replicas are behind after {START_SECONDS} s: {behind}; see {self.root}/log")
            time.sleep(0.2)

    # Configuration.

    def _port(self, name: str) -> int:
        kind, _, number = name.partition("-")
        port = self.layout()[kind]
        return port[int(number)] if number else port

    def _main(self, name: str) -> tuple[str, list[str]]:
        folder = self.root / "conf" / name
        folder.mkdir(parents=True, exist_ok=True)
        layout = self.layout()
        if name == "zookeeper":
            text = f"dataDir={self.root / 'data' / name}\nclientPort={layout['zookeeper']}\n"
            text += "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\ntickTime=2000\n"
            (folder / "zoo.cfg").write_text(text)
            return ZOOKEEPER, [str(folder / "zoo.cfg")]
        replication = min(3, layout["tablets"])
        settings = {
            "zookeeper.address": f"127.0.0.1:{layout['zookeeper']}",
            "zookeeper.client.session-timeout": "6s",
            "bind.listeners": f"FLUSS://127.0.0.1:{self._port(name)}",
            "data.dir": self.root / "data" / name,
            "remote.data.dir": f"file://{self.root / 'remote'}",
            "default.replication.factor": replication,
            # What is acknowledged by all must be on two: a majority survives the loss of any one.
            "log.replica.min-in-sync-replicas-number": 2 if replication == 3 else 1,
            "log.replica.high-watermark.checkpoint-interval": "100ms",
        }
        if layout["user"]:
            user, _, password = layout["user"].partition(":")
            module = "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule"
            settings |= {
                "security.protocol.map": "FLUSS:sasl",
                "security.sasl.enabled.mechanisms": "PLAIN",
                "security.sasl.plain.jaas.config": f'{module} required user_{user}="{password}";',
                "client.security.protocol": "sasl",
                "client.security.sasl.mechanism": "PLAIN",
                "client.security.sasl.username": user,
                "client.security.sasl.password": password,
            }
        settings |= layout.get("settings", {})
        if name != "coordinator":
            settings["tablet-server.id"] = name.partition("-")[2]
        text = "".join(f"{key}: {value}\n" for key, value in settings.items())
        (folder / "server.yaml").write_text(text)
        return COORDINATOR if name == "coordinator" else TABLET, ["--configDir", str(folder)]

    def _logging(self, name: str) -> Path:
        path = self.root / "conf" / f"{name}.properties"
        path.write_text(
            "rootLogger.level=WARN\nrootLogger.appenderRef.file.ref=FILE\n"
            "appender.file.name=FILE\nappender.file.type=RollingFile\n"
            f"appender.file.fileName={self.root}/log/{name}.log\n"
            f"appender.file.filePattern={self.root}/log/{name}.log.%i\n"
            "appender.file.policies.type=Policies\nappender.file.policies.size.type=SizeBasedTriggeringPolicy\n"
            "appender.file.policies.size.size=64MB\n"
            "appender.file.strategy.type=DefaultRolloverStrategy\nappender.file.strategy.max=2\n"
            "appender.file.layout.type=PatternLayout\n"
            "appender.file.layout.pattern=%d{HH:mm:ss.SSS} %-5p %c{1} - %m%n\n"
            "logger.fluss.name=org.apache.fluss\nlogger.fluss.level=INFO\n"
            "logger.shaded.name=org.apache.fluss.shaded\nlogger.shaded.level=WARN\n"
        )
        return path

    def _registrations(self, name: str) -> int:
        """How often the coordinator has taken a tablet server: an open port does not say that it has."""
        kind, _, number = name.partition("-")
        if kind != "tablet":
            return 0
        try:
            text = (self.root / "log" / "coordinator.log").read_text(errors="replace")
        except OSError:
            return 0
        return text.count(f"New tablet server callback for tablet server {number}\n")

    def _last_words(self, name: str) -> str:
        lines: list[str] = []
        for suffix in ("out", "log"):
            path = self.root / "log" / f"{name}.{suffix}"
            if path.exists():
                lines += path.read_text(errors="replace").splitlines()[-8:]
        return f"see {self.root}/log/{name}.log\n" + "\n".join(lines)


def fetch() -> list[Path]:
    """The jars of the server, downloaded if they are not there and checked once."""
    folder = HOME / f"server-{VERSION}"
    jars = [folder / path.rsplit("/", 1)[1] for path, _ in JARS]
    if all(jar.exists() for jar in jars):
        return jars
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for jar, (path, expected) in zip(jars, JARS, strict=True):
            if jar.exists():
                continue
            print(f"fetching {jar.name}", file=sys.stderr, flush=True)
            partial = jar.with_suffix(".partial")
            try:
                with urllib.request.urlopen(f"{MAVEN}/{path}", timeout=120) as source, partial.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
            except (OSError, urllib.error.URLError) as error:
                raise ClusterError(f"cannot fetch {MAVEN}/{path}: {error}") from error
            found = hashlib.sha256(partial.read_bytes()).hexdigest()
            if found != expected:
                raise ClusterError(f"{partial} is not what was published: SHA-256 {found}, expected {expected}")
            partial.rename(jar)
    return jars


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def _ports(count: int, first: int) -> list[int]:
    """`count` ports from `first` on, or free ones if it is 0."""
    if first:
        for port in range(first, first + count):
            if _answers(port):
                raise ClusterError(f"port {port} is in use; choose others with --port")
        return list(range(first, first + count))
    return free_ports(count)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _began(pid: int) -> str | None:
    """When a process began, in ticks since boot: with its id this names it for good. `None` if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    try:
        # The first thread may have ended while others still hold the process's ports.
        ended = state == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except OSError:
        ended = True
    return None if ended else fields[18]


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run(options: argparse.Namespace) -> None:
    """Keeps a cluster until standard input ends, obeying its lines: `kill NAME`, `start NAME`, `signal NAME NUMBER`, `settle`."""
    cluster = Cluster(options.root)

    def interrupted(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        cluster.start(options.tablets, options.port, options.sasl, options.set, dies_with_parent=True)
        print(json.dumps(cluster.status()), flush=True)
        for line in sys.stdin:
            verb, *rest = line.split()
            if verb == "kill":
                cluster.kill(rest[0])
            elif verb == "start":
                cluster.launch(rest[0], dies_with_parent=True)
            elif verb == "signal":
                cluster.signal(rest[0], int(rest[1]))
            elif verb == "settle":
                cluster.settle()
            else:
                raise ClusterError(f"unknown command {line!r}")
            print("done", flush=True)
    finally:
        # Nothing of it is kept, so nothing needs to end in order.
        for name in cluster.names() if (cluster.root / "layout.json").exists() else []:
            if cluster.process(name):
                cluster.kill(name)
        if not options.keep:
            shutil.rmtree(cluster.root, ignore_errors=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="weir fluss", description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    helps = {
        "start": "start it and wait until it is ready",
        "stop": "stop it; its data stay",
        "status": "what runs; the exit status is 1 if not all does",
        "kill": "end one process as a crash does (zookeeper, coordinator, tablet-N)",
        "restart": "start one process again",
        "clean": "stop it and remove its data",
        "run": "keep a cluster until standard input ends, then remove it (for tests)",
    }
    for verb, text in helps.items():
        command = verbs.add_parser(verb, help=text)
        command.add_argument("--root", type=Path, default=HOME / "cluster", help="its folder (default: %(default)s)")
        if verb in ("start", "run"):
            command.add_argument("--tablets", type=int, choices=(1, 3), default=1, help="tablet servers")
            port = 0 if verb == "run" else 9122
            command.add_argument(
                "--port", type=int, default=port, help="first port: ZooKeeper; 0: any (default: %(default)s)"
            )
            command.add_argument("--sasl", metavar="USER:PASSWORD", help="ask clients for it (SASL/PLAIN)")
            command.add_argument(
                "--set", metavar="KEY=VALUE", action="append", default=[], help="a setting of the servers; may be repeated"
            )
        if verb == "run":
            command.add_argument("--keep", action="store_true", help="do not remove the folder")
        if verb in ("kill", "restart"):
            command.add_argument("name")
    options = parser.parse_args()
    options.root = options.root.resolve()
    return options


def main() -> int:
    options = parse()
    cluster = Cluster(options.root)
    try:
        if options.verb == "run":
            run(options)
            return 0
        if options.verb == "start":
            cluster.start(options.tablets, options.port, options.sasl, options.set)
        elif not (options.root / "layout.json").exists():
            print("no cluster; ./weir fluss start makes one")
            return 1 if options.verb == "status" else 0
        elif options.verb in ("stop", "clean"):
            cluster.stop()
        elif options.verb == "kill":
            cluster.kill(options.name)
        elif options.verb == "restart":
            cluster.launch(options.name)
        if options.verb == "clean":
            shutil.rmtree(options.root)
            print(f"removed {options.root}")
            return 0
        status = cluster.status()
        for name, pid in status["processes"].items():
            print(f"{name:<12} {f'runs, process {pid}' if pid else 'does not run'}")
        print(f"bootstrap servers: {status['bootstrap']}; folder: {status['root']}")
        for bucket in cluster.behind() or []:
            print(f"behind: {bucket}")
        return 1 if options.verb == "status" and None in status["processes"].values() else 0
    except ClusterError as error:
        print(f"weir fluss: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
