"""What a record must be to be believed: untouched since it was written, of one word with itself, within what can be measured."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.metrics.groups import Estimate
from fedbench.core.metrics.registry import METRICS
from fedbench.core.store.canonical import canonical, joined, sha256_of
from fedbench.core.store.integrity import (
    NAMES_COMPONENTS_SINCE,
    NAMES_MAXIMA_SINCE,
    PROTECTED_SINCE,
    broken_seal,
    disagreements,
    key_of_cell,
)
from fedbench.core.store.members import COMMON, Members
from fedbench.core.store.record import SCHEMA_VERSION, Record
from fedbench.core.store.shared import Shared
from fedbench.core.store.upgrade import upgraded
from fedbench.core.words.explain import one_line

RERUN = "delete it and run its suite again to compute the cell anew"
_GIVEN: dict[frozenset[str], set[str]] = {}  # of which there are as many as forms of records
_NOTHING = Estimate(None)
_KEY_IN_NAME = re.compile(r"--([0-9a-f]{12})$")


def validated(content: Any, path: Path, shared: Shared, members: Members | None = None) -> Record:
    """The record that the JSON values of a file are. ``members``: the same, where the file was read by them. Raises ``UserError``
    with the file, the reason and the remedy."""
    if not isinstance(content, dict) or "schema_version" not in content:
        raise UserError(f"{path}: not a fedbench record (it has no schema_version); move it out of the results folder")
    version = content["schema_version"]
    if type(version) is not int or version < 1:
        raise UserError(f"{path}: schema_version {one_line(repr(version), 120)} is not a version; {RERUN}")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: made by a newer fedbench (record schema {version}; this one reads up to {SCHEMA_VERSION}); "
            "upgrade fedbench"
        )
    if members is None:
        of_identity = _texts(content.get("identity"))
        texts = {n: joined(of_identity) if n == "identity" and of_identity else canonical(v) for n, v in content.items()}
    else:
        of_identity, texts = {name: part.text for name, part in members.identity.items()}, members.texts()
    if (what := broken_seal(content, texts)) is not None:
        raise UserError(f"{path}: damaged or changed since fedbench wrote it ({what}); {RERUN}")
    try:
        made = _common(content, texts, of_identity, shared) if members is None else _parts(members, shared)
        record = _record(upgraded(content), made)
        what = next(_impossible(record, _keys(content, of_identity)), None)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a valid record of schema {version} ({one_line(repr(error), 120)}); {RERUN}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: not a valid record ({one_line(where, 120)}: {one_line(first['msg'], 120)}); {RERUN}") from error
    if what is not None:
        raise UserError(f"{path}: not a valid record ({what}); {RERUN}")
    require_own_name(path, record.key)
    return record


def trusted(content: dict[str, Any], path: Path, shared: Shared, members: Members | None = None) -> Record:
    """The same of values that passed all of it before (``proven``): only the file's name may be another now."""
    if members is not None:
        made = _parts(members, shared)
    else:
        texts = {name: canonical(content[name]) for name in COMMON if name in content}
        made = _common(content, texts, _texts(content.get("identity")), shared)
    record = _record(upgraded(content), made)
    require_own_name(path, record.key)
    return record


def require_own_name(path: Path, key: str) -> None:
    """Raise ``UserError`` for a record under the name of another cell."""
    if (named := _KEY_IN_NAME.search(path.stem)) and not key.startswith(named.group(1)):
        raise UserError(f"{path}: holds another cell's record (key {one_line(key, 12)}): it was renamed; {RERUN}")


def _texts(identity: Any) -> dict[str, str]:
    """The canonical JSON of each part of an identity; {} of what is none."""
    return {name: canonical(value) for name, value in identity.items()} if isinstance(identity, dict) else {}


def _keys(content: dict[str, Any], of_identity: Mapping[str, str]) -> tuple[str, str] | None:
    """What ``integrity.keys_of`` says, without writing the run a second time; None where there is no identity."""
    if "run" not in of_identity:
        return None
    run = sha256_of(of_identity["run"])
    return run, key_of_cell(run, content["identity"])


_Made = Callable[[], tuple[dict[str, Any], dict[str, Any]]]
"""what stands for a record's common fields, and for the parts of its identity, in all records. Raises ``ValidationError``"""


def _record(content: dict[str, Any], made: _Made) -> Record:
    """Pydantic's, in which equal parts of several records are one object. Raises ``ValidationError``."""
    if content["schema_version"] < NAMES_COMPONENTS_SINCE:  # some of it was made from other fields
        return Record.model_validate(content)
    try:
        parts, of_identity = made()
        record = Record.model_validate({**content, **parts})
    except ValidationError:
        return Record.model_validate(content)  # says where in the record the mistake is
    record.__dict__.update(parts)  # pydantic copies lists and mappings
    _make_small(record)
    if record.identity is not None:
        record.identity.__dict__.update(of_identity)
    return record


def _common(content: dict[str, Any], texts: Mapping[str, str], of_identity: Mapping[str, str], shared: Shared) -> _Made:
    """Found by their canonical JSON."""

    def of_run(value: dict[str, Any]) -> dict[str, Any]:
        return _run_of(value, shared)

    return lambda: (
        {n: shared.of(n, texts[n], lambda n=n: _adapter(n).validate_python(content[n])) for n in COMMON if n in content},  # type: ignore[misc]
        {
            n: shared.of("", text, lambda n=n: of_run(content["identity"][n]) if n == "run" else content["identity"][n])  # type: ignore[misc]
            for n, text in of_identity.items()
        },
    )  # fmt: skip


def _parts(members: Members, shared: Shared) -> _Made:
    """Found by the very bytes of the file."""

    def of_run(value: dict[str, Any]) -> dict[str, Any]:
        return _run_of(value, shared)

    return lambda: (
        {name: part.made(name, _adapter(name).validate_python) for name, part in members.common.items()},
        {name: part.made("run", of_run) if name == "run" else part.value for name, part in members.identity.items()},
    )


def _run_of(run: dict[str, Any], shared: Shared) -> dict[str, Any]:
    """The identity of a run, which its cells have in common, made of what it has in common with other runs."""
    return {name: shared.of("", canonical(value), lambda value=value: value) for name, value in run.items()}  # type: ignore[misc]


def _make_small(record: Record) -> None:
    """A hundred thousand of them are in memory at once: pydantic keeps a set of the fields that were given with every object, and
    digests that all records of a run name are texts of their own in each."""
    parts = [record, record.measured, *record.targets, *(t.maximum for t in record.targets), record.utility, record.identity]
    for part in parts:
        if part is not None:
            given = frozenset(part.model_fields_set)
            object.__setattr__(part, "__pydantic_fields_set__", _GIVEN.setdefault(given, set(given)))
    for score in [*(s for t in record.targets for s in t.groups.values()), *record.pooled.values()]:
        for name, found in score.values.items():
            if found.value is None and found.error is None:  # what does not apply does not, in a dozen places of a record
                score.values[name] = _NOTHING
    record.run_key = sys.intern(record.run_key)
    record.digests = {sys.intern(name): sys.intern(digest) for name, digest in record.digests.items()}


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """What pydantic makes of one field of a record."""
    return TypeAdapter(get_type_hints(Record)[name])


def _impossible(record: Record, keys: tuple[str, str] | None) -> Iterator[str]:
    """What a record claims that no measurement can give."""
    if record.outcome == "ok" and (record.utility is None or not record.targets):
        yield "outcome is 'ok' without utility and targets"
    if record.outcome != "ok" and (record.targets or record.pooled):
        yield f"outcome is '{record.outcome}', but it has scores"
    if record.by_adversary and (record.outcome != "diverged" or not record.described.get("adversary")):
        yield "by_adversary, but it did not diverge with an adversary inside"
    if record.utility is not None and not 0 <= record.utility.accuracy <= 1:
        yield "utility.accuracy is not between 0 and 1"
    scores = [s for t in record.targets for s in t.groups.values()] + list(record.pooled.values())
    for m in METRICS:
        values = [s.value(m.name) for s in scores]
        if any(v is not None and not m.low <= v <= m.high for v in values):
            yield f"{m.name} is not between {m.low:g} and {m.high:g}"
        if any((e := s.error(m.name)) is not None and not 0 <= e <= m.high - m.low for s in scores):
            yield f"the error of {m.name} is not between 0 and {m.high - m.low:g}"
    if any(not 0 <= n <= 2**53 for s in scores for n in (s.n_members, s.n_nonmembers)):
        yield "a number of candidates is not between 0 and 2^53"
    for found in (t.maximum for t in record.targets if t.maximum is not None):
        if not (0 <= found.auc <= 1 and 0 <= found.advantage <= 1 and found.rounds >= 1):
            yield "a maximum over rounds is not between 0 and 1, or of no round"
    if record.schema_version >= NAMES_MAXIMA_SINCE and any("ofl" in t.groups and t.maximum is None for t in record.targets):
        yield "the maximum of a target is missing"
    if not all(0 <= v < math.inf for v in (record.measured.train_cpu_s, record.measured.wall_s)):
        yield "measured times are negative or not finite"
    if not all(0 <= row.accuracy <= 1 for row in record.history):
        yield "the accuracy of a round is not between 0 and 1"
    if record.schema_version >= PROTECTED_SINCE:
        if record.identity is None:
            yield "identity is missing"
        if record.outcome == "ok" and "scores" not in record.digests:
            yield "digests.scores is missing"
    if record.schema_version >= NAMES_COMPONENTS_SINCE and record.components is None:
        yield "components is missing"
    yield from disagreements(record, keys)
