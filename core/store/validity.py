"""Whether the content of a file is a valid record: unchanged since it was written, consistent,
within what can be measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.core.contract.errors import UserError
from fedbench.core.metrics.registry import METRICS
from fedbench.core.store.integrity import digest_mistake
from fedbench.core.store.record import SCHEMA_VERSION, Record
from fedbench.core.store.run_file import cells_of
from fedbench.core.words import one_line

RERUN = "delete it and run its suite again to compute the run anew"
_KEY_IN_NAME = re.compile(r"--([0-9a-f]{12})$")


def validated(content: Any, path: Path) -> list[Record]:
    """The records of the cells of a run from the JSON content of its file ``path``. UserError with
    file, reason and remedy.
    """
    if not isinstance(content, dict) or "schema_version" not in content:
        raise UserError(
            f"{path}: not a fedbench record (it has no schema_version); move it out of the results "
            "folder"
        )
    version = content["schema_version"]
    if type(version) is int and version > SCHEMA_VERSION:
        raise UserError(
            f"{path}: made by a newer fedbench (record schema {version}; this one reads "
            f"{SCHEMA_VERSION}); upgrade fedbench"
        )
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UserError(
            f"{path}: record schema {one_line(repr(version), 120)}, expected {SCHEMA_VERSION}; "
            f"{RERUN}"
        )
    if (what := digest_mistake(content)) is not None:
        raise UserError(f"{path}: damaged or changed since fedbench wrote it ({what}); {RERUN}")
    try:
        records = [Record.model_validate(fields) for fields in cells_of(content)]
        what = next(
            (what for record in records for what in _impossible(record)), None
        ) or _of_several(records)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not a valid record ({one_line(repr(error), 120)}); {RERUN}"
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path}: not a valid record ({one_line(where, 120)}: {one_line(first['msg'], 120)}); "
            f"{RERUN}"
        ) from error
    if what is not None:
        raise UserError(f"{path}: not a valid record ({what}); {RERUN}")
    if (named := _KEY_IN_NAME.search(path.stem)) and not records[0].run_key.startswith(
        named.group(1)
    ):
        raise UserError(
            f"{path}: holds another run's record (key {one_line(records[0].run_key, 12)}): it was "
            f"renamed; {RERUN}"
        )
    return records


def _of_several(records: Sequence[Record]) -> str | None:
    """A contradiction between the cells of one run."""
    if not records:
        return "it has no cells"
    if len({record.key for record in records}) < len(records):
        return "two of its cells have one key"
    return (
        None
        if len({record.run_key for record in records}) == 1
        else "its cells are of different runs"
    )


def _impossible(record: Record) -> Iterator[str]:
    """Values that no measurement gives, and fields that contradict each other."""
    if record.outcome == "ok" and (record.utility is None or not record.targets):
        yield "outcome is 'ok' without utility and targets"
    if record.outcome != "ok" and (record.targets or record.pooled):
        yield f"outcome is '{record.outcome}', but it has scores"
    if record.by_adversary and (
        record.outcome != "diverged" or not record.described.get("adversary")
    ):
        yield "by_adversary, but it did not diverge with an adversary inside"
    if record.utility is not None and not 0 <= record.utility.accuracy <= 1:
        yield "utility.accuracy is not between 0 and 1"
    if record.utility is not None and [row.accuracy for row in record.history[-1:]] != [
        record.utility.accuracy
    ]:
        yield "utility.accuracy is not that of the last round in history"
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
    if not all(0 <= v < math.inf for v in (record.measured.train_cpu_s, record.measured.wall_s)):
        yield "measured times are negative or not finite"
    if not all(0 <= row.accuracy <= 1 for row in record.history):
        yield "the accuracy of a round is not between 0 and 1"
    if record.outcome == "ok" and "scores" not in record.digests:
        yield "digests.scores is missing"
    if (
        record.outcome == "ok"
        and [t.target for t in record.targets] != record.identity.run["targets"]
    ):
        yield "targets are not those of its identity"
