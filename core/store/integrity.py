"""Canonical JSON, digests of files, keys of records, and agreement of a record's fields with its
identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.core.store.record import Record

# stand in the identity as they are described
_SETTING = ("partition", "federation", "audit", "groups", "thresholds")
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_MOST_SHOWN = 80  # characters of a value


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spare spaces; refuses NaN."""
    return _ENCODER.encode(value)


def key_of(value: Any) -> str:
    """Hex sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def digest_of(content: dict[str, Any]) -> str:
    """Hex sha256 of the canonical JSON of a file's content without its own ``digest``: spaces and
    order do not count.
    """
    return key_of({name: value for name, value in content.items() if name != "digest"})


def sealed(content: dict[str, Any]) -> bytes:
    """The file of this content, with its digest."""
    return (
        json.dumps({**content, "digest": digest_of(content)}, indent=1, ensure_ascii=False).encode()
        + b"\n"
    )


def digest_mistake(content: dict[str, Any]) -> str | None:
    """The mistake in the digest of a file with this content; None where it is right."""
    if not isinstance(content.get("digest"), str):
        return "it has no digest"
    return (
        None
        if digest_of(content) == content["digest"]
        else "its content is not the one its digest was made of"
    )


def keys_of(identity: dict[str, Any]) -> tuple[str, str]:
    """(key of the run, key of the cell): hashes of everything that can change the result of a
    training, and of an attack on it.

    ``identity``: ``run``, ``attack``, ``signals`` and ``analyses``, as ``experiment/job.py`` makes
    them.
    """
    run = key_of(identity["run"])
    return run, key_of({**identity, "run": run})


def components_of(identity: dict[str, Any]) -> dict[str, Any]:
    """Data set, model, signals and analyses of an identity, as a record's ``components``.

    Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for an identity that is none.
    """
    run = identity["run"]

    def use(of: dict[str, Any], label: str) -> dict[str, Any]:
        return {
            **of,
            "label": label,
            "then": [use(part, part["name"]) for part in of.get("then", ())],
        }

    return {
        "dataset": use(run["dataset"], run["dataset"]["name"]),
        "model": use(run["model"], run["model"]["name"]),
        "signals": {name: use(of, name) for name, of in identity["signals"].items()},
        "analyses": {label: use(of, label) for label, of in identity["analyses"].items()},
    }


def disagreements(record: Record) -> Iterator[str]:
    """Where a record's keys are not those of its identity, or another field differs from the
    identity.

    Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for an identity that lacks a field.
    """
    run_key, key = keys_of(dict(record.identity))
    if record.run_key != run_key:
        yield "run_key is not made of its identity"
    if record.key != key:
        yield "key is not made of its identity"
    for name, said, stands in _said_twice(record, record.identity.run):
        if said != stands:
            yield f"{name} is {_shown(said)}, but {_shown(stands)} in its identity"


def _said_twice(record: Record, run: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, what the record says, what its identity says) of every field that is in both."""
    yield "seed", record.seed, run["seed"]
    yield "members", record.members, run["members"]
    yield "defense", record.defense.identity(), run["defense"]
    yield "attack", record.attack.identity(), record.identity.attack
    yield "torch", record.provenance.torch, run["provenance"]["torch"]
    yield "dtype", record.provenance.dtype, run["provenance"]["dtype"]
    yield "device", record.provenance.device.partition(":")[0].partition(" ")[0], run["device"]
    yield "digests", {n: d for n, d in record.digests.items() if n != "scores"}, run["digests"]
    for kind in ("dataset", "model"):
        yield (
            f"described.{kind}",
            record.described[kind],
            {n: run[kind][n] for n in ("name", "params")},
        )
    several = record.described.get("coalitions", {})
    yield (
        "described.coalitions",
        list(several.values()),
        [run["coalitions"]] if run.get("coalitions") else [],
    )
    for part in _SETTING:
        yield f"described.{part}", record.described[part], run["setting"][part]
    yield "described.tuning", record.described.get("tuning", False), run.get("tuning", False)
    yield "described.adversary", record.described["adversary"] is None, run["attacker"] is None
    if record.outcome == "ok":
        yield "targets", [t.target for t in record.targets], run["targets"]


def _shown(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
