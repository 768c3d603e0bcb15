"""Writes what criterion measured since a moment as figures: a JSON object a line, as every bench of Weir does.

usage: criterion_figures.py FOLDER SINCE FILE     FOLDER is criterion's, SINCE in seconds since 1970
"""

import json
import pathlib
import sys


def figures(folder, since):
    for estimates in sorted(pathlib.Path(folder).glob("**/new/estimates.json")):
        if estimates.stat().st_mtime < since:
            continue
        benchmark = json.loads(estimates.with_name("benchmark.json").read_text())
        mean = json.loads(estimates.read_text())["mean"]["point_estimate"]
        elements = (benchmark.get("throughput") or {}).get("Elements")
        yield {"work": benchmark["full_id"], "backend": "weir", "metric": "time", "value": mean, "unit": "ns"}
        if elements:
            yield {
                "work": benchmark["full_id"],
                "backend": "weir",
                "metric": "time by element",
                "value": mean / elements,
                "unit": "ns",
            }


def main():
    folder, since, file = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    with open(file, "w", encoding="utf-8") as out:
        for figure in figures(folder, since):
            out.write(json.dumps(figure) + "\n")


if __name__ == "__main__":
    main()
