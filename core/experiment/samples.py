"""The samples of a scene as a training takes them: each client's own, and which of them are kept out of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedbench.core.contract.samples import MemberData
from fedbench.core.experiment.scene import Scene
from fedbench.core.federation.usage import UNKNOWN, Usage
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


@dataclass(frozen=True)
class UsedSamples:
    """What was trained on: ``used`` [N] in how many rounds each sample of the pool was, by its owner, in how many of them with
    a true flag, ``flagged`` [N]; ``used_in_round``, ``flagged_in_round`` [T, K] how many samples each client trained on. int32;
    0 of a stranger and of an absent client, -1 where nobody knows."""

    used: np.ndarray
    flagged: np.ndarray
    used_in_round: np.ndarray
    flagged_in_round: np.ndarray


def used_samples(scene: Scene, usage: Usage, malicious: Collection[int]) -> UsedSamples:
    """Of the scene's pool. What ``malicious`` clients train on is not known: they send what an adversary makes."""
    pool, rounds = scene.pool, usage.of_rounds()
    counts = np.zeros((2, len(pool)), np.int32)
    for k in range(len(scene.shards)):
        where = np.flatnonzero(np.isin(pool, scene.split.own(k)))
        at = np.searchsorted(scene.split.own(k), pool[where])
        counts[:, where] = UNKNOWN if k in malicious else [of[at] for of in usage.of_client(k)]
    for of in rounds:
        of[:, sorted(malicious)] = UNKNOWN
    return UsedSamples(counts[0], counts[1], *rounds)


def quirks(config: FederationSpec) -> list[str]:
    """What the records should say of how the federation validates."""
    if config.validation_on == "own":
        return []
    return ["validation saw the non-members: each client validates on its test part, which the attacks are asked about"]
