"""Write what a recording has beside its rounds: samples, hold-outs and ``federation.yaml``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.recording.rounds import check_name
from fedbench.core.store.files import npz_bytes, write_atomically


def save_samples(folder: str | Path, client: str, x: Any, y: Any) -> None:
    """Write the samples ``x`` [n, ...] and labels ``y`` [n] that a client trained on."""
    _save(Path(folder, "data", f"{check_name(client)}.npz"), x, y)


def save_holdout(folder: str | Path, x: Any, y: Any, client: str | None = None) -> None:
    """Write samples that no client trained on: of one client's own site, or for all clients."""
    name = "holdout.npz"
    if client is not None:
        name = f"holdout/{check_name(client)}.npz"
    _save(Path(folder, name), x, y)


def _save(path: Path, x: Any, y: Any) -> None:
    samples, labels = np.asarray(x), np.asarray(y)
    if labels.ndim != 1 or len(samples) != len(labels):
        raise UserError(
            f"{path}: samples {list(samples.shape)} and labels {list(labels.shape)} do not fit: "
            "one integer a sample is needed"
        )
    if labels.dtype.kind not in "iu":
        raise UserError(f"{path}: labels are {labels.dtype}; number the classes from 0")
    if samples.dtype.kind == "f":
        samples = samples.astype(np.float32)
    elif samples.dtype.kind not in "iu":
        raise UserError(f"{path}: samples are {samples.dtype}; convert them to float32")
    write_atomically(path, npz_bytes({"x": samples, "y": labels.astype(np.int64)}))


def describe(
    folder: str | Path,
    *,
    model: str,
    classes: int,
    uploads: str = "model",
    server_sees: str = "uploads",
    weights: str = "recorded",
    framework: str = "",
) -> None:
    """Write ``federation.yaml``: these fields, and clients, rounds and hold-outs as the files are.

    Raises:
        UserError: there are no samples, no hold-out or no complete round, or ``model`` is no text.
    """
    if not isinstance(model, str):
        raise UserError(f"model: expected the text 'module:function', found {model!r:.80}")
    root = Path(folder)
    fields = {
        "format": 1,
        "task": "classification",
        "model": model,
        "classes": classes,
        "clients": sorted(path.stem for path in root.glob("data/*.npz")),
        "rounds": _rounds(root),
        "uploads": uploads,
        "server_sees": server_sees,
        "weights": weights,
        "holdout": _holdout(root),
    }
    if not fields["clients"]:
        raise UserError(f"{root}/data: no samples of a client; write them with save_samples")
    if framework:
        fields["framework"] = framework
    lines = [f"{name}: {json.dumps(value)}\n" for name, value in fields.items()]  # JSON is YAML
    write_atomically(root / "federation.yaml", "".join(lines).encode())


def _rounds(root: Path) -> int | list[int]:
    """Return the number of complete rounds or, where numbers are missing, their list."""
    numbers = sorted(int(path.parent.name) for path in root.glob("rounds/*/round.json"))
    if not numbers:
        raise UserError(f"{root}/rounds: no complete round (round.json); record one first")
    if numbers[0] in (0, 1) and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return len(numbers)
    return numbers


def _holdout(root: Path) -> str:
    common, sites = (root / "holdout.npz").exists(), any(root.glob("holdout/*.npz"))
    if common and sites:
        return "both"
    if not (common or sites):
        raise UserError(f"{root}: no hold-out; save_holdout writes one, which no client trained on")
    return "common" if common else "sites"
