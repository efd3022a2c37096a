"""`fedbench run` on a suite of a second or two: in this process or in one of its own, and what it
leaves behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from click.testing import CliRunner
from ruamel.yaml import YAML

from fedbench.core.cli.run import command as run
from fedbench.core.registry.components import Registry
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.store.reading import LoadedRecord, all_paths, load_records, read_run
from fedbench.core.store.run_file import CellResult, digest_of_arrays, write_run

# ends a test that waits in vain; a loaded machine is far from it, and nothing else depends on it
HANG_S = 900


def suite(folder: Path, **changes: Any) -> Path:
    """A suite of a second or two; ``changes`` replace its parts."""
    spec = {
        "schema": 1,
        "name": "tiny",
        "seeds": [0],
        "settings": [
            {
                "name": "digits",
                "dataset": {
                    "name": "digits",
                    "params": {"test": 100, "holdout": 100, "label_noise": 0.3},
                },
                "model": {"name": "mlp", "params": {"hidden": [16]}},
                "federation": {
                    "clients": 4,
                    "rounds": 4,
                    "local_epochs": 1,
                    "batch_size": 50,
                    "optimizer": {"lr": 0.2},
                },
                "audit": {"every": 2, "nonmembers": 80},
            }
        ],
        "coalitions": ["pair"],
        "defenses": ["none"],
        "floors": [],
        "attacks": ["loss-series"],
        "limits": {"run_seconds": HANG_S},
    } | changes
    path = folder / "tiny.yaml"
    YAML().dump(spec, path)
    return path


def settings_of(folder: Path, *changes: dict) -> list[dict]:
    """Its setting, once with each of these changes."""
    (setting,) = YAML(typ="safe").load(suite(folder))["settings"]
    return [{**setting, **change} for change in changes]


def changed(folder: Path, change: dict, **more: Any) -> Path:
    """The same with a change of its setting."""
    return suite(folder, settings=settings_of(folder, change), **more)


@cache
def plan_once() -> None:
    """Plan a suite in this process: every fork that plans inherits what it imported and read."""
    from fedbench.core.run.expand import Expansion  # and torch, which not every Python here has

    with TemporaryDirectory() as folder:
        path, registry = suite(Path(folder), defenses=["cofedmid"]), Registry.discover()
        Expansion(*load_and_check(path, registry), registry, Path(folder), "cpu").plan()


def invoke(*args: object, status: int = 0) -> str:
    """The output of `fedbench run` with these arguments, called in this process; a ``UserError``
    passes.
    """
    ended, output = called(*args)
    assert ended == status, output
    return output


def finish(folder: Path) -> Path:
    """The results that many tests share: two defenses, two attacks, one seed."""
    path = suite(folder, defenses=["none", "grad-noise"], attacks=["loss-series", "fedmia-ii"])
    invoke(path, "--results", folder / "results", "--workers", "1")
    return folder / "results"


def called(*args: object) -> tuple[int, str]:
    """(exit status, output) of the same, however it ends."""
    plan_once()
    result = CliRunner().invoke(run, [*map(str, args), "--no-plots"])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def start(
    path: Path, results: Path, site: Path, workers: int = 1, more: Sequence[str] = (), **popen: Any
) -> subprocess.Popen[str]:
    """`fedbench run` in a process of its own, in the suite's folder, with the packages of ``site``;
    ``more`` arguments in place of the number of workers.
    """
    words = [
        "run",
        str(path),
        "--results",
        str(results),
        "--no-plots",
        *(more or ("--workers", str(workers))),
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "fedbench.core.cli.main", *words],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=path.parent,
        stdout=popen.pop("stdout_to", subprocess.PIPE),
        stderr=subprocess.STDOUT,
        text=True,
        **popen,
    )


def wait_for(state: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> None:
    """Return when ``state`` holds; fail when ``process`` has ended without it, or when something
    hangs.
    """
    began = time.monotonic()
    while not state():
        if process is not None and process.poll() is not None:
            assert state(), f"it ended with status {process.returncode}: {process.communicate()[0]}"
            return
        assert time.monotonic() - began < HANG_S, "it hangs"
        time.sleep(0.02)


def records(folder: Path) -> dict[tuple[str, str, int], dict]:
    """(defense, attack, seed) -> record, as JSON values."""
    found = [r.record.model_dump(mode="json") for r in loaded(folder)]
    return {(r["defense"]["label"], r["attack"]["label"], r["seed"]): r for r in found}


def loaded(folder: Path) -> list[LoadedRecord]:
    """The records of a folder, which may have none."""
    return load_records(folder) if all_paths(folder) else []


def outcomes(folder: Path, part: int = 1) -> dict[str, tuple[str, str]]:
    """Defense (part 0) or attack (part 1) -> (outcome, reason)."""
    return {name[part]: (r["outcome"], r["reason"]) for name, r in records(folder).items()}


def fingerprint(folder: Path) -> dict[str, str]:
    """Every record without what is measured anew each time, and a digest of its arrays, if it has
    some.
    """
    out = {}
    for r in loaded(folder):
        out[f"{r.stem}.json"] = r.record.model_dump_json(exclude={"measured"})
        if r.record.outcome == "ok":
            out[f"{r.stem}.npz"] = digest_of_arrays(r.all_arrays())
    return out


def without_attack(folder: Path, attack: str) -> None:
    """Take an attack's cells out of every run."""
    for path in sorted((folder / "records").glob("*.json")):
        kept = [
            CellResult(r.record, r.all_arrays())
            for r in read_run(path)
            if r.record.attack.label != attack
        ]
        write_run(path.parent, path.stem, kept)
