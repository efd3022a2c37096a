"""The data of a run: partition, deformation, audit sets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedbench.core.contract.components import Data, Dataset, Model
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.samples import MemberData
from fedbench.core.federation.compose import allied, composed
from fedbench.core.federation.turn import UNKNOWN, Usage
from fedbench.core.population.audit import (
    EVERYBODY,
    AuditSet,
    Target,
    attack_set,
    audit_set,
    client,
    free_holdout,
    group,
    group_set,
    mask_set,
    opaque_names,
    own_set,
    pool_of,
)
from fedbench.core.population.groups import Groups, deform, make_groups, thresholds
from fedbench.core.population.partition import Shards, Split, cut_all, partition
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.job import Job
from fedbench.core.spec.federation import FederationSpec
from fedbench.core.spec.setting import Adversary, AuditSpec, Setting


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The data of a run: the clients' samples and the audit sets of all targets."""

    data: Data
    split: Split
    audits: list[AuditSet]
    # what an attack calls a sample: it must not learn the position in train ++ holdout
    names: np.ndarray
    aligned: bool = True
    # clients that an adversary could control, the last ones: their samples are no candidates
    malicious: int = 0
    # ids of the adversary's own samples
    mask: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    root: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # ids of the server's
    # ids of the attacker's own, for shadow models
    shadow: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    groups: Groups | None = None
    # [K] the accuracy of membership inference that each client tolerates
    thresholds: np.ndarray | None = None

    @property
    def shards(self) -> Shards:
        """What each client trains on."""
        return self.split.train

    @property
    def pool(self) -> np.ndarray:
        """Sorted ids of every sample that is looked at (positions in train ++ holdout): the audited
        ones and the clients' test parts, with which a colluder teaches; all that can be where lists
        are redrawn.
        """
        if not self.aligned:
            return np.setdiff1d(np.arange(len(self.names)), self.split.validated())
        return np.union1d(pool_of(self.audits), np.concatenate(self.split.test)).astype(np.int64)

    def redrawn_from(self, audit: AuditSet) -> np.ndarray:
        """[n] for each sample, the client with candidates that it may replace; -1 outside
        candidates, -2 none.
        """
        owners = self.split.trained_by()
        if self.split.has_test and audit.target.client is not None:
            own = self.split.test[audit.target.client]
            outside = np.setdiff1d(np.flatnonzero(owners < 0), own)
            owners[outside] = -2
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
        of_client = (
            np.zeros(len(self.shards), np.int64) if self.groups is None else self.groups.of_client
        )
        return of_client[np.arange(len(self.data.test_y)) % len(self.shards)]

    def client_of(self, audit: AuditSet) -> np.ndarray:
        """[n] the client with the model that a candidate is measured on: the target, or the
        candidate's own.

        A sample of a test part belongs to its client, one of the hold-out to client i mod K, which
        has such images.
        """
        if (client := audit.target.client) is not None:
            return np.full(len(audit.ids), client)
        return np.where(audit.owner >= 0, audit.owner, self.split.home()[audit.ids])

    def x_of(self, ids: np.ndarray) -> np.ndarray:
        """[n, *input] samples of these ids."""
        return _take(self.data.train_x, self.data.holdout_x, ids)

    def y_of(self, ids: np.ndarray) -> np.ndarray:
        """[n] labels of these ids."""
        return _take(self.data.train_y, self.data.holdout_y, ids)

    def canary_of(self, ids: np.ndarray) -> np.ndarray:
        """[n] bool."""
        return _take(self.data.train_canary, self.data.holdout_canary, ids)


def set_scene(job: Job, parts: Parts) -> Scene:
    """Load, partition, deform and draw the audit lists.

    Raises ``UserError`` for data that cannot carry the setting, and for other data than the plan
    was made with.
    """
    data = parts.dataset.load(job.seed)
    if (digest := data.digest()) != job.digests["data"]:
        raise UserError(
            f"the dataset '{job.dataset.name}' gave other data than when the run was planned "
            f"(digest {digest[:12]} after "
            f"{job.digests['data'][:12]}): load(seed) must depend on nothing but its parameters "
            "and the seed"
        )
    scene = make_scene(
        data,
        job.setting,
        job.targets,
        job.seed,
        adversary=job.adversary,
        poisoned=job.attacker is not None,
        root=parts.defense.root_samples,
    )
    return (
        scene
        if scene.groups is None
        else replace(scene, data=_deformed(data, scene.split, scene.groups))
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
    """The same from data already loaded, not deformed. ``adversary``: whoever could attack from
    inside, who does so if ``poisoned``; ``root``: how many samples the server's rule wants.
    """
    clients, n_train, n_holdout = setting.federation.clients, len(data.train_y), len(data.holdout_y)
    attribute = data.task.attribute(data.train_y)
    shards = partition(attribute, clients, seed, **setting.partition.model_dump(exclude_none=True))
    split = cut_all(
        attribute,
        shards,
        n_holdout,
        seed,
        validation=setting.federation.validation,
        test=setting.federation.test,
        on_test=setting.federation.validation_on == "nonmembers",
        rule=setting.partition.name,
    )
    kinds = (
        make_groups([g.model_dump() for g in setting.groups], clients, seed)
        if setting.groups
        else None
    )
    if kinds is not None:
        deform(data.train_x[:1], np.zeros(1, np.int64), kinds)  # refuses data that are no images
        if len(data.test_y) < clients:
            raise UserError(
                f"groups need a test image for every client: {len(data.test_y)} are fewer than "
                f"{clients} clients"
            )
    malicious = adversary.malicious(clients) if adversary else 0
    audits = [
        candidates_of(target, split, setting.audit, seed, malicious, kinds) for target in targets
    ]
    names = opaque_names(n_train + n_holdout, seed)
    mask = (
        mask_set(split.train, malicious, adversary.mask_set, seed)
        if adversary and poisoned
        else np.zeros(0, np.int64)
    )
    free = free_holdout(n_train, n_holdout, audits)
    shadow = own_set(
        free, setting.audit.shadow.samples if setting.audit.shadow else 0, "audit.shadow", seed
    )
    roots = own_set(np.setdiff1d(free, shadow), root, "the rule's root set", seed)
    limits = (
        thresholds(setting.thresholds[0], setting.thresholds[1], clients, seed)
        if setting.thresholds
        else None
    )
    return Scene(
        data=data,
        split=split,
        audits=audits,
        names=names,
        aligned=setting.audit.align_nonmembers,
        malicious=malicious,
        mask=mask,
        root=roots,
        shadow=shadow,
        groups=kinds,
        thresholds=limits,
    )


def _deformed(data: Data, split: Split, groups: Groups) -> Data:
    """Every client's images its own way, whatever it does with them; test and hold-out sample i as
    client i mod K's.
    """
    home, clients = split.home(), len(split.train)
    return replace(
        data,
        train_x=deform(data.train_x, home[: split.n_train], groups),
        test_x=deform(data.test_x, np.arange(len(data.test_y)) % clients, groups),
        holdout_x=deform(data.holdout_x, home[split.n_train :], groups),
    )


def _take(first: np.ndarray, second: np.ndarray, ids: np.ndarray) -> np.ndarray:
    inside = ids < len(first)
    out = np.empty((len(ids), *first.shape[1:]), first.dtype)
    out[inside], out[~inside] = first[ids[inside]], second[ids[~inside] - len(first)]
    return out


# --- targets and candidates -----------------------------------------------------------------------


def targets_of(setting: Setting, members: tuple[int, ...], malicious: int) -> tuple[Target, ...]:
    """The targets that ``audit.targets`` names; by default the members or, without members, every
    honest client: an adversary does not infer the data of the clients it controls, the last
    ``malicious`` ones.
    """
    wanted = setting.audit.targets
    if wanted == "honest":
        return (EVERYBODY,)
    if wanted == "groups":
        return tuple(group(g) for g in range(len(setting.groups or ())))
    honest = range(setting.federation.clients - malicious)
    return tuple(client(k) for k in (wanted if isinstance(wanted, list) else members or honest))


def candidates_of(
    target: Target, split: Split, audit: AuditSpec, seed: int, malicious: int, groups: Groups | None
) -> AuditSet:
    """The candidates of one target; samples of the last ``malicious`` clients are not among them.

    Outside candidates are the target's test part (for several clients together, theirs) or, without
    test parts, the hold-out; of groups, the part of the hold-out that is deformed like the target's
    images.
    """
    absent, shards = audit.members_from == "holdout", split.train
    everybody = np.arange(len(shards))
    if target.client is not None:
        alike = (
            None
            if groups is None
            else np.flatnonzero(groups.of_client == groups.of_client[target.client])
        )
        like_it = (
            np.array([target.client]) if split.has_test else everybody if alike is None else alike
        )
        outsiders = split.outsiders(like_it, f"client {target.client}")
        return audit_set(
            shards,
            outsiders,
            target.client,
            audit.nonmembers,
            seed,
            alike,
            outside=audit.outside,
            absent=absent,
        )
    assert audit.members is not None  # checked by the suite's types
    if target.kind == "group" and groups is not None:
        honest = np.arange(len(shards) - malicious)
        mine = honest[groups.of_client[honest] == target.index]
        name = groups.names[target.index]
        outsiders = split.outsiders(mine, f"group '{name}'")
        return group_set(
            shards,
            outsiders,
            target.index,
            name,
            mine,
            audit.members,
            audit.nonmembers,
            seed,
            absent=absent,
        )
    honest = everybody[: len(shards) - malicious]
    outsiders = split.outsiders(honest if split.has_test else everybody, "all honest clients")
    return attack_set(
        shards, outsiders, malicious, audit.members, audit.nonmembers, seed, absent=absent
    )


# --- samples for training -------------------------------------------------------------------------


def samples_of(
    scene: Scene, ids: np.ndarray, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x, y) of these samples on the device."""
    return torch.from_numpy(scene.x_of(ids)).to(device), torch.from_numpy(scene.y_of(ids)).to(
        device
    )


def own_data(scene: Scene, k: int, device: torch.device) -> MemberData:
    """A client's data, with its validation part, if it has one, held out."""
    own, watched = scene.split.own(k), scene.split.validation[k]
    held = torch.from_numpy(np.isin(own, watched)).to(device) if len(watched) else None
    x, y = (torch.from_numpy(a[own]).to(device) for a in (scene.data.train_x, scene.data.train_y))
    return MemberData(x, y, held_out=held)


def held_out(scene: Scene, clients: Sequence[MemberData]) -> np.ndarray:
    """Sorted ids of what clients keep out of training, and so out of the audit: not their test
    parts, which are non-members even where the released code's clients validate on them.
    """
    masks = [(k, c.held_out.cpu().numpy()) for k, c in enumerate(clients) if c.held_out is not None]
    held = [scene.split.own(k)[mask] for k, mask in masks]
    return np.setdiff1d(
        np.concatenate([np.zeros(0, np.int64), *held]), np.concatenate(scene.split.test)
    )


@dataclass(frozen=True)
class UsedSamples:
    """What was trained on: ``used`` [N] in how many rounds each sample of the pool was, by its
    owner, in how many of them with a true flag, ``flagged`` [N]; ``used_in_round``,
    ``flagged_in_round`` [T, K] how many samples each client trained on. int32; 0 for non-members
    and absent clients, -1 where it is not known.
    """

    used: np.ndarray
    flagged: np.ndarray
    used_in_round: np.ndarray
    flagged_in_round: np.ndarray


def used_samples(scene: Scene, usage: Usage, malicious: Collection[int]) -> UsedSamples:
    """Of the scene's pool. What ``malicious`` clients train on is not known: they send what an
    adversary makes.
    """
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
    return [
        "validation saw the non-members: each client validates on its test part, which the attacks "
        "are asked about"
    ]


# --- components -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A run's components. ``defense`` keeps what it learns on itself, so a training that starts
    anew takes a fresh one.
    """

    dataset: Dataset
    model: Model
    defense: Defense


def build(job: Job) -> Parts:
    """Every component that decides a training; attacks and analyses have processes of their own,
    signals come later.
    """
    return Parts(
        dataset=job.dataset.make()[0],
        model=job.model.make()[0],
        defense=defense_of(job.defense, job.defending),
    )


def defense_of(use: ComponentUse, coalitions: tuple[tuple[int, ...], ...] = ()) -> Defense:
    """A fresh defense; with what follows it, one that applies all in order; of several
    ``coalitions``, an instance each.
    """
    return allied(coalitions, lambda: composed(use.make()))
