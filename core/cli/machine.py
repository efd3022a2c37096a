"""`fedbench doctor`, `completion` and `clean`: what this machine has, completion of a shell, and
caches.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from fedbench.core.cli.options import examples, results_argument
from fedbench.core.cli.output import opened, say, show_table
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.toolkit.download import data_folder

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
    ]
    rows += [*_versions(problems), *_devices(problems), *_data_folder(problems), *_plugins()]
    show_table(("what", "found"), rows)
    for problem in problems:
        say(f"PROBLEM {problem}")
    if problems:
        ctx.exit(1)


def usable_cores() -> int:
    """Cores that this process may use; where the system does not say, all of them. A container's
    CPU quota is rounded up.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, math.ceil(cpu_quota(Path("/sys/fs/cgroup"), cores))))


def cpu_quota(groups: Path, cores: float) -> float:
    """CPU seconds a second that control groups (version 2, else 1) allow; ``cores`` where there is
    no limit.
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
    except (ImportError, OSError) as exc:  # OSError: a shared library of torch is missing
        yield "torch", f"cannot be imported: {exc}"
        problems.append(f"torch cannot be imported: {exc}")
        return
    yield (
        "threads",
        f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between",
    )
    if not torch.cuda.is_available():
        yield (
            "cuda",
            "none (torch is built "
            f"{f'for CUDA {torch.version.cuda}' if torch.version.cuda else 'without'})",
        )
        yield "device", "cpu"
        return
    yield "cuda", f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        yield f"device cuda:{i}", f"{facts.name}, {facts.total_memory / 2**30:.1f} GiB"


def _data_folder(problems: list[str]) -> Iterator[Row]:
    folder = data_folder()
    source = (
        "$FEDBENCH_DATA"
        if os.environ.get("FEDBENCH_DATA")
        else "default; set FEDBENCH_DATA to change it"
    )
    yield "data folder", f"{folder} ({source})"
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        problems.append(
            f"the data folder {folder} cannot be written: set FEDBENCH_DATA to a folder of yours"
        )
    yield (
        "data",
        f"{sum(1 for _ in folder.iterdir())} files and folders"
        if folder.is_dir()
        else "the folder does not exist yet",
    )


def _plugins() -> Iterator[Row]:
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    yield (
        "plugins",
        f"{len(registry.plugins)} found, {len(registry.broken)} broken, {len(registry.clashes)} "
        "clashes",
    )
    yield from (("broken plugin", f"{plugin}: {plugin.reason}") for plugin in registry.broken)
    yield from (("clash", str(clash)) for clash in registry.clashes)


# -- completion ------------------------------------------------------------------------------------

VARIABLE = "_FEDBENCH_COMPLETE"


@click.command(
    epilog=examples(
        "fedbench completion bash > ~/.local/share/bash-completion/completions/fedbench",
        "fedbench completion zsh > ~/.zfunc/_fedbench      a folder of $fpath",
        "fedbench completion fish > ~/.config/fish/completions/fedbench.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete fedbench's commands, options, suites, plugins and
    results folders.
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None  # one of the choices, all of which click has
    # not `source()`: of bash it starts a shell to look at its version, and prints what it thinks of
    # it
    script = made(ctx.find_root().command, {}, "fedbench", VARIABLE)
    say((script.source_template % script.source_vars()).strip())


# -- clean -----------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "fedbench clean results/partial_defense --dry-run", "fedbench clean results/partial_defense"
    )
)
@results_argument
@click.option("--dry-run", is_flag=True, help="Say what would go; delete nothing.")
def clean(results: Path, dry_run: bool) -> None:
    """Delete the cached observations and the workers' logs in RESULTS. Records, scores and boards
    stay.

    Without its cache, a run is trained again when a new attack is added to the suite.
    """
    from fedbench.core.store.reading import IMPORTED

    store = opened(results)
    with store.lock():
        places = [store.root, *sorted(store.root.glob(f"{IMPORTED}/*"))]
        files = [
            f
            for place in places
            for kind in ("cache/*.npz", "logs/*.log")
            for f in sorted(place.glob(kind))
        ]
        size = sum(f.stat().st_size for f in files)
        if not dry_run:
            for f in files:
                f.unlink()
            store.sweep()
    verb = "would delete" if dry_run else "deleted"
    kept = len(list(store.records.glob("*.json")))
    say(f"{verb} {len(files)} cached runs and logs, {size / 2**20:.1f} MiB; {kept} records stay")
