"""Data set and model of a recorded federation."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import nn

from fedbench.core.contract.components import Data, Dataset, Model, Params
from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.recorded.folder import Recording, open_recording
from fedbench.core.recorded.replay import RecordedRound, StateReader, listed, rounds_of
from fedbench.core.recorded.tensors import entries, tensors
from fedbench.core.registry.digest import source_digest
from fedbench.core.spec.base import FUNCTION_PATTERN
from fedbench.core.store.files import read_npz
from fedbench.core.words import bounded, did_you_mean, explain

Samples = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class RecordedData(Data):
    """Data of a federation, with its rounds."""

    rounds: Callable[[], Iterable[RecordedRound]]
    rounds_digest: str
    """sha256"""
    optional: frozenset[str] = frozenset()
    """buffers that the rounds leave out"""

    def digest(self) -> str:
        """Hex sha256 of data and rounds."""
        return f"{super().digest()[:32]}{self.rounds_digest[:32]}"


class RecordedDataset(Dataset):
    """Recorded federations, one a seed."""

    default_model = "recorded"
    licence = "yours"
    citation = "the data's own"

    class Params(Params):
        folders: list[str] = Field(
            min_length=1, description="folder with the recording of each seed, from seed 0 on"
        )

    @classmethod
    def here(cls) -> str | bool:
        """Return where the data lie."""
        return "wherever 'folders' say"

    def load(self, seed: int) -> Data:
        """Return the recording of a seed. Raises ``UserError`` with file, reason and remedy."""
        folders = self.params.folders
        if seed >= len(folders):
            raise UserError(f"there are {len(folders)} recordings, and none for seed {seed}")
        return data_of(open_recording(Path(folders[seed])))


def data_of(recording: Recording) -> RecordedData:
    """Return the data of a recording. Raises ``UserError`` for files that do not fit together."""
    names = recording.description.clients
    clients = [samples_of(recording.data(name)) for name in names]
    sites, paths = zip(*recording.holdouts(), strict=True)
    holdouts = [samples_of(path) for path in paths]
    test = recording.folder / "test.npz"
    tested = [samples_of(test)] if test.is_file() else holdouts
    files = [*map(recording.data, names), *paths]
    require_alike([*clients, *holdouts], files, recording.description.classes)
    owner = np.repeat(np.arange(len(names)), [len(y) for _, y in clients])
    site: np.ndarray | None = np.repeat(sites, [len(y) for _, y in holdouts])
    if recording.is_aggregate:
        owner = np.zeros_like(owner)
    if recording.is_aggregate or max(sites) < 0:
        site = None
    arrays: dict[str, Any] = {}
    for split, parts in (("train", clients), ("holdout", holdouts), ("test", tested)):
        arrays[f"{split}_x"] = np.concatenate([x for x, _ in parts])
        arrays[f"{split}_y"] = np.concatenate([y for _, y in parts])
    base = recording.base
    sizes = [len(y) for _, y in clients]
    return RecordedData(
        **arrays,
        n_classes=recording.description.classes,
        train_client=owner,
        holdout_client=site,
        rounds=lambda: rounds_of(recording, sizes),
        rounds_digest=recording.digest(),
        optional=frozenset(entries(base) if base.is_file() else ()),
    )


def samples_of(path: Path) -> Samples:
    """Return (x, y) of a file. Raises ``UserError``."""
    try:
        _require_memory(path)
        arrays = read_npz(path)
        return plain_samples(arrays["x"], arrays["y"], str(path))
    except FileNotFoundError:
        raise UserError(f"{path}: missing; `fedbench audit --help` shows what it holds") from None
    except KeyError as error:
        raise UserError(f"{path}: it has no array {error}; save it with x=..., y=...") from None
    except MemoryError as error:
        raise UserError(f"{path}: {error}; leave out samples that need not be judged") from error
    except (zipfile.BadZipFile, ValueError) as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise UserError(f"{path}: {reason}; save it with numpy.savez, without objects") from error


def _require_memory(path: Path) -> None:
    """Raise ``UserError`` for an archive of more bytes, by its directory, than this machine has."""
    with zipfile.ZipFile(path) as archive:
        size = sum(info.file_size for info in archive.infolist())
    if size > (most := machine_memory()):
        raise UserError(
            f"{path}: its arrays have {size / 2**30:,.1f} GiB, and this machine has "
            f"{most / 2**30:,.1f}: leave out samples that need not be judged"
        )


def machine_memory() -> int:
    """Return the size of the main memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def plain_samples(x: np.ndarray, y: np.ndarray, place: str) -> Samples:
    """Return samples of the types that models take. Raises ``UserError``."""
    if x.ndim < 2 or y.shape != (len(x),) or not len(y):
        raise UserError(
            f"{place}: x is {list(x.shape)} and y {list(y.shape)}: expected samples [n, ...] and "
            "their labels [n], at least one"
        )
    if y.dtype.kind not in "iu" or x.dtype.kind not in "fiu" or x.dtype == np.uint8:
        raise UserError(
            f"{place}: x is {x.dtype} and y {y.dtype}: expected what the model took in training, "
            "float32 or integer tokens, and integer labels"
        )
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise UserError(f"{place}: x holds values that are not finite; leave these samples out")
    kind = np.float32 if x.dtype.kind == "f" else np.int64
    return x.astype(kind, copy=False), y.astype(np.int64, copy=False)


def require_alike(parts: Sequence[Samples], places: Sequence[Any], classes: int) -> None:
    """Raise ``UserError`` unless all samples have one shape and type, and labels of the classes."""
    first = parts[0][0]
    for (x, y), place in zip(parts, places, strict=True):
        if (x.shape[1:], x.dtype) != (first.shape[1:], first.dtype):
            raise UserError(
                f"{place}: samples are {list(x.shape[1:])} {x.dtype}, and {list(first.shape[1:])} "
                f"{first.dtype} in {places[0]}: save all alike"
            )
        if y.min() < 0 or y.max() >= classes:
            raise UserError(
                f"{place}: labels go from {y.min()} to {y.max()}, and `classes` is {classes}: "
                "number the classes from 0, or correct `classes`"
            )


# --- the model ------------------------------------------------------------------------------------


class RecordedModel(Model):
    """Module that a function returns, with the tensors that the rounds leave out."""

    class Params(Params):
        function: str = Field(
            pattern=FUNCTION_PATTERN, description="module:function, called without arguments"
        )
        code: str = Field("", description="sha256 of the module's code; empty: any")
        base: str = Field("", description="file of tensors that no client trains; empty: none")

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        """Call the function. Raises ``UserError`` where it cannot be imported, or its code has
        changed.
        """
        name = self.params.function
        if self.params.code and self.params.code != code_digest(name):
            raise UserError(
                f"the code of {name} changed since this audit was planned: run `fedbench audit` "
                "again"
            )
        function = function_of(name)
        try:
            module = function()
        except Exception as error:
            raise UserError(f"model {name}: {explain(error)}") from error
        if not isinstance(module, nn.Module):
            kind = type(module).__name__
            raise UserError(f"model {name}: returned {kind}, expected a torch.nn.Module")
        if self.params.base:
            freeze(module, Path(self.params.base))
        return module


def function_of(name: str) -> Callable[[], Any]:
    """Return the function ``module:function``, of an installed package or the current folder.

    Raises:
        UserError: for a module that cannot be imported, or without that function.
    """
    module_name, _, attribute = name.partition(":")
    _see_current_folder()
    try:
        module = import_module(module_name)
    except ImportError as error:
        remedy = f"run fedbench in the folder of {module_name.partition('.')[0]}.py, or install it"
        if module_name.endswith(".py"):
            remedy = f"name the module without '.py', as in {name.replace('.py:', ':')}"
        raise UserError(
            f"model {name}: cannot import '{module_name}' ({explain(error)}): {remedy}"
        ) from error
    except Exception as error:
        raise UserError(
            f"model {name}: cannot import '{module_name}' ({explain(error)}); an import runs the "
            'whole file, so what trains belongs below `if __name__ == "__main__":`'
        ) from error
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, vars(module))
        raise UserError(f"model {name}: the module has no '{attribute}'{hint}")
    function: Callable[[], Any] = getattr(module, attribute)
    return function


def code_digest(name: str) -> str:
    """Return the hex sha256 of the code of ``module:function``."""
    _see_current_folder()
    return source_digest(name.partition(":")[0])


def _see_current_folder() -> None:
    """Let imports find modules of the current folder, after all others."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def freeze(module: nn.Module, base: Path) -> None:
    """Give a module the tensors of a file, none of which is trained. Raises ``UserError``."""
    values = tensors(base)
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, value in values.items():
        if name not in named or named[name].shape != value.shape:
            raise UserError(
                f"{base}: '{name}' {list(value.shape)} is no tensor of the model: correct `model`, "
                "or drop it"
            )
        with torch.no_grad():
            named[name].copy_(value)
        if isinstance(named[name], nn.Parameter):
            named[name].requires_grad_(False)


def misfits_of(recording: Recording) -> list[str]:
    """Return what keeps the rounds from being judged, from headers alone: a line a mistake, with
    the first of its files.
    """
    data = data_of(recording)
    model = RecordedModel(function=recording.description.model)
    module = model.build(data.input_shape, data.n_classes)
    if recording.base.is_file():
        freeze(module, recording.base)
    reader = StateReader(FlatModel(module, torch.device("cpu")), data.optional)
    frozen = {name for name, param in module.named_parameters() if not param.requires_grad}
    left_out: set[str] = set()
    files: dict[str, list[Path]] = {}
    for path, is_delta in recording.files():
        shapes = {name: entry.shape for name, entry in entries(path).items()}
        if path.stem == "received":
            left_out |= frozen - data.optional - shapes.keys()
        try:
            reader.require(shapes, str(path), is_delta)
        except UserError as error:
            files.setdefault(str(error).removeprefix(f"{path}: "), []).append(path)
    misfits = []
    for reason, paths in files.items():
        others = f" and {len(paths) - 1} more files" if len(paths) > 1 else ""
        misfits.append(f"{paths[0]}{others}: {reason}")
    other = model.build(data.input_shape, data.n_classes)
    if drawn := _unlike(module, other, left_out):
        misfits.append(
            f"{recording.base}: needs the frozen {listed(drawn)}, which rounds leave out and "
            "`model` draws anew each time"
        )
    return list(bounded(misfits, "and {} more mistakes"))


def lone_clients(recording: Recording) -> list[int]:
    """Return the clients with a single sample, or a single hold-out sample: their AUC has no
    error.
    """
    lone = set()
    samples = enumerate(map(recording.data, recording.description.clients))
    holdouts = list(recording.holdouts())
    for client, path in [*samples, *holdouts]:
        if len(samples_of(path)[1]) == 1:
            lone.add(client)
    if -1 in lone:  # the hold-out of all clients without one of their own
        lone.remove(-1)
        own = {client for client, _ in holdouts}
        lone.update(k for k in range(len(recording.description.clients)) if k not in own)
    return sorted(lone)


def _unlike(module: nn.Module, other: nn.Module, names: set[str]) -> list[str]:
    """Return those of the parameters that differ between two models of one architecture."""
    values = dict(other.named_parameters())
    return [
        name
        for name, param in module.named_parameters()
        if name in names and not torch.equal(param, values[name])
    ]
