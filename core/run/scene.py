"""Data of a run: partition, deformation, audit sets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedbench.core.contract.components import Data, Dataset, Model
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.compose import allied, composed
from fedbench.core.population.audit import (
    EVERYBODY,
    AuditSet,
    Target,
    audit_set,
    client,
    free_holdout,
    group,
    mask_set,
    opaque_names,
    own_set,
    pool_of,
    pooled_set,
)
from fedbench.core.population.groups import Groups, deform, make_groups, thresholds
from fedbench.core.population.partition import Outsiders, Shards, Split, cut_all, partition
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.job import Job
from fedbench.core.spec.setting import Adversary, AuditSpec, Setting


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Samples of the clients, and the audit sets of all targets. Ids of samples are positions in
    train ++ holdout.
    """

    data: Data
    split: Split
    audits: list[AuditSet]
    names: np.ndarray
    """[n] what an attack calls each sample: it must not learn the id"""
    aligned: bool
    """whether all models are asked about one list of candidates"""
    mask: np.ndarray
    """ids of the adversary's own samples"""
    root: np.ndarray
    """ids of the server's own samples"""
    shadow: np.ndarray
    """ids of the attacker's own samples, for shadow models"""
    groups: Groups | None
    thresholds: np.ndarray | None
    """[K] the accuracy of membership inference that each client tolerates"""

    @property
    def shards(self) -> Shards:
        """The samples that each client trains on."""
        return self.split.train

    @property
    def pool(self) -> np.ndarray:
        """Sorted ids of every sample that is looked at: the audited ones and the clients' test
        parts, with which a colluder teaches; all that can be where lists are redrawn.
        """
        if not self.aligned:
            spared = np.concatenate([self.split.validated(), self.root, self.shadow])
            return np.setdiff1d(np.arange(len(self.names)), spared)
        return np.union1d(pool_of(self.audits), np.concatenate(self.split.test)).astype(np.int64)

    def redrawn_from(self, audit: AuditSet) -> np.ndarray:
        """Return [n] for each sample the client with candidates that it may replace; -1 outside
        candidates, -2 none.
        """
        owners = self.split.trained_by()
        if audit.target.client is not None:
            outsiders = _outsiders_of(audit.target.client, self.split, self.groups)
            owners[np.setdiff1d(np.flatnonzero(owners < 0), outsiders.ids)] = -2
        return owners

    @property
    def asked(self) -> np.ndarray:
        """Ids of the samples that an adversary inside the federation gets as its attack set, in the
        order of their names.
        """
        ids = pool_of(self.audits) if self.aligned else self.pool
        return ids[np.argsort(self.names[ids])]

    @property
    def presented(self) -> np.ndarray:
        """[N] positions in the pool in the order an attack gets to see them: by name, so that order
        tells nothing.
        """
        return np.argsort(self.names[self.pool])

    @property
    def test_group(self) -> np.ndarray:
        """[n_test] group of each test sample, which is client i mod K's; all 0 without groups."""
        if self.groups is None:
            return np.zeros(len(self.data.test_y), np.int64)
        return self.groups.of_client[np.arange(len(self.data.test_y)) % len(self.shards)]

    def client_of(self, audit: AuditSet) -> np.ndarray:
        """Return [n] the client with the model that each candidate is measured on: the target or,
        of many clients together, the candidate's own. A sample of a test part belongs to its
        client, one of the hold-out to client i mod K, which has such images.
        """
        if (client := audit.target.client) is not None:
            return np.full(len(audit.ids), client)
        return np.where(audit.owner >= 0, audit.owner, self.split.home()[audit.ids])

    def x_of(self, ids: np.ndarray) -> np.ndarray:
        """Return [n, *input] samples of these ids."""
        return _take(self.data.train_x, self.data.holdout_x, ids)

    def y_of(self, ids: np.ndarray) -> np.ndarray:
        """Return [n] labels of these ids."""
        return _take(self.data.train_y, self.data.holdout_y, ids)

    def canary_of(self, ids: np.ndarray) -> np.ndarray:
        """Return [n] whether these samples are canaries."""
        return _take(self.data.train_canary, self.data.holdout_canary, ids)


def set_scene(job: Job, parts: Parts) -> Scene:
    """Load, partition, deform and draw the audit lists.

    Raises:
        UserError: for data that cannot carry the setting, and for other data than planned.
    """
    data = parts.dataset.load(job.setting.seed_of_data(job.seed))
    digest = data.digest()
    planned = job.digests["data"]
    if digest != planned:
        raise UserError(
            f"the dataset '{job.dataset.name}' gave other data than when the run was planned "
            f"(digest {digest[:12]} after {planned[:12]}): load(seed) must depend on nothing but "
            "its parameters and the seed"
        )
    scene = scene_of(job, data, parts.defense.root_samples)
    if scene.groups is None:
        return scene
    return replace(scene, data=_deformed(data, scene.split, scene.groups))


def scene_of(job: Job, data: Data, root: int) -> Scene:
    """Return the scene of a run, not deformed; ``root``: samples that the server's rule wants."""
    return make_scene(
        data,
        job.setting,
        job.targets,
        job.seed,
        adversary=job.adversary,
        poisoned=job.attacker is not None,
        root=root,
    )


def make_scene(
    data: Data,
    setting: Setting,
    targets: tuple[Target, ...],
    seed: int,
    *,
    adversary: Adversary | None = None,
    poisoned: bool = False,
    root: int = 0,
) -> Scene:
    """Return the scene of loaded data, not deformed.

    Args:
        adversary: the one that could attack from inside.
        poisoned: whether it does.
        root: samples that the server's rule wants.
    """
    n_train = len(data.train_y)
    n_holdout = len(data.holdout_y)
    clients = setting.federation.clients
    split = _cut(data, setting, seed)
    groups = _grouped(data, setting, setting.seed_of_data(seed))
    malicious = adversary.malicious(clients) if adversary else 0
    audits = [candidates_of(t, split, setting.audit, seed, malicious, groups) for t in targets]
    mask = np.zeros(0, np.int64)
    if adversary and poisoned:
        mask = mask_set(split.train, malicious, adversary.mask_set, seed)
    free = free_holdout(n_train, n_holdout, audits)
    n_shadow = setting.audit.shadow.samples if setting.audit.shadow else 0
    shadow = own_set(free, n_shadow, "audit.shadow", seed)
    roots = own_set(np.setdiff1d(free, shadow), root, "the rule's root set", seed)
    tolerated = None
    if setting.thresholds:
        low, high = setting.thresholds
        tolerated = thresholds(low, high, clients, setting.seed_of_data(seed))
    return Scene(
        data=data,
        split=split,
        audits=audits,
        names=opaque_names(n_train + n_holdout, seed),
        aligned=setting.audit.align_nonmembers,
        mask=mask,
        root=roots,
        shadow=shadow,
        groups=groups,
        thresholds=tolerated,
    )


def _cut(data: Data, setting: Setting, seed: int) -> Split:
    federation = setting.federation
    cut = setting.partition
    attribute = data.task.attribute(data.train_y)
    parameters = cut.model_dump(exclude_none=True) | {"owner": data.train_client}
    split = cut_all(
        attribute,
        partition(attribute, federation.clients, setting.seed_of_data(seed), **parameters),
        len(data.holdout_y),
        seed,
        validation=federation.validation,
        test=federation.test,
        by_coin=federation.test_by == "coin",
        on_test=federation.validation_on == "nonmembers",
        rule=cut.name,
    )
    return replace(split, holdout_client=data.holdout_client)


def _grouped(data: Data, setting: Setting, seed: int) -> Groups | None:
    """Return the groups of clients. Raises ``UserError`` for data without an image for each client,
    or of another kind.
    """
    if not setting.groups:
        return None
    clients = setting.federation.clients
    groups = make_groups([group.model_dump() for group in setting.groups], clients, seed)
    deform(data.train_x[:1], np.zeros(1, np.int64), groups)  # refuses data that are no images
    if len(data.test_y) < clients:
        raise UserError(
            f"groups need a test image for every client: {len(data.test_y)} are fewer than "
            f"{clients} clients"
        )
    return groups


def _deformed(data: Data, split: Split, groups: Groups) -> Data:
    """Deform every client's images its own way, and test and hold-out sample i as client i mod
    K's.
    """
    home = split.home()
    clients = len(split.train)
    return replace(
        data,
        train_x=deform(data.train_x, home[: split.n_train], groups),
        test_x=deform(data.test_x, np.arange(len(data.test_y)) % clients, groups),
        holdout_x=deform(data.holdout_x, home[split.n_train :], groups),
    )


def _take(first: np.ndarray, second: np.ndarray, ids: np.ndarray) -> np.ndarray:
    inside = ids < len(first)
    values = np.empty((len(ids), *first.shape[1:]), first.dtype)
    values[inside] = first[ids[inside]]
    values[~inside] = second[ids[~inside] - len(first)]
    return values


# --- targets and candidates -----------------------------------------------------------------------


def targets_of(
    setting: Setting,
    members: tuple[int, ...],
    malicious: int,
) -> tuple[Target, ...]:
    """Return the targets that ``audit.targets`` names; by default the members or, without members,
    every honest client: an adversary does not infer the data of the clients it controls, the last
    ``malicious`` ones.
    """
    wanted = setting.audit.targets
    if wanted == "honest":
        return (EVERYBODY,)
    if wanted == "groups":
        return tuple(group(g) for g in range(len(setting.groups or ())))
    if isinstance(wanted, list):
        return tuple(map(client, wanted))
    return tuple(map(client, members or range(setting.federation.clients - malicious)))


def candidates_of(
    target: Target,
    split: Split,
    audit: AuditSpec,
    seed: int,
    malicious: int,
    groups: Groups | None,
) -> AuditSet:
    """Return the candidates of one target. Samples of the last ``malicious`` clients are not among
    those of a target of many clients; of one client they are among the inside non-members.

    Outside candidates are the target's test part (for several clients together, theirs) or, without
    test parts, the hold-out; of groups, the part of the hold-out that is deformed like the target's
    images.
    """
    if target.client is not None:
        return _of_client(target.client, split, audit, seed, groups)
    assert audit.members is not None  # checked by the suite's types
    clients = outside_of = np.arange(len(split.train) - malicious)
    words = target.words()
    if target.kind == "group" and groups is not None:
        words = target.words(groups.names)
        clients = outside_of = clients[groups.of_client[clients] == target.index]
    elif not split.has_test:
        outside_of = np.arange(len(split.train))
    return pooled_set(
        target,
        words,
        split.train,
        clients,
        split.outsiders(outside_of, words),
        audit.members,
        audit.nonmembers,
        seed,
        absent=audit.members_from == "holdout",
    )


def _of_client(
    client: int,
    split: Split,
    audit: AuditSpec,
    seed: int,
    groups: Groups | None,
) -> AuditSet:
    return audit_set(
        split.train,
        _outsiders_of(client, split, groups),
        client,
        audit.nonmembers,
        seed,
        _alike(client, groups),
        outside=audit.outside,
        absent=audit.members_from == "holdout",
    )


def _outsiders_of(client: int, split: Split, groups: Groups | None) -> Outsiders:
    """Return a client's test part, or the hold-out of its site or deformed like its images."""
    outside_of = _alike(client, groups)
    if split.has_test or split.holdout_client is not None:
        outside_of = np.array([client])
    elif outside_of is None:
        outside_of = np.arange(len(split.train))
    return split.outsiders(outside_of, f"client {client}")


def _alike(client: int, groups: Groups | None) -> np.ndarray | None:
    """Return the clients with images deformed as the client's are; None where all are."""
    if groups is None:
        return None
    return np.flatnonzero(groups.of_client == groups.of_client[client])


# --- samples for training -------------------------------------------------------------------------


def samples_of(
    scene: Scene, ids: np.ndarray, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x, y) of these samples on the device."""
    x = torch.from_numpy(scene.x_of(ids))
    y = torch.from_numpy(scene.y_of(ids))
    return x.to(device), y.to(device)


def client_data(scene: Scene, k: int, device: torch.device) -> MemberData:
    """Return a client's data, with its validation part, if it has one, held out."""
    ids = scene.split.own(k)
    validation = scene.split.validation[k]
    x = torch.from_numpy(scene.data.train_x[ids])
    y = torch.from_numpy(scene.data.train_y[ids])
    mask = None
    if len(validation):
        mask = torch.from_numpy(np.isin(ids, validation)).to(device)
    return MemberData(x.to(device), y.to(device), held_out=mask)


# --- components -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Components that decide a run's training."""

    dataset: Dataset
    model: Model
    defense: Defense
    """keeps what it learns on itself, so that a training that starts anew takes a fresh one"""


def build(job: Job) -> Parts:
    """Make the components of a training: attacks and analyses are made in other processes, signals
    later.
    """
    return Parts(
        dataset=job.dataset.make()[0],
        model=job.model.make()[0],
        defense=defense_of(job.defense, job.defending),
    )


def defense_of(use: ComponentUse, coalitions: tuple[tuple[int, ...], ...] = ()) -> Defense:
    """Make a fresh defense; with what follows it, one that applies all in order; of several
    ``coalitions``, an instance each.
    """
    return allied(coalitions, lambda: composed(use.make()))
