"""What every data set must satisfy, whoever wrote it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedbench.core.contract.dataset import Data
from fedbench.core.contract.errors import UserError

SPLITS = ("train", "test", "holdout")


def check_data(data: Data, name: str) -> Data:
    """``data`` itself. Raises ``UserError`` with everything that is wrong with it: lengths, shapes, labels,
    canary flags, normalisation. ``name`` is the data set's, for the message."""
    problems = [p for split in SPLITS for p in _split_problems(data, split)]
    problems += _normalisation_problems(data)
    if problems:
        raise UserError(*(f"dataset '{name}': {p}" for p in problems))
    return data


def check_labels(y: np.ndarray, n_classes: int, where: str) -> None:
    """Every label in 0..C-1. Raises ``UserError`` naming ``where`` and the first position that is not."""
    problem = _label_problem(y, n_classes)
    if problem:
        raise UserError(f"{where}: {problem}")


def check_size(file: Path, most: int) -> None:
    """Raises ``UserError`` for a file of more than ``most`` bytes: before it is read, not when memory is out."""
    size = file.stat().st_size
    if size > most:
        raise UserError(f"{file}: {size:,} bytes, at most {most:,} expected: not this data set; get it from its official home")


def _label_problem(y: np.ndarray, n_classes: int) -> str | None:
    wrong = np.flatnonzero((y < 0) | (y >= n_classes))
    if not len(wrong):
        return None
    return (
        f"{len(wrong):,} labels are not 0..{n_classes - 1} (the first: {y[wrong[0]]} at position {wrong[0]}); number the "
        f"classes from 0, or fix the file or n_classes"
    )


def _split_problems(data: Data, split: str) -> list[str]:
    x, y = getattr(data, f"{split}_x"), getattr(data, f"{split}_y")
    if len(x) == 0:
        return [f"{split} is empty"]
    if len(x) != len(y):
        return [f"{split} has {len(x):,} samples but {len(y):,} labels"]
    problems = []
    if x.shape[1:] != data.train_x.shape[1:] or x.dtype != data.train_x.dtype:
        problems.append(
            f"{split} samples are {list(x.shape[1:])} {x.dtype}, train samples {list(data.train_x.shape[1:])} "
            f"{data.train_x.dtype}: make them alike"
        )
    if not np.issubdtype(y.dtype, np.integer):
        return [*problems, f"{split} labels are {y.dtype}: make them int64"]
    wrong = _label_problem(y, data.n_classes)
    problems += [f"{split}: {wrong}"] if wrong else []
    canary = getattr(data, f"{split}_canary", None)
    if canary is not None and len(canary) != len(y):
        problems.append(f"{split} has {len(y):,} samples but {len(canary):,} canary flags")
    return problems


def _normalisation_problems(data: Data) -> list[str]:
    if data.train_x.dtype != np.uint8:
        return []
    channels = data.train_x.shape[1] if data.train_x.ndim == 4 else None
    if channels is None:
        return [f"uint8 samples are {list(data.train_x.shape[1:])}, not images [channels, height, width]"]
    for name in ("mean", "std"):
        values = getattr(data, name)
        if values is None or len(values) != channels:
            return [f"uint8 images with {channels} channels need 'mean' and 'std' with {channels} values each"]
    if min(data.std or (1.0,)) <= 0:
        return [f"std must be above 0, not {data.std}"]
    return []
