"""Checks of the data and the device of a suite, made before anything is trained."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbench.core.contract.attack import OFL
from fedbench.core.contract.components import Data
from fedbench.core.contract.errors import UserError
from fedbench.core.population.labels import data_of_labels, labels_of
from fedbench.core.process.ask import ask, is_own, long_plugin_limits
from fedbench.core.process.channel import at_work
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.job import Job
from fedbench.core.run.needs import measured_signals, needed_rows
from fedbench.core.run.scene import Scene
from fedbench.core.spec.setting import Setting
from fedbench.core.toolkit.arrays import check_data


def require_data(data: Any, name: str) -> Data:
    """Return the data that a dataset loaded; raise ``UserError`` if they cannot be trained on."""
    if not isinstance(data, Data):
        raise UserError(
            f"dataset '{name}': load returned {type(data).__name__}, expected fedbench.core.Data"
        )
    least = data.task.least_outputs
    if type(data.n_classes) is not int or data.n_classes < least:
        raise UserError(
            f"dataset '{name}': n_classes is {data.n_classes!r}, expected an integer >= {least}"
        )
    for split in data.splits:
        x = getattr(data, f"{split}_x")
        y = getattr(data, f"{split}_y")
        if mistake := _mistake(split, x, y, data.task.y_dtype):
            raise UserError(f"dataset '{name}': {mistake}")
    check_data(data, name)
    if missing := data.task.missing_in_data(data):
        raise UserError(f"dataset '{name}' does not serve the task {data.task.name}: {missing}")
    return data


def _mistake(split: str, x: Any, y: Any, y_dtype: str) -> str:
    if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)) or x.dtype.hasobject:
        return f"{split}_x and {split}_y must be numpy arrays of numbers"
    if y.dtype != y_dtype or y.ndim != 1:
        return f"{split}_y is {y.dtype} {list(y.shape)}, expected {y_dtype} [n]"
    if x.dtype.kind not in "biu" and x.dtype != np.float32:
        return f"{split}_x is {x.dtype}, expected float32, which models train in, or integers"
    if x.dtype == np.float32 and not np.isfinite(x).all():
        return f"{split}_x holds values that are not finite"
    return ""


def repeated_share(data: Data, name: str) -> float:
    """Return the share of the hold-out that repeats a training sample and its label; raise
    ``UserError`` above one half.

    Such a candidate counts as a non-member although it was trained on. A few occur among small
    binary records; many are a mistake in the splits.
    """
    n = trained_on(data, data.holdout_x, data.holdout_y)
    n_holdout = len(data.holdout_y)
    if 2 * n > n_holdout:
        raise UserError(
            f"dataset '{name}': {n:,} of {n_holdout:,} hold-out samples are training samples too "
            "(same values, same label): they would be members that count as non-members; make the "
            "splits disjoint"
        )
    return n / n_holdout


def trained_on(data: Data, x: np.ndarray, y: np.ndarray) -> int:
    """Return how many of the samples ``x`` with labels ``y`` are training samples too."""
    trained = set(_hashes(data.train_x, data.train_y))
    return sum(sample in trained for sample in _hashes(x, y))


def _hashes(x: np.ndarray, y: np.ndarray) -> Iterator[bytes]:
    """Hash each sample with its label, in 16 bytes, so that no two samples share one by chance."""
    flat = np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8)
    for row, label in zip(flat, y, strict=True):
        yield hashlib.blake2b(row.data, digest_size=16, key=label.tobytes()).digest()


# --- loading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loaded:
    """Data with what a job keeps of it."""

    data: Data
    digest: str
    repeated: float
    """the share of the hold-out that repeats training samples"""


def load_data(dataset: ComponentUse, seed: int) -> Loaded:
    """Load a data set of one seed. Raises ``UserError`` if it cannot be trained on."""
    component = dataset.make()[0]
    with at_work(f"dataset {dataset}", long_plugin_limits()):
        data = require_data(component.load(seed), dataset.name)
    return Loaded(data, data.digest(), repeated_share(data, dataset.name))


def load_outline(dataset: ComponentUse, seed: int) -> Loaded:
    """Load a data set as :func:`load_data` does; of another package's the labels alone, with one
    sample in place of all.
    """
    if is_own(dataset.distributions):
        return load_data(dataset, seed)
    outline = ask(lambda: _outline(load_data(dataset, seed)))
    arrays = {name: np.array(*values) for name, values in outline["arrays"].items()}
    data = data_of_labels(outline["n_classes"], outline["task"], arrays)
    return Loaded(data, outline["digest"], outline["repeated"])


def _outline(loaded: Loaded) -> dict[str, Any]:
    arrays = labels_of(loaded.data)
    return {
        "arrays": {name: [a.tolist(), a.dtype.str] for name, a in arrays.items()},
        "n_classes": loaded.data.n_classes,
        "task": loaded.data.task.name,
        "digest": loaded.digest,
        "repeated": loaded.repeated,
    }


def check_device(setting: Setting, device: str) -> bool:
    """Raise ``UserError`` where the device or machine cannot train, or audit, as a setting says."""
    federation = setting.federation
    on_gpu = device.startswith("cuda")
    if not on_gpu and "tf32" in (federation.precision, setting.audit.precision):
        raise UserError(
            "precision tf32 is arithmetic of NVIDIA GPUs; on this device choose fp32 or bf16"
        )
    if not on_gpu and federation.backend == "recorded":
        raise UserError("backend recorded is for NVIDIA GPUs; on this device choose auto")
    if federation.compile and not shutil.which(os.environ.get("CXX", "g++")):
        raise UserError("compile needs a C++ compiler: install g++, or leave compile out")
    return True


# --- candidates -----------------------------------------------------------------------------------


def require_all_coins(scene: Scene) -> None:
    """Raise ``UserError`` where a client's samples that it does not train on are not all asked
    about: the coins of the others are no fair ones.
    """
    for audit in scene.audits:
        client = audit.target.client
        if client is None:
            continue
        asked = np.count_nonzero(audit.kind == OFL)
        outsiders = len(scene.split.test[client])
        if asked < outsiders:
            most = 2 * max(map(len, scene.split.test))
            raise UserError(
                f"audit.outside: {asked} of the {outsiders} samples that client {client} leaves "
                "out by coin are asked about, so the coins of those asked about are not fair: set "
                f"it to a client's samples or more, about {most}"
            )


def bytes_of(job: Job, samples: int, candidates: int) -> int:
    """Return about how many bytes a run's observations and scores take, with one number a signal,
    audited round, row of one global model and sample, and one a cell and candidate.
    """
    requests = [cell.request for cell in job.cells]
    rows = len(needed_rows(job, 1, requests))
    numbers = len(measured_signals(job, requests)) * len(job.audited_rounds) * rows * samples
    return 4 * numbers + 8 * candidates * len(job.cells)
