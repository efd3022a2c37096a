"""Targets and their audit sets: one ordered list of candidates for each (seed, target)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from fedbench.core.contract.attack import EXCLUDED, IFL, MEMBER, OFL
from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.partition import Outsiders, Shards, Split

Kind = Literal["client", "everybody", "group"]
# codes in records; -1 and -2 are the global model and the coalition on the client axis
_EVERYBODY = -3
_FIRST_GROUP = -10


@dataclass(frozen=True, kw_only=True)
class Target:
    """Client, group of clients, or all honest clients together."""

    kind: Kind
    index: int = 0
    """of the client or, in the setting's order, of the group; 0 for everybody"""

    @property
    def code(self) -> int:
        """Code in records, array names and keys of random draws: a client's id, -3 for everybody,
        or -10, -11, ... for groups.
        """
        if self.kind == "group":
            return _FIRST_GROUP - self.index
        return _EVERYBODY if self.kind == "everybody" else self.index

    @classmethod
    def of(cls, code: int) -> Target:
        """Target of a code; ``ValueError`` for an unknown one."""
        if code >= 0:
            return client(code)
        if code == _EVERYBODY:
            return EVERYBODY
        if code <= _FIRST_GROUP:
            return group(_FIRST_GROUP - code)
        raise ValueError(f"{code} is the code of no target")

    @property
    def client(self) -> int | None:
        """Index of the client; None for a target of many clients."""
        return self.index if self.kind == "client" else None

    def words(self, groups: Sequence[str] = ()) -> str:
        """Description; ``groups``: the names of the setting's groups."""
        if self.kind == "everybody":
            return "all honest clients"
        if self.kind == "group" and self.index < len(groups):
            return f"group '{groups[self.index]}'"
        return f"{self.kind} {self.index}"


EVERYBODY = Target(kind="everybody")


def client(index: int) -> Target:
    """Target of a single client."""
    return Target(kind="client", index=index)


def group(index: int) -> Target:
    """Target of one group of clients."""
    return Target(kind="group", index=index)


# --- audit sets -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditSet:
    """Candidates of one target, in random order."""

    target: Target
    ids: ndarray
    """[n] positions in train ++ holdout"""
    kind: ndarray
    """[n] MEMBER, OFL, IFL or EXCLUDED"""
    owner: ndarray
    """[n] the training client, -1 outside the federation"""
    extra: ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """[n] outside candidates beyond an equal share, which are not in the mix; empty: none"""

    def in_mix(self) -> ndarray:
        """[n] bool: members and the non-members in the mix of outside and inside ones."""
        if not len(self.extra):
            return np.ones(len(self.ids), bool)
        return ~self.extra

    def digest(self) -> str:
        """Hex sha256 of the ordered lists."""
        h = hashlib.sha256(str(self.target.code).encode())
        for a in (self.ids, self.kind, self.owner):
            h.update(np.ascontiguousarray(a, dtype=np.int64).tobytes())
        return h.hexdigest()


Part = tuple[ndarray, int, ndarray | int]  # (ids [n], kind, owner)


def audit_set(
    shards: Shards,
    outsiders: Outsiders,
    client: int,
    nonmembers: int,
    seed: int,
    peers: ndarray | None = None,
    *,
    outside: int | None = None,
    absent: bool = False,
) -> AuditSet:
    """Candidates of one client: its training samples, and ``nonmembers // K`` of ``outsiders`` and
    of each other client.

    Shares are cut to what exists (FedMIA's and CoFedMID's 1:9 mix of outside and inside non-members
    for K = 10; docs/methods/protocol.md#audit-sets).

    Args:
        peers: [k] owners of inside non-members: clients with images deformed as the client's are;
            None: all.
        outside: number of outsiders in place of an equal share; those beyond it join the list that
            is drawn without them.
        absent: the null of every attack: as many members, but of the outsiders (at most half of
            them), against the rest of them. Other clients' samples stay in the list as EXCLUDED,
            since a colluder learns from its own.

    Raises:
        UserError: there is no outsider to draw.
    """
    owners = np.arange(len(shards)) if peers is None else peers
    rng = numpy_rng(seed, "audit", client=client)
    free = outsiders.ids
    members = shards[client]
    owner = client
    inside = IFL
    if absent:
        size = min(len(members), len(free) // 2)
        members = rng.choice(free, size, replace=False)
        free = np.setdiff1d(free, members)
        owner = -1
        inside = EXCLUDED
    share = min(nonmembers // len(owners), len(free))
    n_outside = share if outside is None else min(outside, len(free))
    if n_outside < 1 or not len(members):
        raise UserError(
            f"no outside non-members: audit.nonmembers = {nonmembers} over {len(owners)} clients "
            f"with {outsiders.origin} of {len(free)} samples leaves none; raise audit.nonmembers, "
            f"audit.outside or {outsiders.remedy}"
        )
    equal = rng.choice(free, share, replace=False)
    parts: list[Part] = [(members, MEMBER, owner), (equal[:n_outside], OFL, -1)]
    for k in owners[owners != client].tolist() if share else ():
        size = min(share, len(shards[k]))
        drawn = rng.choice(shards[k], size, replace=False)
        parts.append((drawn, inside, k))
    mix = _shuffled(Target(kind="client", index=client), parts, rng)
    if n_outside <= share:
        return mix
    rest = np.setdiff1d(free, equal)
    more = rng.choice(rest, n_outside - share, replace=False)
    wide = _inserted(mix, more, rng)
    # without inside non-members there is no mix to keep
    return wide if share and not absent else replace(wide, extra=mix.extra)


def _shuffled(target: Target, parts: Sequence[Part], rng: Generator) -> AuditSet:
    ids, kinds, owners = zip(*parts, strict=True)
    sizes = list(map(len, ids))
    order = rng.permutation(sum(sizes))
    owner = np.concatenate(list(map(np.broadcast_to, owners, sizes)))
    return AuditSet(
        target,
        ids=np.concatenate(ids)[order].astype(np.int64),
        kind=np.repeat(kinds, sizes)[order],
        owner=owner[order].astype(np.int64),
    )


def _inserted(mix: AuditSet, ids: ndarray, rng: Generator) -> AuditSet:
    """The list with outside candidates ``ids`` inserted at random places."""
    extra = np.zeros(len(mix.ids) + len(ids), bool)
    extra[rng.choice(len(extra), len(ids), replace=False)] = True
    columns: dict[str, Any] = {"ids": ids, "kind": OFL, "owner": -1}
    for name, values in columns.items():
        columns[name] = np.empty(len(extra), np.int64)
        columns[name][~extra] = getattr(mix, name)
        columns[name][extra] = values
    return replace(mix, **columns, extra=extra)


def pooled_set(
    target: Target,
    words: str,
    shards: Shards,
    clients: ndarray,
    outsiders: Outsiders,
    members: int,
    nonmembers: int,
    seed: int,
    *,
    absent: bool = False,
) -> AuditSet:
    """``members`` of all samples of ``clients`` [k] against ``nonmembers`` of the ``outsiders``.

    As in the poisoning papers: was this sample used by any honest client (FedPoisonMIA,
    docs/methods/protocol.md#audit-sets: 150 and 150)? Outsiders of a group are deformed as its
    clients' images are, so that the deformation does not reveal members.

    Args:
        target: of many clients.
        words: its description, in messages.

    Raises:
        UserError: there are too few samples, or no clients.
    """
    purpose = "group set" if target.kind == "group" else "attack set"
    rng = numpy_rng(seed, purpose, client=target.index)
    if not len(clients):
        raise UserError(
            f"{words}: no client is left to ask about, all of them are malicious; use fewer or "
            "other groups"
        )
    free = outsiders.ids
    origin = outsiders.origin
    raise_it = f"raise {outsiders.remedy}"
    ids = np.concatenate([shards[k] for k in clients])
    owner = np.concatenate([np.full(len(shards[k]), k) for k in clients])
    sources = (f"{words} together", "load more data"), (origin, raise_it)
    if absent:
        size = min(members, len(free))
        ids = rng.choice(free, size, replace=False)
        free = np.setdiff1d(free, ids)
        owner = np.full(len(ids), -1)
        sources = (origin, raise_it), (f"{origin} beside the members", raise_it)
    _require("members", members, len(ids), *sources[0])
    _require("nonmembers", nonmembers, len(free), *sources[1])
    inside = rng.choice(len(ids), members, replace=False)
    outside = rng.choice(free, nonmembers, replace=False)
    parts: list[Part] = [(ids[inside], MEMBER, owner[inside]), (outside, OFL, -1)]
    return _shuffled(target, parts, rng)


def _require(
    option: str,
    wanted: int,
    available: int,
    origin: str,
    remedy: str,
) -> None:
    if wanted > available:
        raise UserError(
            f"audit.{option} = {wanted}, but {origin} has {available} samples: lower it, or "
            f"{remedy}"
        )


def mask_set(
    shards: Shards,
    malicious: int,
    size: int,
    seed: int,
) -> ndarray:
    """[size] ids of the adversary's own samples, drawn from its clients' data. Raises ``UserError``
    beyond what they hold.
    """
    owned = np.concatenate(shards[len(shards) - malicious :])
    if size > len(owned):
        raise UserError(
            f"adversary.mask_set = {size}, but its clients ({malicious}) hold {len(owned)} "
            "samples: lower it, or give the adversary more clients"
        )
    rng = numpy_rng(seed, "mask set")
    return np.sort(rng.choice(owned, size, replace=False))


def free_holdout(n_train: int, n_holdout: int, audits: list[AuditSet]) -> ndarray:
    """Ids of the hold-out samples in no audit list."""
    return np.setdiff1d(np.arange(n_train, n_train + n_holdout), pool_of(audits))


def own_set(
    free: ndarray,
    size: int,
    owner: str,
    seed: int,
) -> ndarray:
    """[size] ids out of ``free`` for the server's root set or the attacker's shadow models.

    ``owner``: in words. Raises ``UserError`` when fewer are left.
    """
    if size > len(free):
        raise UserError(
            f"{owner} wants {size} samples, but only {len(free)} of the hold-out are free: lower "
            "audit.nonmembers or that number, or raise the dataset's hold-out"
        )
    rng = numpy_rng(seed, owner)
    return np.sort(rng.choice(free, size, replace=False))


def shuffle_rng(seed: int, target: int) -> Generator:
    """Generator for shuffled memberships of a target's candidates, independent of attack, view and
    defense.
    """
    return numpy_rng(seed, "shuffled membership", client=target)


def opaque_names(n: int, seed: int) -> ndarray:
    """[n] ids of train ++ hold-out that attacks get: a keyed permutation of 0..n-1.

    Positions would reveal the hold-out, which comes after the training data.
    """
    return numpy_rng(seed, "opaque names").permutation(n)


def pool_of(audits: list[AuditSet]) -> ndarray:
    """Sorted ids of every sample that some target's audit needs: what the engine measures."""
    return np.unique(np.concatenate([a.ids for a in audits]))


def split_digest(split: Split, audits: list[AuditSet]) -> str:
    """Hex sha256 of all parts and every audit list."""
    h = hashlib.sha256(split.digest().encode())
    for a in audits:
        h.update(a.digest().encode())
    return h.hexdigest()
