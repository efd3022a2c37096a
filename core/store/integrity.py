"""What a record proves of itself: a digest of its content, keys made of what it says, and one word for what it says twice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedbench.core.store.canonical import canonical, joined, key_of, sha256_of

if TYPE_CHECKING:
    from fedbench.core.store.record import Record

PROTECTED_SINCE = 4
"""the record schema that brought ``digest`` and ``identity``; what says an earlier one has neither"""
NAMES_COMPONENTS_SINCE = 5
"""the one that brought ``components``"""
NAMES_MAXIMA_SINCE = 6
"""the one that brought ``maximum`` of a target, and its null beside the scores"""
_SINCE = {"digest": PROTECTED_SINCE, "identity": PROTECTED_SINCE, "components": NAMES_COMPONENTS_SINCE}
_SETTING = ("partition", "federation", "audit", "groups", "thresholds")  # stand in the identity as they are described
_MOST_SHOWN = 80  # characters of a value


def digest_of(content: dict[str, Any]) -> str:
    """Hex sha256 of the canonical JSON of a file's content without its own ``digest``: spaces and order do not count."""
    return key_of({name: value for name, value in content.items() if name != "digest"})


def content_digest(record: Record) -> str:
    """The record's digest or, of one that was written without, the digest of what it says."""
    return record.digest or digest_of(record.model_dump(mode="json"))


def sealed(content: dict[str, Any]) -> bytes:
    """The file of this content, with its digest."""
    return json.dumps({**content, "digest": digest_of(content)}, indent=1, ensure_ascii=False).encode() + b"\n"


def broken_seal(content: dict[str, Any], texts: Mapping[str, str] | None = None) -> str | None:
    """What is wrong with a file's digest, from its bare JSON values: asked before anything in it is believed. ``texts``: the
    canonical JSON of each, where it is known."""
    version = content["schema_version"]
    if found := [name for name, since in _SINCE.items() if version < since and name in content]:
        return f"it says schema {version}, which has no '{found[0]}'"
    if version < PROTECTED_SINCE:
        return None
    if not isinstance(content.get("digest"), str):
        return "it has no digest"
    digest = digest_of(content) if texts is None else sha256_of(joined({n: t for n, t in texts.items() if n != "digest"}))
    return None if digest == content["digest"] else "its content is not the one its digest was made of"


def keys_of(identity: dict[str, Any]) -> tuple[str, str]:
    """(key of the run, key of the cell): hashes of all that can change what a training, and an attack on it, answer.

    ``identity``: ``run``, ``attack``, ``signals`` and ``analyses``, as ``experiment/job.py`` makes them.
    """
    run = key_of(identity["run"])
    return run, key_of_cell(run, identity)


def key_of_cell(run_key: str, identity: dict[str, Any]) -> str:
    """The key of a cell of the run with this key; ``identity`` with or without its ``run``."""
    return key_of({**identity, "run": run_key})


def components_of(identity: dict[str, Any]) -> dict[str, Any]:
    """What an identity says of data set, model, signals and analyses, as a record's ``components``.

    Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for an identity that is none.
    """
    run = identity["run"]

    def use(of: dict[str, Any], label: str) -> dict[str, Any]:
        return {**of, "label": label, "then": [use(part, part["name"]) for part in of.get("then", ())]}

    return {
        "dataset": use(run["dataset"], run["dataset"]["name"]), "model": use(run["model"], run["model"]["name"]),
        "signals": {name: use(of, name) for name, of in identity["signals"].items()},
        "analyses": {label: use(of, label) for label, of in identity["analyses"].items()},
    }  # fmt: skip


def disagreements(record: Record, keys: tuple[str, str] | None = None) -> Iterator[str]:
    """Where a record's keys are not those of its identity, or another field says something else than the identity. ``keys``:
    those of its identity, where they are known.

    Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for an identity that is none.
    """
    if record.identity is None:
        return
    run_key, key = keys or keys_of(dict(record.identity))
    if record.run_key != run_key:
        yield "run_key is not made of its identity"
    if record.key != key:
        yield "key is not made of its identity"
    for name, said, stands in _said_twice(record, record.identity.run):
        if said != stands:
            yield f"{name} is {_shown(said)}, but {_shown(stands)} in its identity"


def _said_twice(record: Record, run: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, what the record says, what its identity says) of everything that stands in both."""
    assert record.identity is not None
    yield "seed", record.seed, run["seed"]
    yield "members", record.members, run["members"]
    yield "defense", record.defense.identity(), run["defense"]
    yield "attack", record.attack.identity(), record.identity.attack
    yield "torch", record.provenance.torch, run["provenance"]["torch"]
    yield "dtype", record.provenance.dtype, run["provenance"]["dtype"]
    yield "device", record.provenance.device.partition(":")[0].partition(" ")[0], run["device"]
    yield "digests", {n: d for n, d in record.digests.items() if n != "scores"}, run["digests"]
    for kind in ("dataset", "model"):
        yield f"described.{kind}", record.described[kind], {n: run[kind][n] for n in ("name", "params")}
    several = record.described.get("coalitions", {})
    yield "described.coalitions", list(several.values()), [run["coalitions"]] if "coalitions" in run else []
    for part in _SETTING:
        yield f"described.{part}", record.described[part], run["setting"][part]
    if record.components is not None:
        yield "components", record.components.model_dump(mode="json"), components_of(dict(record.identity))
    yield "described.tuning", record.described.get("tuning", False), run.get("tuning", False)
    yield "described.adversary", record.described["adversary"] is None, run["attacker"] is None
    if record.outcome == "ok":
        yield "targets", [t.target for t in record.targets], run["targets"]


def _shown(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
