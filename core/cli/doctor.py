"""fedbench doctor: what this machine has."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import click

from fedbench.core.cli.options import examples
from fedbench.core.cli.say import say
from fedbench.core.cli.table import show_table
from fedbench.core.toolkit.download import data_folder

_PACKAGES = (
    "fedbench", "torch", "torchvision", "numpy", "scikit-learn", "pydantic", "pluggy", "ruamel.yaml", "click", "rich",
)  # fmt: skip

Row = tuple[str, str]


@click.command(epilog=examples("fedbench doctor", "FEDBENCH_DATA=/data/fedbench fedbench doctor"))
@click.pass_context
def command(ctx: click.Context) -> None:
    """Show what a bug report needs: versions, devices, threads, the data folder, plugin problems.

    Ends with exit status 1 when a required package is missing or the data folder cannot be written.
    """
    problems: list[str] = []
    rows = [("python", f"{platform.python_version()} ({sys.executable})"), ("platform", platform.platform())]
    rows += [*_versions(problems), *_devices(problems), *_data_folder(problems), *_plugins()]
    show_table(("what", "found"), rows)
    for problem in problems:
        say(f"PROBLEM {problem}")
    if problems:
        ctx.exit(1)


def usable_cores() -> int:
    """Cores that this process may use; where the system does not say, all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    yield "threads", f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between"
    if not torch.cuda.is_available():
        yield "cuda", f"none (torch is built {f'for CUDA {torch.version.cuda}' if torch.version.cuda else 'without'})"
        yield "device", "cpu"
        return
    yield "cuda", f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        yield f"device cuda:{i}", f"{facts.name}, {facts.total_memory / 2**30:.1f} GiB"


def _data_folder(problems: list[str]) -> Iterator[Row]:
    folder = data_folder()
    source = "$FEDBENCH_DATA" if os.environ.get("FEDBENCH_DATA") else "default; set FEDBENCH_DATA to change it"
    yield "data folder", f"{folder} ({source})"
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        problems.append(f"the data folder {folder} cannot be written: set FEDBENCH_DATA to a folder of yours")
    yield "data", f"{sum(1 for _ in folder.iterdir())} files and folders" if folder.is_dir() else "the folder does not exist yet"


def _plugins() -> Iterator[Row]:
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    yield "plugins", f"{len(registry.plugins)} found, {len(registry.broken)} broken, {len(registry.clashes)} clashes"
    yield from (("broken plugin", f"{plugin}: {plugin.reason}") for plugin in registry.broken)
    yield from (("clash", str(clash)) for clash in registry.clashes)
