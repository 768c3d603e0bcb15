"""Compares what the job has published with what DuckDB computes from the same files, row by row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import duckdb

_SECTION = re.compile(r"^-- (table|result): (\w+)(?: \| ([^\n]*))?\n(.*?;)\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Result:
    """One query's verdict: `rows` as DuckDB has them, `changes` published, and what only one side has (samples)."""

    table: str
    title: str
    rows: int
    changes: int
    missing: int
    surplus: int
    samples: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.missing and not self.surplus


class Verdict:
    """The queries of expected.sql over the input folder, and the published files under `output/<table>/`."""

    def __init__(self, text: str, output: Path) -> None:
        sections = [match.groups() for match in _SECTION.finditer(text)]
        self._inputs = {name: query for kind, name, _, query in sections if kind == "table"}
        self._queries = {name: query for kind, name, _, query in sections if kind == "result"}
        self.titles = {name: title for kind, name, title, _ in sections if kind == "result"}
        self._output = output
        self._db = duckdb.connect()
        self._computed = False

    def published(self) -> dict[Path, float]:
        """The result files that Flink has committed (those in progress are hidden), with their modification times."""
        found = {}
        for path in self._output.glob("*/part-*"):
            found[path] = path.stat().st_mtime
        return found

    def counted(self, table: str, column: str) -> int:
        """The sum of one column of counts over the published result of a table."""
        files = self._files(table)
        if not files:
            return 0
        # Only one field is read, and the expected result may not be computable yet.
        row = f"STRUCT({column} BIGINT)"
        changes = f"read_json(?, format = 'newline_delimited', columns = {{'before': '{row}', 'after': '{row}'}})"
        query = f"SELECT coalesce(sum(after.{column}), 0) - coalesce(sum(before.{column}), 0) FROM {changes}"
        return int(self._db.execute(query, [files]).fetchall()[0][0])

    def compare(self) -> list[Result]:
        """All queries' results; the input must be complete by now."""
        if not self._computed:
            for name, query in self._inputs.items():
                self._db.execute(f"CREATE TABLE {name} AS {query}")
            for name, query in self._queries.items():
                self._db.execute(f"CREATE TABLE expected_{name} AS {query}")
            self._computed = True
        return [self._compare(name) for name in self._queries]

    def input_rows(self) -> dict[str, int]:
        return {name: self._count(name) for name in self._inputs}

    def _compare(self, name: str) -> Result:
        columns = [
            (column, "BIGINT" if kind == "HUGEINT" else kind)
            for column, kind, *_ in self._db.execute(f"DESCRIBE expected_{name}").fetchall()
        ]
        row = "STRUCT(" + ", ".join(f'"{column}" {kind}' for column, kind in columns) + ")"
        files = self._files(name)
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE changes (before {row}, after {row}, op VARCHAR)")
        if files:
            self._db.execute(
                "INSERT INTO changes SELECT before, after, op FROM "
                "read_json(?, format = 'newline_delimited', columns = "
                f"{{'before': '{row}', 'after': '{row}', 'op': 'VARCHAR'}})",
                [files],
            )
        listed = ", ".join(f'"{column}"' for column, _ in columns)
        # A result is a multiset of rows: as often as a row was added and not taken away.
        self._db.execute(
            f"""CREATE OR REPLACE TEMP TABLE actual AS
            SELECT {listed}, sum(n)::BIGINT AS n FROM (
              SELECT unnest(after), 1 AS n FROM changes WHERE op = 'c' UNION ALL
              SELECT unnest(before), -1 AS n FROM changes WHERE op = 'd')
            GROUP BY ALL HAVING sum(n) <> 0"""
        )
        self._db.execute(
            f"CREATE OR REPLACE TEMP TABLE wanted AS SELECT {listed}, count(*) AS n FROM expected_{name} GROUP BY ALL"
        )
        self._db.execute("CREATE OR REPLACE TEMP TABLE missing AS FROM wanted EXCEPT FROM actual")
        self._db.execute("CREATE OR REPLACE TEMP TABLE surplus AS FROM actual EXCEPT FROM wanted")
        samples = []
        for side, title in (("missing", "only DuckDB has"), ("surplus", "only Flink has")):
            for values in self._db.execute(f"FROM {side} ORDER BY ALL LIMIT 3").fetchall():
                named = ", ".join(f"{column}={value}" for (column, _), value in zip(columns, values, strict=False))
                samples.append(f"{title} {values[-1]} x ({named})")
        return Result(
            name,
            self.titles[name],
            self._count(f"expected_{name}"),
            self._count("changes"),
            self._count("missing"),
            self._count("surplus"),
            tuple(samples),
        )

    def _files(self, table: str) -> list[str]:
        return sorted(str(path) for path in (self._output / table).glob("part-*") if path.stat().st_size)

    def _count(self, table: str) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])
