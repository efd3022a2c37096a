"""Models pretrained on public samples: once for a setting and seed, cached for its other runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedbench.core.contract.components import Data, Model
from fedbench.core.run.job import Job, identity
from fedbench.core.store.files import read_npz, write_if_room
from fedbench.core.store.integrity import key_of

_OF_RUN = ("contract", "digests", "device", "provenance", "dataset", "model")
_TRAINED = "trained parameters"


def pretrain(job: Job, model: Model, module: nn.Module, data: Data, key: int) -> None:
    """Pretrain a fresh ``module``, or fill it from the cache.

    Args:
        key: of torch's generator; with the setting it names the file. The generator is seeded with
            it again afterwards, so that what follows draws the same either way.
    """
    if type(model).pretrain is Model.pretrain:
        return
    path = _path(job, key)
    if not _fill(module, path):
        model.pretrain(module, data)
        write_if_room(path, _arrays(module))
    torch.manual_seed(key)


def _path(job: Job, key: int) -> Path:
    run = identity(job)
    parts = {name: run[name] for name in _OF_RUN}
    name = key_of({**parts, "cpu": job.provenance.cpu_type, "key": key})[:32]
    return Path(job.results) / "cache" / f"pretrained-{name}.npz"


def _arrays(module: nn.Module) -> dict[str, np.ndarray]:
    arrays = {name: value.cpu().numpy() for name, value in module.state_dict().items()}
    trained = [parameter.requires_grad for parameter in module.parameters()]
    return {**arrays, _TRAINED: np.array(trained)}


def _fill(module: nn.Module, path: Path) -> bool:
    """Return whether the cache held the module's state; a damaged file costs the pretraining, and
    leaves the module as it is.
    """
    try:
        arrays = read_npz(path)
        trained = arrays.pop(_TRAINED)
    except (OSError, ValueError, KeyError):
        return False
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    if {name: value.shape for name, value in arrays.items()} != shapes:
        return False
    module.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
    for parameter, is_trained in zip(module.parameters(), trained, strict=True):
        parameter.requires_grad_(bool(is_trained))
    return True
