"""Whom the attacks are asked about, and which candidates they are given: the suite's words on targets as lists of samples."""

from __future__ import annotations

import numpy as np

from fedbench.core.population.audit import AuditSet, attack_set, audit_set, group_set
from fedbench.core.population.groups import Groups
from fedbench.core.population.parts import Split
from fedbench.core.population.target import EVERYBODY, Target, client, group
from fedbench.core.spec.suite import AuditSpec, Setting


def targets_of(setting: Setting, members: tuple[int, ...], malicious: int) -> tuple[Target, ...]:
    """The targets that ``audit.targets`` names; by default the members or, where nobody defends, every honest client: an
    adversary does not infer the data of the clients it controls, the last ``malicious`` ones."""
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
    """The candidates of one target; the last ``malicious`` clients' samples are not asked about.

    Outside are the target's own test part (of all clients that are asked about together, theirs) or, where the clients have
    none, the hold-out. Of the hold-out only what looks as the target's images do; without groups everything does.
    """
    absent, shards = audit.members_from == "holdout", split.train
    everybody = np.arange(len(shards))
    if target.client is not None:
        alike = None if groups is None else np.flatnonzero(groups.of_client == groups.of_client[target.client])
        like_it = np.array([target.client]) if split.has_test else everybody if alike is None else alike
        outsiders = split.outsiders(like_it, f"client {target.client}")
        return audit_set(
            shards, outsiders, target.client, audit.nonmembers, seed, alike, outside=audit.outside, absent=absent
        )
    assert audit.members is not None  # the suite's types see to it
    if target.kind == "group" and groups is not None:
        honest = np.arange(len(shards) - malicious)
        mine = honest[groups.of_client[honest] == target.index]
        name = groups.names[target.index]
        outsiders = split.outsiders(mine, f"group '{name}'")
        return group_set(shards, outsiders, target.index, name, mine, audit.members, audit.nonmembers, seed, absent=absent)
    honest = everybody[: len(shards) - malicious]
    outsiders = split.outsiders(honest if split.has_test else everybody, "all honest clients")
    return attack_set(shards, outsiders, malicious, audit.members, audit.nonmembers, seed, absent=absent)
