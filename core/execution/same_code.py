"""Does this machine have what a run was planned with? Asked on a node, before anything of the run is done there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from importlib import metadata
from typing import Any

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import PROJECT
from fedbench.core.execution.provenance import gather
from fedbench.core.execution.rows import load_data
from fedbench.core.execution.stale import values_that_differ
from fedbench.core.experiment.job import Job, identity, key_of_run
from fedbench.core.registry import digest
from fedbench.core.registry.ask import ask
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.record import Provenance

_sound: set[tuple[str, str]] = set()  # data sets that were loaded here, by their parameters and the digest of their data


def needs_of(job: Job) -> dict[str, Any]:
    """What a node must have, as plain data: a node with another fedbench can read it too."""
    used = {(u.distribution, u.target.partition(":")[0]): [u.name, u.digest] for u in _uses(job)}
    return {"fedbench": metadata.version(PROJECT), "core": _core(), "uses": [[*at, *what] for at, what in used.items()]}


def lacking(needs: dict[str, Any]) -> list[str]:
    """What this machine lacks of it: every package whose version or code is another one."""
    found: dict[str, None] = {}
    here = metadata.version(PROJECT)
    if _core() != needs["core"]:
        found[f"the package 'fedbench': {_versions(here, needs['fedbench'])}"] = None
    for distribution, module, name, wanted in needs["uses"]:
        if problem := _of_package(distribution, module, name, wanted):
            found[problem] = None
    return list(found)


def as_here(job: Job) -> Job:
    """The job with this machine in its provenance. Raises ``UserError`` where it would be another run here: what its key is
    made of, the vector instructions for example, is not what it was planned with."""
    here = replace(job, provenance=_provenance(job.device, job.provenance.dtype))
    if key_of_run(here) != job.run_key:
        told = [f"{path} {a} -> {b}" for path, a, b in values_that_differ(identity(job), identity(here))]
        raise UserError(f"the run would have another key here ({'; '.join(told)})")
    return here


def require_data(job: Job) -> None:
    """Raise ``UserError`` unless the job's data set can be loaded here and is the one that it was planned with. Asked once a
    data set: what is missing is downloaded now."""
    made_of = f"{job.dataset.identity()}", job.digests["data"]
    if made_of in _sound:
        return
    found = ask(lambda: load_data(job.dataset, job.seed).digest)
    if found != job.digests["data"]:
        raise UserError(
            f"the data of '{job.dataset.name}', seed {job.seed}, are not those that the suite was planned with (digests "
            f"{found[:12]} and {job.digests['data'][:12]}): delete them, or set FEDBENCH_DATA to a folder that all nodes share"
        )
    _sound.add(made_of)


@cache
def _core() -> str:
    return digest.core_digest()


@cache
def _source(module: str, package: str) -> str:
    return digest.source_digest(module, package)


@cache
def _provenance(device: str, dtype: str) -> Provenance:
    return gather(device, dtype)


def _uses(job: Job) -> Iterator[ComponentUse]:
    """Every component whose code the run needs; of signals, those that its cells read."""
    measured = {name for cell in job.cells for name in cell.identity["signals"]}
    some: Iterable[ComponentUse | None] = (
        job.dataset, job.model, job.defense, job.attacker, *job.analyses, *(cell.attack for cell in job.cells),
        *(use for name, use in job.signals.items() if name in measured),
    )  # fmt: skip
    for use in some:
        yield from use.chain if use is not None else ()


def _of_package(distribution: str, module: str, name: str, wanted: str) -> str | None:
    package, _, version = distribution.rpartition(" ")
    try:
        here = metadata.version(package)
    except metadata.PackageNotFoundError:
        return f"the package '{package}' {version}, of '{name}': not installed"
    try:
        same = _source(module, package) == wanted
    except UserError as error:
        return f"the package '{package}', of '{name}': {error}"
    return None if same and here == version else f"the package '{package}', of '{name}': {_versions(here, version)}"


def _versions(here: str, there: str) -> str:
    return f"version {here}, not {there}" if here != there else f"version {here} as well, but its files differ"
