"""Keep a random sample of a cosmic-ray session, ``sample.py SESSION N [SEED]``, or print how it
ended, ``sample.py SESSION``.

The sample has as many mutants from each folder; of operators those that resemble a programmer's
mistake, one at a position; none in annotations.
"""

from __future__ import annotations

import ast
import random
import re
import sqlite3
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNLIKELY = re.compile(r"Shift|Bit|FloorDiv|Mod\b|Pow|Is|Exception|Decorator|ZeroIteration")


def annotated(path: Path) -> set[tuple[int, int]]:
    """The positions (line, column) inside the annotations of a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        for name in ("annotation", "returns"):
            if (part := getattr(node, name, None)) is not None:
                ends = part.end_col_offset if part.end_lineno == part.lineno else 1_000
                found |= {(part.lineno, column) for column in range(part.col_offset, ends)}
    return found


def keep(session: str, n: int, seed: int = 0) -> None:
    """Delete all other mutants from the session."""
    database = sqlite3.connect(session)
    columns = "job_id, module_path, operator_name, start_pos_row, start_pos_col"
    rows = database.execute(f"select {columns} from mutation_specs").fetchall()
    outside = {path: annotated(ROOT / path) for path in {row[1] for row in rows}}
    places: dict[str, dict[tuple[str, int, int], list[str]]] = {}
    for job, path, operator, row, column in sorted(rows, key=lambda r: r[1:] + r[:1]):
        if not UNLIKELY.search(operator) and (row, column) not in outside[path]:
            places.setdefault("/".join(path.split("/")[:2]), {}).setdefault(
                (path, row, column), []
            ).append(job)
    rng = random.Random(seed)
    each = -(-n // len(places))
    kept = [
        rng.choice(found[place])
        for found in places.values()
        for place in rng.sample(sorted(found), min(each, len(found)))
    ]
    database.execute(
        "create temp table kept as select value as job_id from json_each(?)",
        [str(kept).replace("'", '"')],
    )
    for table in ("mutation_specs", "work_items"):
        database.execute(f"delete from {table} where job_id not in (select job_id from kept)")
    database.commit()
    print(f"{len(kept)} mutants of {len(rows)}, {each} from each of {len(places)} folders")


def report(session: str) -> None:
    """Print each mutant that survived, and the share that was killed."""
    columns = "test_outcome, module_path, operator_name, start_pos_row, diff"
    rows = (
        sqlite3.connect(session)
        .execute(f"select {columns} from work_results natural join mutation_specs")
        .fetchall()
    )
    survived = [row for row in rows if row[0] == "SURVIVED"]
    for _, path, operator, line, diff in sorted(survived):
        print(
            f"{path}:{line} {operator}",
            *(part for part in diff.splitlines() if re.match(r"[-+](?![-+])", part)),
            sep="\n    ",
        )
    print(f"{len(rows) - len(survived)} of {len(rows)} mutants killed")


if __name__ == "__main__":
    keep(sys.argv[1], *map(int, sys.argv[2:])) if len(sys.argv) > 2 else report(sys.argv[1])
