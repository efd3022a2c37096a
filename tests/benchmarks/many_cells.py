"""A plan of 100,000 cells and a folder of 100,000 records: dry run, resume and board without plots, each on one core.

    python tests/benchmarks/many_cells.py [--settings 35] [--folder FOLDER]

Makes the folder (3 GB, some minutes) where it is not there yet. Every command runs in a process of its own that may use one core;
printed are its wall and CPU time and the largest memory of it and of the processes it waited for. "first": nothing is known of
the records; "again": with the notes of the time before; "one changed": the same after one record is gone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from many_records import write_results, write_suite


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=35, help="2,870 cells each; 35 make 100,450")
    parser.add_argument("--folder", type=Path, help="kept, and used again; by default one that is deleted at the end")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedbench-") as aside:
        folder = asked.folder or Path(aside)
        suite, results = folder / "many_cells.yaml", folder / "results"
        if not suite.exists():
            _made(folder, asked.settings)
        n = sum(1 for _ in (results / "records").glob("*.json"))
        print(f"{n:,} records, one core of {os.cpu_count()}")
        run = ["run", str(suite), "--results", str(results), "--device", "cpu", "--no-plots", "--rerun", "never"]
        board = ["leaderboard", str(results), "--no-plots"]
        _timed("board, first", board, Path(aside) / "board")
        _timed("board, again", board, Path(aside) / "board")
        _timed("dry run, first", [*run, "--dry-run"], Path(aside) / "dry")
        _timed("dry run, again", [*run, "--dry-run"], Path(aside) / "dry")
        _timed("resume and board, again", run, Path(aside) / "board")
        gone = sorted((results / "records").glob("*.json"))[n // 2]
        gone.rename(kept := gone.with_suffix(".aside"))
        _timed("board, one changed", board, Path(aside) / "board")
        kept.rename(gone)


def _made(folder: Path, settings: int) -> None:
    """In a process of its own: what it needs in memory is not counted."""
    pid = os.fork()
    if pid == 0:
        began = time.monotonic()
        cells = len(write_results(write_suite(folder, settings), folder / "results").cells)
        print(f"made {cells:,} records in {time.monotonic() - began:.0f} s", flush=True)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("the folder could not be made")


def _timed(name: str, words: list[str], cache: Path) -> None:
    """One command on the last core; ``cache``: the folder of what is remembered between commands."""
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "FEDBENCH_DATA": os.environ.get("FEDBENCH_DATA", str(cache / "data"))}
    code = (
        "import os, sys; os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}); "
        f"from fedbench.core.cli.main import main; sys.exit(main({words!r}))"
    )
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.DEVNULL, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        said.seek(0)
        if status:
            raise SystemExit(f"{name}: status {os.waitstatus_to_exitcode(status)}: {said.read()[-2000:]}")
    wall, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    print(f"{name:24} {wall:7.1f} s wall {cpu:7.1f} s CPU {used.ru_maxrss / 2**20:6.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
