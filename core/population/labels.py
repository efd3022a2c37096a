"""Labels of data, from which partition and audit sets follow without the samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbench.core.contract.components import Data

_LABELS = ("train_y", "test_y", "holdout_y", "train_canary", "holdout_canary")


def labels_of(data: Data) -> dict[str, np.ndarray]:
    """Return the labels and canaries of data, and one sample."""
    return {name: getattr(data, name) for name in _LABELS} | {"sample": data.train_x[:1]}


def data_of_labels(n_classes: int, arrays: dict[str, np.ndarray]) -> Data:
    """Return data of these labels in which every sample is the same one and takes no memory."""
    sample = arrays["sample"]
    values: dict[str, Any] = {name: arrays[name] for name in _LABELS}
    for split in ("train", "test", "holdout"):
        shape = (len(arrays[f"{split}_y"]), *sample.shape[1:])
        values[f"{split}_x"] = np.broadcast_to(sample, shape)
    return Data(n_classes=n_classes, **values)
