"""Write the models of a federation's rounds, for any framework: tensors, replies, and the mark of a
complete round.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.core.contract.errors import UserError
from fedbench.core.store.files import CLIENT_NAMES, names_client, write_atomically

Tensors = Mapping[str, Any]
"""by name: torch tensors, numpy arrays or numbers"""

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def check_name(client: str) -> str:
    """Return the name of a client.

    Raises:
        UserError: it cannot be a file's name, or is reserved.
    """
    if not names_client(client):
        raise UserError(f"client {client[:80]!r} cannot name a file: use {CLIENT_NAMES}")
    return client


def unused(folder: str | Path) -> Path:
    """Return the folder of a new recording.

    Raises:
        UserError: it has rounds already, which would be taken for this federation's.
    """
    path = Path(folder)
    if any(path.glob("rounds/*")):
        raise UserError(f"{path}: has rounds of a recording; delete them or choose another folder")
    return path


# --- a federation, a round ------------------------------------------------------------------------


class Recorder:
    """Record the rounds of a training loop, numbered from 1."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = unused(folder)
        self.number = 0

    @contextmanager
    def round(self, received: Tensors) -> Iterator[Callable[..., None]]:
        """Record a round: the model that the server sends and, by the function that is yielded
        (``RoundFiles.upload``), each client's reply.

        A round that an exception leaves counts as cut off.
        """
        self.number += 1
        files = RoundFiles(self.folder, self.number, received)
        yield files.upload
        files.close()

    def final(self, model: Tensors) -> None:
        """Record the model after the last round."""
        write_tensors(self.folder / "final.safetensors", model)


class RoundFiles:
    """Files of one round: ``received`` first, a file a reply, and ``round.json`` last."""

    def __init__(self, folder: Path, number: int, received: Tensors) -> None:
        self.number = number
        self.path = folder / "rounds" / f"{number:03d}"
        self._replies: list[dict[str, Any]] = []
        self._names: set[str] = set()
        self.path.mkdir(parents=True)
        write_tensors(self.path / "received.safetensors", received)

    def upload(
        self,
        client: str,
        tensors: Tensors,
        weight: float | None = None,
        kind: str = "model",
        **facts: Any,
    ) -> None:
        """Record what a client sent back.

        Args:
            tensors: a module or its state dict after training or, with ``kind="delta"``, its
                parameters minus the received ones.
            weight: what the server weighs it by, such as a number of samples.
            facts: further fields of the row in ``round.json``.

        Raises:
            UserError: the client's name cannot be used, or has replied in this round.
        """
        if check_name(client).lower() in self._names:
            raise UserError(f"{self.path}: two replies of client {client!r}; give each a name")
        if kind not in ("model", "delta"):
            raise UserError(
                f"{self.path}: kind {kind!r} of client {client!r} is not model or delta"
            )
        self._names.add(client.lower())
        write_tensors(self.path / f"{client}.safetensors", tensors)
        row = {"client": client, "kind": kind, **facts}
        if weight is not None:
            row["weight"] = float(weight)
        self._replies.append(row)

    def failure(self, reason: str, client: str | None = None, **facts: Any) -> None:
        """Record that a client was asked and sent nothing that can be used."""
        row = {"failed": reason[-200:], **facts}
        if client is not None:
            row["client"] = client
        self._replies.append(row)

    def close(self) -> None:
        """Mark the round as complete."""
        content = {"round": self.number, "replies": self._replies}
        text = json.dumps(content, indent=1, default=str)
        write_atomically(self.path / "round.json", text.encode())


# --- tensors --------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Tensors | torch.nn.Module) -> None:
    """Write a safetensors file: length of the header, the header as JSON, then the values without
    gaps, the widest type first, so that each is aligned.

    Raises:
        UserError: ``tensors`` is neither a state dict nor a module, or a value is no tensor, or of
            a type that the format lacks.
    """
    if isinstance(tensors, torch.nn.Module):
        tensors = tensors.state_dict()
    if not isinstance(tensors, Mapping):
        kind = type(tensors).__name__
        raise UserError(f"{path}: expected a state dict or a torch.nn.Module, not {kind}")
    values = {name: _tensor(value, f"{path}: {name}") for name, value in tensors.items()}
    names = sorted(values, key=lambda name: (-values[name].element_size(), name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        tensor = values[name]
        start, end = end, end + tensor.nbytes
        dtype, shape = _DTYPES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            flat = values[name].cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)


def _tensor(value: Any, place: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise UserError(f"{place} is {type(value).__name__}, not a tensor; leave it out")
        value = torch.tensor(array)
    if value.dtype not in _DTYPES:
        raise UserError(f"{place} has type {value.dtype}; convert it to float32 or int64")
    return value.detach()
