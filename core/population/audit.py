"""Targets and their audit sets: for one (seed, target) one ordered list of candidates, whatever the
attack, round or defense.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fedbench.core.contract.attack import EXCLUDED, IFL, MEMBER, OFL
from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.partition import Outsiders, Shards, Split

Kind = Literal["client", "everybody", "group"]
# codes in records; -1 and -2 are the global model and the coalition on the client axis
_EVERYBODY, _FIRST_GROUP = -3, -10


@dataclass(frozen=True, kw_only=True)
class Target:
    """``index``: which client, or which group in the setting's order; 0 for everybody (all honest
    clients together).
    """

    kind: Kind
    index: int = 0

    @property
    def code(self) -> int:
        """Code in records, array names and keys of random draws: a client's id, -3, or -10, -11,
        ... for groups.
        """
        return {"client": self.index, "everybody": _EVERYBODY, "group": _FIRST_GROUP - self.index}[
            self.kind
        ]

    @classmethod
    def of(cls, code: int) -> Target:
        """The target of a code; raises ``ValueError`` for an unknown code."""
        if code >= 0:
            return client(code)
        if code == _EVERYBODY:
            return EVERYBODY
        if code <= _FIRST_GROUP:
            return group(_FIRST_GROUP - code)
        raise ValueError(f"{code} is the code of no target")

    @property
    def client(self) -> int | None:
        """The target's client; None for a target of many clients."""
        return self.index if self.kind == "client" else None

    def words(self, groups: Sequence[str] = ()) -> str:
        """A description; ``groups``: the names of the setting's groups."""
        if self.kind == "group":
            return (
                f"group '{groups[self.index]}'"
                if self.index < len(groups)
                else f"group {self.index}"
            )
        return "all honest clients" if self.kind == "everybody" else f"client {self.index}"


EVERYBODY = Target(kind="everybody")


def client(index: int) -> Target:
    """One client."""
    return Target(kind="client", index=index)


def group(index: int) -> Target:
    """One group of clients."""
    return Target(kind="group", index=index)


# --- audit sets -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditSet:
    """Candidates of one target. ``ids``: [n] positions in train ++ holdout; ``kind``: [n] MEMBER,
    OFL, IFL or EXCLUDED; ``owner``: [n] the training client, -1 outside the federation; ``extra``:
    [n] outside candidates beyond an equal share, who count among the outside ones and not in the
    mix. The order is random.
    """

    target: Target
    ids: np.ndarray
    kind: np.ndarray
    owner: np.ndarray
    extra: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    def in_mix(self) -> np.ndarray:
        """[n] bool: members and the non-members in the mix of outside and inside ones."""
        return ~self.extra if len(self.extra) else np.ones(len(self.ids), bool)

    def digest(self) -> str:
        """Hex sha256 of the ordered lists."""
        h = hashlib.sha256(str(self.target.code).encode())
        for a in (self.ids, self.kind, self.owner):
            h.update(np.ascontiguousarray(a, dtype=np.int64).tobytes())
        return h.hexdigest()


def audit_set(
    shards: Shards,
    outsiders: Outsiders,
    client: int,
    nonmembers: int,
    seed: int,
    alike: np.ndarray | None = None,
    *,
    outside: int | None = None,
    absent: bool = False,
) -> AuditSet:
    """Candidates of one client: its training samples (``shards``), and ``nonmembers // K`` of
    ``outsiders`` and of each other client.

    ``alike``: [k] clients with images deformed as the client's are, where there are groups: the
    owners of inside non-members. ``outside``: so many of the outsiders in place of an equal share;
    those beyond it join the list that is there without them. ``absent``: the null of every attack:
    as many members, but of the outsiders (at most half of them), against the rest of them. The
    other clients' samples stay in the list as EXCLUDED, since a colluder learns from its own.

    Shares are cut to what exists (FedMIA's and CoFedMID's 1:9 mix of outside and inside non-members
    for K = 10; docs/methods/protocol.md#audit-sets). Raises ``UserError`` when there is no outsider
    to draw.
    """
    others = np.arange(len(shards)) if alike is None else alike
    free = outsiders.ids
    rng = numpy_rng(seed, "audit", client=client)
    members, owner = shards[client], client
    if absent:
        taken = rng.choice(free, min(len(members), len(free) // 2), replace=False)
        free, members, owner = np.setdiff1d(free, taken), taken, -1
    share = min(nonmembers // len(others), len(free))
    n_outside = share if outside is None else min(outside, len(free))
    if n_outside < 1 or not len(members):
        raise UserError(
            f"no outside non-members: audit.nonmembers = {nonmembers} over {len(others)} clients "
            f"with {outsiders.where} of "
            f"{len(free)} samples leaves none; raise audit.nonmembers, audit.outside or "
            f"{outsiders.more}"
        )
    equal = rng.choice(free, share, replace=False)
    parts = [(members, MEMBER, owner), (equal[:n_outside], OFL, -1)]
    for k in others.tolist() if share else ():
        if k != client:
            drawn = rng.choice(shards[k], min(share, len(shards[k])), replace=False)
            parts.append((drawn, EXCLUDED if absent else IFL, k))
    order = rng.permutation(sum(len(ids) for ids, _, _ in parts))
    mix = AuditSet(
        target=Target(kind="client", index=client),
        ids=np.concatenate([ids for ids, _, _ in parts])[order].astype(np.int64),
        kind=np.concatenate([np.full(len(ids), kind) for ids, kind, _ in parts])[order],
        owner=np.concatenate([np.full(len(ids), k) for ids, _, k in parts])[order],
    )
    if n_outside <= share:
        return mix
    wide = _joined_by(
        mix, rng.choice(np.setdiff1d(free, equal), n_outside - share, replace=False), rng
    )
    # without inside non-members there is no mix to keep
    return wide if share and not absent else replace(wide, extra=mix.extra)


def _joined_by(mix: AuditSet, ids: np.ndarray, rng: np.random.Generator) -> AuditSet:
    """The list with outside candidates ``ids`` inserted at random places."""
    extra = np.zeros(len(mix.ids) + len(ids), bool)
    extra[rng.choice(len(extra), len(ids), replace=False)] = True

    def joined(old: np.ndarray, new: np.ndarray | int) -> np.ndarray:
        out = np.empty(len(extra), np.int64)
        out[~extra], out[extra] = old, new
        return out

    return replace(
        mix,
        ids=joined(mix.ids, ids),
        kind=joined(mix.kind, OFL),
        owner=joined(mix.owner, -1),
        extra=extra,
    )


def attack_set(
    shards: Shards,
    outsiders: Outsiders,
    malicious: int,
    members: int,
    nonmembers: int,
    seed: int,
    *,
    absent: bool = False,
) -> AuditSet:
    """``members`` drawn from all honest clients' samples together against ``nonmembers`` of the
    ``outsiders``.

    As in the poisoning papers: was this sample used by any honest client (FedPoisonMIA,
    docs/methods/protocol.md#audit-sets: 150 and 150)? Samples of the last ``malicious`` clients are
    left out. Raises ``UserError`` if there are too few.
    """
    honest = np.arange(len(shards) - malicious)
    rng = numpy_rng(seed, "attack set")
    return _together(
        EVERYBODY, "all honest clients", shards, honest, outsiders, members, nonmembers, rng, absent
    )


def group_set(
    shards: Shards,
    outsiders: Outsiders,
    group: int,
    name: str,
    clients: np.ndarray,
    members: int,
    nonmembers: int,
    seed: int,
    *,
    absent: bool = False,
) -> AuditSet:
    """The same for one group's ``clients``; the ``outsiders`` are deformed as these clients' images
    are, so that the deformation does not reveal members.
    """
    rng = numpy_rng(seed, "group set", client=group)
    target = Target(kind="group", index=group)
    return _together(
        target, f"group '{name}'", shards, clients, outsiders, members, nonmembers, rng, absent
    )


def _together(
    target: Target,
    who: str,
    shards: Shards,
    clients: np.ndarray,
    outsiders: Outsiders,
    members: int,
    nonmembers: int,
    rng: np.random.Generator,
    absent: bool,
) -> AuditSet:
    if not len(clients):
        raise UserError(
            f"{who}: no client is left to ask about, all of them are malicious; use fewer or other "
            "groups"
        )
    outside = outsiders.ids
    owner_of = np.concatenate([np.full(len(shards[k]), k) for k in clients])
    every = np.concatenate([shards[k] for k in clients])
    if absent:
        taken = rng.choice(outside, min(members, len(outside)), replace=False)
        outside, every, owner_of = np.setdiff1d(outside, taken), taken, np.full(len(taken), -1)
    there = outsiders.where
    here, rest = (there, f"{there} beside the members") if absent else (f"{who} together", there)
    own = (
        "members",
        members,
        len(every),
        here,
        f"raise {outsiders.more}" if absent else "load more data",
    )
    sides = (own, ("nonmembers", nonmembers, len(outside), rest, f"raise {outsiders.more}"))
    for what, wanted, found, where, more in sides:
        if wanted > found:
            raise UserError(
                f"audit.{what} = {wanted}, but {where} has {found} samples: lower it, or {more}"
            )
    mine = rng.choice(len(every), members, replace=False)
    chosen = rng.choice(outside, nonmembers, replace=False)
    order = rng.permutation(members + nonmembers)
    ids = np.concatenate([every[mine], chosen])[order].astype(np.int64)
    kind = np.repeat([MEMBER, OFL], [members, nonmembers])[order].astype(np.int64)
    owner = np.concatenate([owner_of[mine], np.full(nonmembers, -1)])[order].astype(np.int64)
    return AuditSet(target, ids, kind, owner)


def mask_set(shards: Shards, malicious: int, size: int, seed: int) -> np.ndarray:
    """[size] ids of the adversary's own samples, drawn from its clients' data. Raises ``UserError``
    beyond what they hold.
    """
    own = np.concatenate(shards[len(shards) - malicious :])
    if size > len(own):
        raise UserError(
            f"adversary.mask_set = {size}, but its clients ({malicious}) hold {len(own)} samples: "
            "lower it, or give the "
            "adversary more clients"
        )
    return np.sort(numpy_rng(seed, "mask set").choice(own, size, replace=False))


def free_holdout(n_train: int, n_holdout: int, audits: list[AuditSet]) -> np.ndarray:
    """Ids of the hold-out samples in no audit list."""
    return np.setdiff1d(np.arange(n_train, n_train + n_holdout), pool_of(audits))


def own_set(free: np.ndarray, size: int, who: str, seed: int) -> np.ndarray:
    """[size] ids out of ``free`` for the server's root set or the attacker's shadow models
    (``who``: in words).

    Raises ``UserError`` when fewer are left.
    """
    if size > len(free):
        raise UserError(
            f"{who} wants {size} samples, but only {len(free)} of the hold-out are free: lower "
            "audit.nonmembers or that number, or raise the dataset's hold-out"
        )
    return np.sort(numpy_rng(seed, who).choice(free, size, replace=False))


def refuse_overlap(root: np.ndarray, n_train: int, audits: list[AuditSet]) -> None:
    """Raise ``UserError`` if the server's root set shares a sample with the clients' data (ids
    below ``n_train``) or an audit list: the rule would get leaked membership.
    """
    for what, ids in (("the clients' data", np.arange(n_train)), ("the audit", pool_of(audits))):
        if both := np.intersect1d(root, ids).tolist():
            raise UserError(
                f"the root set overlaps {what} in {len(both)} samples (first id {both[0]}): refused"
            )


def shuffle_rng(seed: int, target: int) -> np.random.Generator:
    """Generator for shuffled memberships of a target's candidates, independent of attack, view and
    defense.
    """
    return numpy_rng(seed, "shuffled membership", client=target)


def opaque_names(n: int, seed: int) -> np.ndarray:
    """[n] the id of each sample of train ++ hold-out that attacks get: a keyed permutation of
    0..n-1.

    Positions would reveal the hold-out, which comes after the training data.
    """
    return numpy_rng(seed, "opaque names").permutation(n)


def pool_of(audits: list[AuditSet]) -> np.ndarray:
    """Sorted ids of every sample that some target's audit needs: what the engine measures."""
    return np.unique(np.concatenate([a.ids for a in audits]))


def split_digest(split: Split, audits: list[AuditSet]) -> str:
    """Hex sha256 of who trains, validates and is tested on what, and of every audit list."""
    h = hashlib.sha256(split.digest().encode())
    for a in audits:
        h.update(a.digest().encode())
    return h.hexdigest()
