"""`fedbench doctor` and `clean`, and what a run gets of this machine: executor and device."""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.options import LOCAL, examples, results_argument
from fedbench.core.cli.output import opened, say, show_table
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.registry.components import Registry
from fedbench.core.toolkit.download import data_folder
from fedbench.core.words import explain

if TYPE_CHECKING:
    from fedbench.core.run.executor import Executor

_PACKAGES = (
    DISTRIBUTION,
    "torch",
    "torchvision",
    "numpy",
    "scikit-learn",
    "pydantic",
    "pluggy",
    "ruamel.yaml",
    "click",
    "rich",
)

Row = tuple[str, str]


@click.command(epilog=examples("fedbench doctor", "FEDBENCH_DATA=/data/fedbench fedbench doctor"))
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Show what a bug report needs: versions, devices, threads, the data folder, plugin problems.

    Ends with exit status 1 when a required package is missing or the data folder cannot be written.
    """
    problems: list[str] = []
    rows = [
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("platform", platform.platform()),
        *_versions(problems),
        *_devices(problems),
        *_data_folder(problems),
        *_plugins(),
    ]
    show_table(("what", "found"), rows)
    for problem in problems:
        say(f"PROBLEM {problem}")
    if problems:
        ctx.exit(1)


def usable_cores() -> int:
    """Return the number of cores that this process may use; a container's CPU quota is rounded up.

    Where the system does not say, all cores count.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, math.ceil(cpu_quota(Path("/sys/fs/cgroup"), cores))))


def cpu_quota(groups: Path, cores: float) -> float:
    """Return the CPU seconds a second that control groups (version 2, else 1) allow.

    Without a limit they are ``cores``.
    """
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            quota, period = " ".join((groups / name).read_text() for name in files).split()
        except (OSError, ValueError):
            continue
        if quota not in ("max", "-1"):
            return int(quota) / int(period)
    return cores


def _versions(problems: list[str]) -> Iterator[Row]:
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "missing"
            problems.append(f"the package '{package}' is not installed: pip install {package}")


def _devices(problems: list[str]) -> Iterator[Row]:
    yield "cores", f"{usable_cores()} usable of {os.cpu_count()}"
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of torch is missing
        problems.append(f"torch cannot be imported: {error}")
        return
    threads = torch.get_num_threads()
    between = torch.get_num_interop_threads()
    yield "threads", f"{threads} in an operation, {between} between"
    yield "cuda", f"torch is built for {torch.version.cuda or 'CPU alone'}"
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        yield f"device cuda:{i}", f"{facts.name}, {facts.total_memory / 2**30:.1f} GiB"


def _data_folder(problems: list[str]) -> Iterator[Row]:
    folder = data_folder()
    n_entries = len(list(folder.iterdir())) if folder.is_dir() else 0
    yield "data folder", f"{folder} ($FEDBENCH_DATA), {n_entries} files and folders"
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        problems.append(
            f"the data folder {folder} cannot be written: set FEDBENCH_DATA to a folder of yours"
        )


def _plugins() -> Iterator[Row]:
    registry = Registry.discover()
    yield "plugins", f"{len(registry.plugins)} found"
    for plugin in registry.broken:
        yield "broken plugin", f"{plugin}: {plugin.reason}"
    for clash in registry.clashes:
        yield "clash", str(clash)


# -- what a run gets of a machine ------------------------------------------------------------------


def executor_of(name: str, workers: int | None, address: str | None) -> Executor:
    """Return the executor of this name, which an installed package announces.

    Raises:
        UserError: for a class that cannot be imported.
    """
    options: dict[str, Any] = {"workers": workers, "address": address}
    if name == LOCAL:
        options = {"workers": workers or usable_cores(), "measured": workers is None}
    try:
        executor: Executor = entry_points(group="fedbench.executors")[name].load()(**options)
    except ImportError as error:
        raise UserError(f"executor '{name}': {explain(error)}") from error
    return executor


def device_of(wanted: str, executor: str, limits: Any) -> str:
    """Return the device of a plan: of this machine, or what every run gets of its Ray node.

    Raises:
        UserError: for a device that is not there.
    """
    import torch

    on_ray = executor != LOCAL
    if wanted == "auto":
        available = limits.gpus if on_ray else torch.cuda.is_available()
        return "cuda" if available else "cpu"
    device = re.fullmatch(r"cpu|cuda(?::(\d+))?", wanted)
    if device is None:
        raise UserError(f"--device {wanted}: not a device; use auto, cpu, cuda or cuda:N")
    if wanted == "cpu":
        return wanted
    if on_ray and device[1]:
        raise UserError(
            f"--device {wanted}: Ray gives every run a GPU of its node; write --device cuda"
        )
    if on_ray and not limits.gpus:
        raise UserError(
            "--device cuda: the suite asks for no GPU; add --set limits.gpus=1, or a fraction of "
            "one"
        )
    if not on_ray and int(device[1] or 0) >= (count := torch.cuda.device_count()):
        raise UserError(
            f"--device {wanted}: this machine has {count} CUDA devices; use --device cpu"
        )
    return wanted


# -- clean -----------------------------------------------------------------------------------------


@click.command(epilog=examples("fedbench clean results/partial_defense"))
@results_argument
def clean(results: Path) -> None:
    """Delete the cached observations and the workers' logs in RESULTS. Records, scores and boards
    stay.

    Without its cache, a run is trained again when a new attack is added to the suite.
    """
    from fedbench.core.store.reading import IMPORTED

    store = opened(results)
    with store.lock():
        files = []
        for folder in [store.root, *store.root.glob(f"{IMPORTED}/*")]:
            files += [*folder.glob("cache/*.npz"), *folder.glob("logs/*.log")]
        mib = sum(file.stat().st_size for file in files) / 2**20
        for file in files:
            file.unlink()
        store.sweep()
    n_records = len(list(store.records.glob("*.json")))
    say(f"deleted {len(files)} cached runs and logs, {mib:.1f} MiB; {n_records} records stay")
