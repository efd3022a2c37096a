"""A run's data: who trains on what, how it looks, and whom the attacks are asked about."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from fedbench.core.contract.dataset import Data
from fedbench.core.contract.errors import UserError
from fedbench.core.experiment.candidates import candidates_of
from fedbench.core.experiment.job import Job
from fedbench.core.experiment.parts import Parts
from fedbench.core.population.audit import (
    AuditSet,
    free_holdout,
    mask_set,
    opaque_names,
    own_set,
    pool_of,
    refuse_overlap,
)
from fedbench.core.population.groups import Groups, deform, make_groups, thresholds
from fedbench.core.population.partition import Shards, partition
from fedbench.core.population.parts import Split, cut_all
from fedbench.core.population.target import Target
from fedbench.core.spec.suite import Adversary, Setting


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A run's data: who trains on what, and whom the attacks are asked about."""

    data: Data
    split: Split
    audits: list[AuditSet]
    names: np.ndarray  # what an attack calls a sample: it must not learn the position in train ++ holdout
    aligned: bool = True
    malicious: int = 0  # how many of the last clients an adversary could control: nobody asks about their samples
    mask: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # ids of the adversary's own samples
    root: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # ids of the server's
    shadow: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # ids of the attacker's own, for shadow models
    groups: Groups | None = None
    thresholds: np.ndarray | None = None  # [K] the accuracy of membership inference that each client tolerates

    @property
    def shards(self) -> Shards:
        """What each client trains on."""
        return self.split.train

    @property
    def pool(self) -> np.ndarray:
        """Sorted ids of every audited sample (positions in train ++ holdout); all that can be where lists are redrawn."""
        return pool_of(self.audits) if self.aligned else np.setdiff1d(np.arange(len(self.names)), self.split.validated())

    def redrawn_from(self, audit: AuditSet) -> np.ndarray:
        """[n] for each sample, in whose place it may be redrawn: a client's, -1 an outside candidate's, -2 nobody's."""
        owners = self.split.trained_by()
        if self.split.has_test and audit.target.client is not None:
            own = self.split.test[audit.target.client]
            outside = np.setdiff1d(np.flatnonzero(owners < 0), own)
            owners[outside] = -2
        return owners

    @property
    def presented(self) -> np.ndarray:
        """[N] positions in the pool in the order an attack gets to see them: by name, so that order tells nothing."""
        return np.argsort(self.names[self.pool])

    @property
    def test_group(self) -> np.ndarray:
        """[n_test] group of each test sample, which is client i mod K's; all 0 without groups."""
        of_client = np.zeros(len(self.shards), np.int64) if self.groups is None else self.groups.of_client
        return of_client[np.arange(len(self.data.test_y)) % len(self.shards)]

    def client_of(self, audit: AuditSet) -> np.ndarray:
        """[n] the client through whose model a candidate is looked at: the target, or the candidate's own.

        A sample of a test part is looked at through its client's; one of the hold-out belongs with client i mod K, whose
        images it looks like.
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

    Raises ``UserError`` for data that cannot carry the setting, and for other data than the plan was made with.
    """
    data = parts.dataset.load(job.seed)
    if (digest := data.digest()) != job.digests["data"]:
        raise UserError(
            f"the dataset '{job.dataset.name}' gave other data than when the run was planned (digest {digest[:12]} after "
            f"{job.digests['data'][:12]}): load(seed) must depend on nothing but its parameters and the seed"
        )
    scene = make_scene(
        data, job.setting, job.targets, job.seed, adversary=job.adversary, poisoned=job.attacker is not None,
        root=parts.defense.root_samples,
    )  # fmt: skip
    return scene if scene.groups is None else replace(scene, data=_deformed(data, scene.split, scene.groups))


def make_scene(
    data: Data, setting: Setting, targets: tuple[Target, ...], seed: int, *, adversary: Adversary | None = None,
    poisoned: bool = False, root: int = 0,
) -> Scene:  # fmt: skip
    """The same from data already loaded, not deformed. ``adversary``: whoever could attack from inside, who does so if
    ``poisoned``; ``root``: how many samples the server's rule wants."""
    clients, n_train, n_holdout = setting.federation.clients, len(data.train_y), len(data.holdout_y)
    shards = partition(data.train_y, clients, seed, **setting.partition.model_dump(exclude_none=True))
    split = cut_all(
        data.train_y, shards, n_holdout, seed, validation=setting.federation.validation, test=setting.federation.test,
        on_test=setting.federation.validation_on == "nonmembers", rule=setting.partition.name,
    )  # fmt: skip
    kinds = make_groups([g.model_dump() for g in setting.groups], clients, seed) if setting.groups else None
    if kinds is not None:
        deform(data.train_x[:1], np.zeros(1, np.int64), kinds)  # says at once what is no image
        if len(data.test_y) < clients:
            raise UserError(f"groups need a test image for every client: {len(data.test_y)} are fewer than {clients} clients")
    malicious = adversary.malicious(clients) if adversary else 0
    audits = [candidates_of(target, split, setting.audit, seed, malicious, kinds) for target in targets]
    names = opaque_names(n_train + n_holdout, seed)
    mask = mask_set(split.train, malicious, adversary.mask_set, seed) if adversary and poisoned else np.zeros(0, np.int64)
    free = free_holdout(n_train, n_holdout, audits)
    shadow = own_set(free, setting.audit.shadow.samples if setting.audit.shadow else 0, "audit.shadow", seed)
    roots = own_set(np.setdiff1d(free, shadow), root, "the rule's root set", seed)
    refuse_overlap(np.concatenate([roots, shadow]), n_train, audits)
    limits = thresholds(setting.thresholds[0], setting.thresholds[1], clients, seed) if setting.thresholds else None
    return Scene(
        data=data, split=split, audits=audits, names=names, aligned=setting.audit.align_nonmembers, malicious=malicious,
        mask=mask, root=roots, shadow=shadow, groups=kinds, thresholds=limits,
    )  # fmt: skip


def _deformed(data: Data, split: Split, groups: Groups) -> Data:
    """Every client's images its own way, whatever it does with them; test and hold-out sample i as client i mod K's."""
    home, clients = split.home(), len(split.train)
    return replace(
        data, train_x=deform(data.train_x, home[: split.n_train], groups),
        test_x=deform(data.test_x, np.arange(len(data.test_y)) % clients, groups),
        holdout_x=deform(data.holdout_x, home[split.n_train :], groups),
    )  # fmt: skip


def _take(first: np.ndarray, second: np.ndarray, ids: np.ndarray) -> np.ndarray:
    inside = ids < len(first)
    out = np.empty((len(ids), *first.shape[1:]), first.dtype)
    out[inside], out[~inside] = first[ids[inside]], second[ids[~inside] - len(first)]
    return out
