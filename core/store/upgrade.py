"""Records of an earlier schema in today's form: what was computed once stays readable."""

from __future__ import annotations

from typing import Any

from fedbench.core.store.integrity import NAMES_COMPONENTS_SINCE, PROTECTED_SINCE, components_of

_METRICS = ("auc", "tf01", "advantage", "balanced_accuracy")
_GAPS = ("demographic_parity", "equal_opportunity", "equalised_odds")


def upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a record file in the present form; what was written without protection says schema 3 from now on.

    Raises ``KeyError``, ``TypeError`` or ``AttributeError`` where it is not what its version promises.
    """
    if content["schema_version"] >= NAMES_COMPONENTS_SINCE:
        return content
    if content["schema_version"] >= PROTECTED_SINCE:  # what it leaves out stands in its identity
        return content | {"components": components_of(content["identity"])} if "identity" in content else content
    if content["schema_version"] == 1:
        content = _from_1(content)
    return content | {"schema_version": 3}  # schema 3 added what may be absent: a training's wall time, the CPU's capability


def _from_1(old: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 had a field for every metric of a score, and for the numbers of two analyses."""
    new = {k: v for k, v in old.items() if k not in ("facts", "society", "violations", "targets", "pooled")}
    new |= {"schema_version": 2, "described": old["facts"], "analyses": _analyses(old)}
    new["targets"] = [{**t, "groups": _scores(t["groups"])} for t in old.get("targets", [])]
    new["pooled"] = _scores(old.get("pooled", {}))
    return new | {kind: _component(old[kind]) for kind in ("defense", "attack")}


def _scores(groups: dict[str, Any]) -> dict[str, Any]:
    return {name: _score(score) for name, score in groups.items()}


def _score(old: dict[str, Any]) -> dict[str, Any]:
    values = {m: {"value": old[m], "error": old.get(f"{m}_se")} for m in _METRICS}
    return {"values": values, "n_members": old["n_members"], "n_nonmembers": old["n_nonmembers"]}


def _component(old: dict[str, Any]) -> dict[str, Any]:
    """A composition was stored under the names of all, each with its own parameters."""
    names = old["name"].split("+")
    if len(names) == 1:
        return old
    parts = [
        {"name": n, "label": n, "params": old["params"][n], "distribution": old["distribution"], "digest": old["digest"]}
        for n in names
    ]
    return {**parts[0], "label": old["label"], "then": parts[1:]}


def _analyses(old: dict[str, Any]) -> dict[str, Any]:
    found = {}
    if society := old.get("society"):
        numbers = {gap: {"value": society[gap], "error": society[f"{gap}_se"]} for gap in _GAPS}
        for g in society["groups"]:
            numbers |= {f"{kind}:{g['name']}": {"value": g[kind]} for kind in ("accuracy", "clients", "n_test")}
        found["group-fairness"] = {"numbers": numbers}
    if violations := old.get("violations"):
        found["violations"] = {"numbers": {kind: {"value": violations[kind]} for kind in ("violated", "clients")}}
    return found
