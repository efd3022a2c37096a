"""A finished training as plain data: how it comes out of the process that trained, and how it is kept."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from fedbench.core.contract.dataset import Data
from fedbench.core.experiment.samples import UsedSamples
from fedbench.core.experiment.scene import Scene
from fedbench.core.experiment.train import Trained

_META = ("rows", "history", "measured", "facts", "complaints", "failed", "notes", "signal_notes", "rejected")
_LABELS = ("train_y", "test_y", "holdout_y", "train_canary", "holdout_canary")
_SPLITS = ("train", "test", "holdout")


def pack(trained: Trained) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(JSON values, arrays)."""
    arrays = {f"signal:{n}": a for n, a in trained.signals.items()}
    arrays |= {"rounds": trained.rounds, "held_out": trained.held_out, "test_correct": trained.test_correct}
    arrays |= {"assignment": trained.assignment, "predicted": trained.predicted} | vars(trained.usage)
    if trained.logits is not None:
        arrays["logits"] = trained.logits
    return {name: getattr(trained, name) for name in _META}, arrays


def unpack(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Trained:
    """What was packed. Raises ``KeyError`` where something is missing."""
    known = {name: meta[name] for name in _META if name != "rejected"}
    usage = UsedSamples(**{f.name: arrays[f.name] for f in fields(UsedSamples)})
    return Trained(
        rounds=arrays["rounds"], held_out=arrays["held_out"], test_correct=arrays["test_correct"],
        signals={n.removeprefix("signal:"): a for n, a in arrays.items() if n.startswith("signal:")},
        assignment=arrays["assignment"], predicted=arrays["predicted"], logits=arrays.get("logits"),
        rejected=tuple((t, k) for t, k in meta["rejected"]), usage=usage, **known,
    )  # fmt: skip


def pack_labels(scene: Scene) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """All that judging needs of the data: labels and one sample, from which the harness makes the scene again itself."""
    data = scene.data
    arrays = {f"data:{name}": getattr(data, name) for name in _LABELS} | {"data:sample": data.train_x[:1]}
    return {"n_classes": data.n_classes, "root": len(scene.root)}, arrays


def unpack_labels(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> Data:
    """Data of these labels in which every sample is the same one and takes no memory."""
    given: dict[str, Any] = {name: arrays[f"data:{name}"] for name in _LABELS}
    sample = arrays["data:sample"]
    for split in _SPLITS:
        given[f"{split}_x"] = np.broadcast_to(sample, (len(given[f"{split}_y"]), *sample.shape[1:]))
    return Data(n_classes=meta["n_classes"], **given)
