"""A plan of 100,000 cells and a folder of 100,000 records: dry run, resume and board without plots, each on one core.

    python tests/benchmarks/many_cells.py [--settings 35] [--folder FOLDER]

Makes the folder (3 GB, some minutes) where it is not there yet. Every command runs in a process of its own that may use one core;
printed are its wall and CPU time and the largest memory of it and of the processes it waited for. "first": the records are known
as a run leaves them that wrote them, or an import or a merge, and nothing else is; "again": after the same command; "one
changed": the same after one record is gone; "a stranger's": nothing is known of the records, each is checked whole.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from many_records import write_results, write_suite

from fedbench.core.execution.noting import note
from fedbench.core.store.proven import Proven
from fedbench.core.store.reading import record_paths


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
        caches = [Path(aside) / name for name in ("dry", "resume", "board")]
        for cache in caches:
            _noted(results, cache, caches[0])
        for when in ("first", "again"):
            _timed(f"dry run, {when}", [*run, "--dry-run"], caches[0])
            _timed(f"resume and board, {when}", run, caches[1])
            _timed(f"board, {when}", board, caches[2])
        gone = sorted((results / "records").glob("*.json"))[n // 2]
        gone.rename(kept := gone.with_suffix(".aside"))
        _timed("board, one changed", board, caches[2])
        kept.rename(gone)
        _timed("dry run, a stranger's", [*run, "--dry-run"], Path(aside) / "dry of a stranger's")
        _timed("board, a stranger's", board, Path(aside) / "board of a stranger's")


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


def _noted(results: Path, cache: Path, first: Path) -> None:
    """What a run remembers of the records that it wrote, in the cache folder; like that of ``first``, which is worked out."""
    if cache != first:
        shutil.copytree(first, cache)
        return
    os.environ["XDG_CACHE_HOME"] = str(cache)
    pid = os.fork()
    if pid == 0:
        proven = Proven(results)
        for path in record_paths(results / "records"):
            note(path, proven)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("the records could not be read")


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
