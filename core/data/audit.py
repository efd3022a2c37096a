"""Aligned audit sets: for one (seed, target) ONE ordered list of candidates, whatever the attack, round or defense."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.data.partition import Shards
from fedbench.core.rng import numpy_rng

MEMBER, OFL, IFL = 0, 1, 2
EXCLUDED = -1  # e.g. a sample that the defense held out of training: neither trained on nor a stranger


@dataclass(frozen=True)
class AuditSet:
    """Candidates of one target. ``ids``: [n] positions in train ++ holdout; ``kind``: [n] MEMBER, OFL or IFL;
    ``owner``: [n] the training client, -1 outside the federation. The order is random: a position tells nothing."""

    target: int
    ids: np.ndarray
    kind: np.ndarray
    owner: np.ndarray

    def digest(self) -> str:
        """Hex sha256 of the ordered lists."""
        h = hashlib.sha256(str(self.target).encode())
        for a in (self.ids, self.kind, self.owner):
            h.update(np.ascontiguousarray(a, dtype=np.int64).tobytes())
        return h.hexdigest()


def audit_set(shards: Shards, n_holdout: int, target: int, nonmembers: int, seed: int) -> AuditSet:
    """All of the target's samples against ``nonmembers // K`` from the hold-out and from each other client.

    Shares are cut to what exists (FedMIA's and CoFedMID's 1:9 mix of outside and inside non-members for K = 10;
    evaluation.md, protocol 1-2). Raises ``UserError`` when there is no hold-out sample to draw.
    """
    clients, n_train = len(shards), sum(len(s) for s in shards)
    share = min(nonmembers // clients, n_holdout)
    if share < 1:
        raise UserError(
            f"no outside non-members: audit.nonmembers = {nonmembers} over {clients} clients with a hold-out of "
            f"{n_holdout} samples leaves none; raise audit.nonmembers or the dataset's hold-out"
        )
    rng = numpy_rng(seed, "audit", client=target)
    ids, kinds, owners = [shards[target]], [np.full(len(shards[target]), MEMBER)], [np.full(len(shards[target]), target)]
    outside = n_train + rng.choice(n_holdout, share, replace=False)
    ids.append(outside)
    kinds.append(np.full(share, OFL))
    owners.append(np.full(share, -1))
    for k in range(clients):
        if k == target:
            continue
        drawn = rng.choice(shards[k], min(share, len(shards[k])), replace=False)
        ids.append(drawn)
        kinds.append(np.full(len(drawn), IFL))
        owners.append(np.full(len(drawn), k))
    order = rng.permutation(sum(map(len, ids)))
    pick = [np.concatenate(a)[order].astype(np.int64) for a in (ids, kinds, owners)]
    return AuditSet(target, *pick)


def opaque_names(n: int, seed: int) -> np.ndarray:
    """[n] what each sample of train ++ hold-out is called in front of an attack: a keyed permutation of 0..n-1.

    The position itself would tell the hold-out (larger numbers: certain non-members) from the training data.
    """
    return numpy_rng(seed, "opaque names").permutation(n)


def pool_of(audits: list[AuditSet]) -> np.ndarray:
    """Sorted ids of every sample that some target's audit needs: what the engine measures."""
    return np.unique(np.concatenate([a.ids for a in audits]))


def split_digest(shards: Shards, audits: list[AuditSet]) -> str:
    """Hex sha256 of who trains on what and of every audit list."""
    h = hashlib.sha256()
    for s in shards:
        h.update(len(s).to_bytes(8, "little") + np.ascontiguousarray(s, dtype=np.int64).tobytes())
    for a in audits:
        h.update(a.digest().encode())
    return h.hexdigest()
