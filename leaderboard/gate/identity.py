"""What a cell is made of, in named parts that cells share; and what differs between two, in words: protocol, data or code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedbench.core.run.resume import differences

Identity = dict[str, Any]
"""``run``, ``attack`` and ``signals`` of a record's identity, as JSON values; of a run alone without attack and signals"""

_COMPONENTS = ("dataset", "model", "defense", "attacker")
_OF_SEED = ("seed", "members", "targets")
_CODE = ("digest", "target", "distribution")  # of a component; its name and params are the protocol
_OF_RESULT = ("dtype",)  # of where a run took place; the rest rounds otherwise, which a comparison says, and stands
_NOBODY = {"name": "", "params": {}, "target": "", "distribution": "", "digest": ""}


def of_cell(identity: Mapping[str, Any]) -> Identity:
    """What of a record's identity its scores depend on: not its analyses."""
    return {name: identity[name] for name in ("run", "attack", "signals")}


def parts_of(identity: Identity, setting: str, coalition: str) -> Iterator[tuple[str, Identity]]:
    """(name, piece) such that the pieces, merged, are the identity; most cells of a suite share most of theirs."""
    run = identity["run"]
    digests = run["digests"]
    rest = {name: value for name, value in run.items() if name not in (*_COMPONENTS, *_OF_SEED, "digests", "contract")}
    yield f"setting {setting}", {"run": rest}
    yield "engine", {"run": {"contract": run["contract"], "digests": {"engine": digests["engine"]}}}
    for kind in _COMPONENTS:
        use = run[kind]
        yield f"{kind} {use['name'] if use else 'none'}", {"run": {kind: use}}
    data = {name: digest for name, digest in digests.items() if name != "engine"}  # labels may be noisy by seed
    of_seed = {name: run[name] for name in _OF_SEED} | {"digests": data}
    yield f"seed {run['seed']} of {setting}, {coalition}", {"run": of_seed}
    if "attack" in identity:
        yield f"attack {identity['attack']['name']}", {"attack": identity["attack"], "signals": {}}
        for name, use in identity["signals"].items():
            yield f"signal {name}", {"signals": {name: use}}


def merged(pieces: list[Identity]) -> Identity:
    """The identity of these pieces."""
    found: Identity = {}
    for piece in pieces:
        _merge(found, piece)
    return found


def _merge(into: dict[str, Any], piece: Mapping[str, Any]) -> None:
    for name, value in piece.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = dict(value) if isinstance(value, dict) else value


def changes(old: Identity, new: Identity, same_seed: bool) -> tuple[list[str], list[str]]:
    """(protocol and data, code) that differ, in words. ``same_seed``: False leaves out what a seed decides."""
    before, now = (_comparable(identity, same_seed) for identity in (old, new))
    if before == now:
        return [], []
    protocol = differences(_without_code(before), _without_code(now))
    return protocol, [what for what in differences(before, now) if what not in protocol]


def _comparable(identity: Identity, same_seed: bool) -> Identity:
    """Without the machine and, where asked for, the seed."""
    run = dict(identity["run"])
    run["provenance"] = {name: run["provenance"][name] for name in _OF_RESULT}
    run["device"] = ""
    if not same_seed:
        run["seed"] = 0
        run["digests"] = {"engine": run["digests"]["engine"]}
    return {"run": run, "attack": identity.get("attack", _NOBODY), "signals": identity.get("signals", {}), "analyses": {}}


def _without_code(identity: Identity) -> Identity:
    run = dict(identity["run"])
    for kind in _COMPONENTS:
        run[kind] = _bare(run[kind])
    run |= {"contract": 0, "digests": {name: d for name, d in run["digests"].items() if name != "engine"}}
    signals = {name: _bare(use) for name, use in identity["signals"].items()}
    return {**identity, "run": run, "attack": _bare(identity["attack"]), "signals": signals}


def _bare(use: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if use is None:
        return None
    then = {"then": [_bare(part) for part in use["then"]]} if use.get("then") else {}
    return {**use, **dict.fromkeys(_CODE, ""), **then}
