"""Labels of data, from which partition and audit sets follow without the samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbench.core.contract.components import Data
from fedbench.core.contract.task import DEFAULT_TASK, Task

_LABELS = ("train_y", "test_y", "holdout_y", "train_canary", "holdout_canary")
_CLIENTS = ("train_client", "holdout_client")  # where a data set has them


class NamedTask(Task):
    """Task of which only the name and the training samples' attribute are known."""

    def __init__(self, name: str, attribute: np.ndarray) -> None:
        self.name = name
        self._attribute = attribute

    def attribute(self, y: np.ndarray) -> np.ndarray:
        """Return that of the training samples."""
        return self._attribute


def labels_of(data: Data) -> dict[str, np.ndarray]:
    """Return labels, canaries, clients, the attribute of a skewed division, and one sample of
    data.
    """
    arrays = {name: getattr(data, name) for name in _LABELS} | {"sample": data.train_x[:1]}
    clients = {name: getattr(data, name) for name in _CLIENTS}
    arrays |= {name: client for name, client in clients.items() if client is not None}
    if data.task.name != DEFAULT_TASK.name:
        arrays["attribute"] = data.task.attribute(data.train_y)
    return arrays


def data_of_labels(n_classes: int, task: str, arrays: dict[str, np.ndarray]) -> Data:
    """Return data of these labels in which every sample is the same one and takes no memory."""
    sample = arrays["sample"]
    names = [*_LABELS, *(name for name in _CLIENTS if name in arrays)]
    values: dict[str, Any] = {name: arrays[name] for name in names}
    for split in ("train", "test", "holdout"):
        shape = (len(arrays[f"{split}_y"]), *sample.shape[1:])
        values[f"{split}_x"] = np.broadcast_to(sample, shape)
    if task != DEFAULT_TASK.name:
        values["task"] = NamedTask(task, arrays["attribute"])
    return Data(n_classes=n_classes, **values)


def origin_of_nonmembers(data: Data, clients: int) -> str:
    """Return in words from which sites outside non-members are; empty where the data set does not
    tell sites apart.
    """
    if data.holdout_client is None:
        return ""
    n = len(np.intersect1d(data.holdout_client, np.arange(clients)))
    if n == clients:
        return "of each client's own site"
    return f"of the own site of {n} of {clients} clients, common for the rest"
