"""The samples of a scene as a training takes them: each client's own, and which of them are kept out of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedbench.core.contract.contexts import MemberData
from fedbench.core.experiment.scene import Scene
from fedbench.core.spec.federation import FederationSpec


def samples_of(scene: Scene, ids: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(x, y) of these samples on the device."""
    return torch.from_numpy(scene.x_of(ids)).to(device), torch.from_numpy(scene.y_of(ids)).to(device)


def own_data(scene: Scene, k: int, device: torch.device) -> MemberData:
    """A client's data, with its validation part, if it has one, held out."""
    own, watched = scene.split.own(k), scene.split.validation[k]
    held = torch.from_numpy(np.isin(own, watched)).to(device) if len(watched) else None
    x, y = (torch.from_numpy(a[own]).to(device) for a in (scene.data.train_x, scene.data.train_y))
    return MemberData(x, y, held_out=held)


def held_out(scene: Scene, clients: Sequence[MemberData]) -> np.ndarray:
    """Sorted ids of what clients keep out of training, and so out of the audit: not their test parts, which are non-members
    even where the released code's clients validate on them."""
    masks = [(k, c.held_out.cpu().numpy()) for k, c in enumerate(clients) if c.held_out is not None]
    held = [scene.split.own(k)[mask] for k, mask in masks]
    return np.setdiff1d(np.concatenate([np.zeros(0, np.int64), *held]), np.concatenate(scene.split.test))


def quirks(config: FederationSpec) -> list[str]:
    """What the records should say of how the federation validates."""
    if config.validation_on == "own":
        return []
    return ["validation saw the non-members: each client validates on its test part, which the attacks are asked about"]
