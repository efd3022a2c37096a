"""Where a record comes from: versions, commit, hardware; and whether another machine agrees with
it.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable, Iterator
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
from fedbench.core.run.job import Job, identity, key_of_run
from fedbench.core.run.resume import values_that_differ
from fedbench.core.spec.load import LoadedSuite
from fedbench.core.spec.resolve import Resolved, written_out
from fedbench.core.store.record import Provenance
from fedbench.core.store.stored_suites import StoredSuite
from fedbench.core.words import printable


def gather(device: str, dtype: str) -> Provenance:
    """Asked once, by the parent process."""
    commit, dirty = _git()
    libraries = {
        name: metadata.version(name.replace("_", "-"))
        for name in ("torch", "numpy", "scipy", "scikit_learn")
    }
    return Provenance(
        fedbench=metadata.version(DISTRIBUTION),
        python=platform.python_version(),
        **libraries,
        git_commit=commit,
        git_dirty=dirty,
        platform=_platform(),
        cpu=_cpu(),
        cpu_capability=_capability(),
        device=_device_name(device),
        dtype=dtype,
        threads=1,
        deterministic=True,
    )


def installed() -> dict[str, str]:
    """Name -> version of every package that is installed here, by name."""
    found = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def asked_for(loaded: LoadedSuite, resolved: Resolved, device: str) -> StoredSuite:
    """The suite as a results folder keeps it, with what is installed."""
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
    """Operating system, processor family and C library: what can change bits; not the kernel's
    build name.
    """
    return " ".join(w for w in (platform.system(), platform.machine(), *platform.libc_ver()) if w)


def _git() -> tuple[str | None, bool | None]:
    """Commit and dirty flag of the checkout fedbench runs from; None when it is installed from a
    wheel.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None, None

    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

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


# --- whether a node of a cluster can do a run that was planned elsewhere --------------------------


def needs_of(job: Job) -> dict[str, Any]:
    """What a node must have, as JSON values: versions and digests of the code, and versions of what
    it requires.
    """
    uses = {
        (u.distribution, u.target.partition(":")[0]): [u.name, u.digest, u.requires]
        for u in _uses(job)
    }
    version = metadata.version(DISTRIBUTION)
    return {
        "fedbench": version,
        "core": core_digest(),
        "uses": [[*at, *what] for at, what in uses.items()],
    }


def lacking(needs: dict[str, Any]) -> list[str]:
    """What this machine lacks of it: every package with another version or other code."""
    found: list[str] = []
    here = metadata.version(DISTRIBUTION)
    if core_digest() != needs["core"]:
        found.append(f"the package '{DISTRIBUTION}': {_versions(here, needs['fedbench'])}")
    for distribution, module, name, digest, requires in needs["uses"]:
        found += _of_package(distribution, module, name, digest, requires)
    return list(dict.fromkeys(found))


def as_here(job: Job) -> Job:
    """The job with this machine in its provenance. Raises ``UserError`` if its key would be another
    one here, because of the vector instructions for example.
    """
    here = replace(job, provenance=gather(job.device, job.provenance.dtype))
    if key_of_run(here) != job.run_key:
        changes = [
            f"{path} {a} -> {b}" for path, a, b in values_that_differ(identity(job), identity(here))
        ]
        raise UserError(f"the run would have another key here ({'; '.join(changes)})")
    return here


def require_data(job: Job) -> None:
    """Raise ``UserError`` unless the job's data set can be loaded here, downloaded if it is
    missing, and is the planned one.
    """
    found = ask(lambda: load_data(job.dataset, job.seed).digest)
    if found != job.digests["data"]:
        raise UserError(
            f"the data of '{job.dataset.name}', seed {job.seed}, are not those that the suite was "
            "planned with (digests "
            f"{found[:12]} and {job.digests['data'][:12]}): delete them, or set FEDBENCH_DATA to a "
            "folder that all nodes share"
        )


def _uses(job: Job) -> Iterator[ComponentUse]:
    """Every component that the run uses; of signals, those that its cells read."""
    measured = {name for cell in job.cells for name in cell.identity["signals"]}
    some: Iterable[ComponentUse | None] = (
        job.dataset,
        job.model,
        job.defense,
        job.attacker,
        *job.analyses,
        *(cell.attack for cell in job.cells),
        *(use for name, use in job.signals.items() if name in measured),
    )
    for use in some:
        yield from use.chain if use is not None else ()


def _of_package(
    distribution: str, module: str, name: str, digest: str, requires: dict[str, str]
) -> Iterator[str]:
    package, _, version = distribution.rpartition(" ")
    try:
        here = metadata.version(package)
        same = source_digest(module, package) == digest
    except metadata.PackageNotFoundError:
        yield f"the package '{package}' {version}, of '{name}': not installed"
    except UserError as error:
        yield f"the package '{package}', of '{name}': {error}"
    else:
        if not same or here != version:
            yield f"the package '{package}', of '{name}': {_versions(here, version)}"
        have = requirements_of(package)
        yield from (
            f"the package '{p}', required by '{name}': version {have.get(p, 'none')}, not {v}"
            for p, v in requires.items()
            if have.get(p) != v
        )


def _versions(here: str, there: str) -> str:
    return (
        f"version {here}, not {there}"
        if here != there
        else f"version {here} as well, but its files differ"
    )
