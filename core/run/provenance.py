"""Provenance of records: versions, commit, hardware; and whether another machine agrees with it."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.process.ask import ask
from fedbench.core.registry.digest import core_digest, requirements_of, source_digest
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.checks import load_data
from fedbench.core.run.job import Job, identity
from fedbench.core.run.resume import values_that_differ
from fedbench.core.spec.load import LoadedSuite
from fedbench.core.spec.resolve import Resolved, written_out
from fedbench.core.store.record import Provenance
from fedbench.core.store.stored_suites import StoredSuite
from fedbench.core.words import printable


def gather(device: str, dtype: str) -> Provenance:
    """Return the provenance of runs on this machine."""
    import torch

    commit, dirty = _git()
    names = ("torch", "numpy", "scipy", "scikit_learn")
    libraries = {name: metadata.version(name.replace("_", "-")) for name in names}
    return Provenance(
        fedbench=metadata.version(DISTRIBUTION),
        python=platform.python_version(),
        **libraries,
        git_commit=commit,
        git_dirty=dirty,
        platform=_platform(),
        cpu=_cpu(),
        cpu_capability=str(torch.backends.cpu.get_cpu_capability()),
        device=_device_name(device),
        dtype=dtype,
        threads=1,
        deterministic=True,
    )


def installed() -> dict[str, str]:
    """Return name -> version of every package that is installed here, by name."""
    versions = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return {name: versions[name] for name in sorted(filter(None, versions), key=str.lower)}


def stored_suite(
    loaded: LoadedSuite,
    resolved: Resolved,
    device: str,
) -> StoredSuite:
    """Return the suite as a results folder keeps it, with what is installed."""
    return StoredSuite(
        suite=loaded.spec.name,
        file=printable(loaded.path.name),
        given=loaded.text,
        resolved=written_out(loaded, resolved),
        overrides=loaded.overrides,
        device=device,
        packages=installed(),
    )


def _platform() -> str:
    """Return operating system, processor family and C library: what can change bits; not the
    kernel's build name.
    """
    return " ".join(filter(None, (platform.system(), platform.machine(), *platform.libc_ver())))


def _git() -> tuple[str | None, bool | None]:
    """Return commit and dirty flag of the checkout fedbench runs from; None when it is installed
    from a wheel.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None, None

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _device_name(device: str) -> str:
    if device == "cpu":
        return device
    import torch

    if not torch.cuda.is_available():
        return device  # planned for a cluster, from a machine without a GPU
    return f"{device} ({torch.cuda.get_device_name(device)})"


# --- whether a node of a cluster can do a run that was planned elsewhere --------------------------


def needs_of(job: Job) -> dict[str, Any]:
    """Return what a node must have, as JSON values: versions and digests of the code, and versions
    of what it requires.
    """
    uses = {}
    for use in _uses(job):
        module = use.target.partition(":")[0]
        uses[use.distribution, module] = [use.name, use.digest, use.requires]
    return {
        "fedbench": metadata.version(DISTRIBUTION),
        "core": core_digest(),
        "uses": [[*place, *use] for place, use in uses.items()],
    }


def lacking(needs: dict[str, Any]) -> list[str]:
    """Return what this machine lacks of the needs: every package with another version or other
    code.
    """
    lines = []
    if core_digest() != needs["core"]:
        lines.append(f"the package '{DISTRIBUTION}': {_versions(DISTRIBUTION, needs['fedbench'])}")
    for use in needs["uses"]:
        lines += _lacking_of(*use)
    return list(dict.fromkeys(lines))


def as_here(job: Job) -> Job:
    """Return the job with this machine in its provenance. Raises ``UserError`` if its key would be
    another one here, because of the vector instructions for example.
    """
    local_job = replace(job, provenance=gather(job.device, job.provenance.dtype))
    if local_job.run_key != job.run_key:
        pairs = values_that_differ(identity(job), identity(local_job))
        changes = "; ".join(f"{path} {a} -> {b}" for path, a, b in pairs)
        raise UserError(f"the run would have another key here ({changes})")
    return local_job


def require_data(job: Job) -> None:
    """Raise ``UserError`` unless the job's data set can be loaded here, downloaded if it is
    missing, and is the planned one.
    """
    seed = job.setting.seed_of_data(job.seed)
    digest = ask(lambda: load_data(job.dataset, seed).digest)
    planned = job.digests["data"]
    if digest != planned:
        raise UserError(
            f"the data of '{job.dataset.name}', seed {seed}, are not those that the suite was "
            f"planned with (digests {digest[:12]} and {planned[:12]}): delete them, or set "
            "FEDBENCH_DATA to a folder that all nodes share"
        )


def _uses(job: Job) -> Iterator[ComponentUse]:
    """Return every component that the run uses; of signals, those that its cells read."""
    uses = [job.dataset, job.model, job.defense, *job.analyses]
    if job.attacker is not None:
        uses.append(job.attacker)
    for cell in job.cells:
        uses += [cell.attack, *job.signals_of(cell).values()]
    for use in uses:
        yield from use.chain


def _lacking_of(
    distribution: str, module: str, name: str, digest: str, requires: dict[str, str]
) -> Iterator[str]:
    package, _, version = distribution.rpartition(" ")
    lead = f"the package '{package}'"
    try:
        same = metadata.version(package) == version and source_digest(module, package) == digest
    except metadata.PackageNotFoundError:
        yield f"{lead} {version}, of '{name}': not installed"
        return
    if not same:
        yield f"{lead}, of '{name}': {_versions(package, version)}"
    present = requirements_of(package)
    for required in requires:
        if present.get(required) != requires[required]:
            yield f"the package '{required}', of '{name}': another version"


def _versions(package: str, planned: str) -> str:
    version = metadata.version(package)
    if version == planned:
        return f"version {version} as well, but its files differ"
    return f"version {version}, not {planned}"
