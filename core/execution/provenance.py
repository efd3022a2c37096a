"""Where a record comes from: versions, commit, hardware."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

from fedbench.core.spec.load import LoadedSuite
from fedbench.core.spec.resolve import Resolved
from fedbench.core.spec.written import written_out
from fedbench.core.store.plans import Asked
from fedbench.core.store.record import Provenance
from fedbench.core.words.explain import printable


def gather(device: str, dtype: str) -> Provenance:
    """Asked once, by the parent process."""
    commit, dirty = _git()
    return Provenance(
        fedbench=metadata.version("fedbench"), python=platform.python_version(), torch=metadata.version("torch"),
        numpy=metadata.version("numpy"), git_commit=commit, git_dirty=dirty, platform=_platform(), cpu=_cpu(),
        cpu_capability=_capability(), device=_device_name(device), dtype=dtype, threads=1, deterministic=True,
    )  # fmt: skip


def installed() -> dict[str, str]:
    """Name -> version of every package that is installed here, by name."""
    found = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def asked_for(loaded: LoadedSuite, resolved: Resolved, device: str) -> Asked:
    """The suite as a results folder keeps it, with what is installed."""
    return Asked(
        suite=loaded.spec.name, file=printable(loaded.path.name), given=loaded.text, resolved=written_out(loaded, resolved),
        overrides=loaded.overrides, device=device, packages=installed(),
    )  # fmt: skip


def _platform() -> str:
    """Operating system, processor family and C library: what can change bits; not the kernel's build name."""
    return " ".join(w for w in (platform.system(), platform.machine(), *platform.libc_ver()) if w)


def _git() -> tuple[str | None, bool | None]:
    """Commit and dirty flag of the checkout fedbench runs from; None when it is installed from a wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None, None

    def ask(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        return ask("rev-parse", "HEAD"), bool(ask("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()


def _capability() -> str:
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


def _device_name(device: str) -> str:
    if device == "cpu":
        return device
    import torch

    if not torch.cuda.is_available():
        return device  # planned for a cluster, from a machine without a GPU
    return f"{device} ({torch.cuda.get_device_name(device)})"
