"""Labels of data, from which partition and audit sets follow without the samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbench.core.contract.components import Data
from fedbench.core.contract.task import DEFAULT_TASK, Task

_LABELS = ("train_y", "test_y", "holdout_y", "train_canary", "holdout_canary")


class NamedTask(Task):
    """Task of which only the name and the training samples' attribute are known."""

    def __init__(self, name: str, attribute: np.ndarray) -> None:
        self.name = name
        self._attribute = attribute

    def attribute(self, y: np.ndarray) -> np.ndarray:
        """Return that of the training samples."""
        return self._attribute


def labels_of(data: Data) -> dict[str, np.ndarray]:
    """Return labels, canaries, the attribute of a skewed division, and one sample of data."""
    arrays = {name: getattr(data, name) for name in _LABELS} | {"sample": data.train_x[:1]}
    if data.task.name != DEFAULT_TASK.name:
        arrays["attribute"] = data.task.attribute(data.train_y)
    return arrays


def data_of_labels(n_classes: int, task: str, arrays: dict[str, np.ndarray]) -> Data:
    """Return data of these labels in which every sample is the same one and takes no memory."""
    sample = arrays["sample"]
    values: dict[str, Any] = {name: arrays[name] for name in _LABELS}
    for split in ("train", "test", "holdout"):
        shape = (len(arrays[f"{split}_y"]), *sample.shape[1:])
        values[f"{split}_x"] = np.broadcast_to(sample, shape)
    if task != DEFAULT_TASK.name:
        values["task"] = NamedTask(task, arrays["attribute"])
    return Data(n_classes=n_classes, **values)
