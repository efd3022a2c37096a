"""Canonical JSON, digests of files, keys of records, and the fields of a record that follow from
its identity.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
RECORDED = "recorded"
"""data set of federations that were trained elsewhere, and the source that records name"""
# parts of the setting that a record describes as they stand in its identity
_SETTING = ("partition", "federation", "audit", "groups", "thresholds")
# fields of a record that follow from the identity alone
DERIVED = ("key", "run_key", "seed", "members")
# objects of a record that follow from the identity in part: their other fields are stored
PARTLY = ("defense", "attack", "described", "dataset", "model", "digests", "provenance")


def canonical(value: Any) -> str:
    """Return JSON with sorted keys and no spare spaces; refuses NaN."""
    return _ENCODER.encode(value)


def key_of(value: Any) -> str:
    """Return the hex sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


# -- digests of files ------------------------------------------------------------------------------


def digest_of(content: dict[str, Any]) -> str:
    """Return the digest of a file's content but its ``digest``; spaces and order do not count."""
    return key_of({name: value for name, value in content.items() if name != "digest"})


def sealed(content: dict[str, Any]) -> bytes:
    """Return the bytes of a file with this content and its digest."""
    whole = {**content, "digest": digest_of(content)}
    return json.dumps(whole, indent=1, ensure_ascii=False).encode() + b"\n"


def digest_mistake(content: dict[str, Any]) -> str | None:
    """Say what is wrong with the digest of a file's content; None where it is right."""
    if not isinstance(content.get("digest"), str):
        return "it has no digest"
    if digest_of(content) != content["digest"]:
        return "its content is not the one its digest was made of"
    return None


# -- what an identity says -------------------------------------------------------------------------


def keys_of(identity: dict[str, Any]) -> tuple[str, str]:
    """Return (key of the run, key of the cell): hashes of everything that can change the result.

    Args:
        identity: ``run``, ``attack``, ``signals`` and ``analyses``, as ``run/job.py`` makes them.
    """
    run = key_of(identity["run"])
    return run, key_of({**identity, "run": run})


def derived_fields(
    identity: dict[str, Any], coalition: str, of_run: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the fields of a record, or parts of them, that follow from its identity.

    Args:
        of_run: what :func:`derived_of_run` returns, where it is known.

    Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for an identity that lacks a field.
    """
    if of_run is None:
        of_run = derived_of_run(identity["run"], coalition)
    key = key_of({**identity, "run": of_run["run_key"]})
    return {"key": key, "attack": _use(identity["attack"]), **of_run}


def derived_of_run(run: dict[str, Any], coalition: str) -> dict[str, Any]:
    """Return the fields, or parts of them, that follow from the identity of a run."""
    return {
        "run_key": key_of(run),
        "seed": run["seed"],
        "members": run["members"],
        "defense": _use(run["defense"]),
        "described": described_of(run, coalition),
        "digests": run["digests"],
        "provenance": run["provenance"],
    }


def described_of(run: dict[str, Any], coalition: str) -> dict[str, Any]:
    """Return the setting as a record describes it, given the identity of a run."""
    described: dict[str, Any] = {kind: _name_and_params(run[kind]) for kind in ("dataset", "model")}
    described |= {part: run["setting"][part] for part in _SETTING}
    if run["setting"].get("data_seed") is not None:
        described["data_seed"] = run["setting"]["data_seed"]
    if run["dataset"]["name"] == RECORDED:
        known = ("clients", "rounds")  # the other fields of a federation describe how it is trained
        described["federation"] = {name: described["federation"][name] for name in known}
        described["source"] = RECORDED
    if run.get("coalitions"):
        described["coalitions"] = {coalition: run["coalitions"]}
    if run.get("tuning"):
        described["tuning"] = True
    return described


def without_derived(fields: dict[str, Any], derived: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that do not follow from the identity, which a file holds."""
    stored = {}
    for name, value in fields.items():
        if name not in derived:
            stored[name] = value
        elif name in PARTLY and (rest := without_derived(value, derived[name])):
            stored[name] = rest
    return stored


def with_derived(stored: dict[str, Any], derived: dict[str, Any]) -> dict[str, Any]:
    """Return all fields, given the stored ones: the identity decides where both have one."""
    fields = dict(derived)
    for name, value in stored.items():
        if name not in derived:
            fields[name] = value
        elif name in PARTLY:
            fields[name] = with_derived(value, derived[name])
    return fields


def components_of(identity: dict[str, Any]) -> dict[str, Any]:
    """Return data set, model, signals and analyses of an identity, as a record's ``components``.

    Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for an identity that lacks a field.
    """
    run = identity["run"]
    components: dict[str, Any] = {
        kind: _labelled(run[kind], run[kind]["name"]) for kind in ("dataset", "model")
    }
    for kind in ("signals", "analyses"):
        uses = identity[kind].items()
        components[kind] = {label: _labelled(use, label) for label, use in uses}
    return components


def _name_and_params(use: dict[str, Any]) -> dict[str, Any]:
    return {"name": use["name"], "params": use["params"]}


def _use(use: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a ``ComponentUse`` but its label; following ones have their names."""
    following = [_labelled(part, part["name"]) for part in use.get("then", ())]
    return {"requires": {}, **use, "then": following}


def _labelled(use: dict[str, Any], label: str) -> dict[str, Any]:
    return {**_use(use), "label": label}
