"""Fields of two records, or of a record and what its scores give, compared by their paths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedbench.core.store.integrity import canonical
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.words import one_line

_SHARE = 0.05  # of the sum of a column's values, by which those of another machine may differ
_SLACK = 0.02  # beside it, of a fraction that depends on few candidates or rounds
# among rounds that are nearly equal
_CHOSEN = ("targets.rounds.best_round", "targets.decision.best_round")
_MAY_DIFFER = ("measured", "provenance")  # of two runs of one cell


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every text, number or null in a JSON value: ``targets[0].target``."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{i}]")
    else:
        yield path, value


def differing(a: LoadedRecord, b: LoadedRecord, besides: Sequence[str] = ()) -> Iterator[str]:
    """Yield the fields in which two records of one cell differ, with their values, except those of
    machine and time and ``besides``.
    """
    exclude = {*_MAY_DIFFER, *besides}
    before = dict(leaves(a.record.model_dump(mode="json", exclude=exclude)))
    now = dict(leaves(b.record.model_dump(mode="json", exclude=exclude)))
    for path in sorted(before.keys() | now.keys()):
        x, y = before.get(path), now.get(path)
        if x != y:
            yield _values_of(path, canonical(x), canonical(y))


def _values_of(path: str, x: str, y: str) -> str:
    return f"{one_line(path, 80)} ({one_line(x, 40)} and {one_line(y, 40)})"


def far(a: LoadedRecord, b: LoadedRecord) -> Iterator[str]:
    """Yield the fields that no scores decide and that differ beyond a tolerance, with the values of
    all rounds or targets: facts, findings, history, single rounds, decisions, maxima and nulls.

    Texts may differ in numbers alone. Differences of numbers may add up to ``_SHARE`` of the larger
    sum, and: of counts among facts two events, of other counts one each, of other numbers but facts
    ``_SLACK`` each, of TF01 a point.
    """
    before, now = _columns(a), _columns(b)
    for path in sorted(before.keys() | now.keys()):
        x, y = before.get(path, []), now.get(path, [])
        if not _near(path, x, y):
            yield _values_of(path, repr(x), repr(y))


def _columns(loaded: LoadedRecord) -> dict[str, list[Any]]:
    content: dict[str, Any] = loaded.record.model_dump(
        mode="json",
        include={
            "facts": True,
            "analyses": True,
            "history": True,
            "targets": {"__all__": {"rounds", "decision", "maximum"}},
        },
    )
    columns: dict[str, list[Any]] = {}
    for path, value in leaves(content):
        columns.setdefault(re.sub(r"\[\d+\]", "", path), []).append(value)
    for name, array in loaded.all_arrays().items():
        if ":" in name or "_null_" in name:
            columns[name] = array.tolist()
    return {path: values for path, values in columns.items() if path not in _CHOSEN}


def _near(path: str, old: list[Any], new: list[Any]) -> bool:
    if len(old) != len(new):
        return False
    types = {type(value) for value in [*old, *new]} - {type(None)}
    if not types <= {int, float}:
        return _texts(old) == _texts(new)
    a, b = np.array(old, float), np.array(new, float)  # NaN where there is none
    if (np.isnan(a) != np.isnan(b)).any():
        return False
    largest = max(np.nansum(abs(a)), np.nansum(abs(b)))
    slack = _slack(path, len(old), types == {int})
    return bool(np.nansum(abs(a - b)) <= _SHARE * largest + slack)


def _slack(path: str, n: int, counts: bool) -> float:
    if path.startswith("facts."):
        return 2.0 * counts
    if counts or "tf01" in path:
        return n
    return n * _SLACK


def _texts(values: list[Any]) -> list[Any]:
    """Return the values, the numbers in texts as 0."""
    texts = []
    for value in values:
        texts.append(re.sub(r"\d+", "0", value) if isinstance(value, str) else value)
    return texts
