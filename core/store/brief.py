"""How a cell ended, of its record: all that resuming a run needs of a hundred thousand of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.core.metrics.groups import Score
from fedbench.core.store.json_file import read_file
from fedbench.core.store.members import known_values
from fedbench.core.store.proven import Proven, content_of
from fedbench.core.store.reading import MAX_RECORD_BYTES, read_record
from fedbench.core.store.record import cpu_type_of
from fedbench.core.store.shared import Shared
from fedbench.core.store.validity import RERUN, require_own_name

_GOOD = ("ok", "skipped")
_FIELDS = ("outcome", "reason", "by_adversary")
_READ = (*_FIELDS, "complaints", "provenance", "key", "pooled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """Of the record at ``file``. ``cpu``: the type of CPU that made it; None: a GPU did. ``auc``: see :func:`auc_of`."""

    file: str
    outcome: str
    reason: str = ""
    by_adversary: bool = False
    complaints: tuple[str, ...] = ()
    cpu: str | None
    auc: float | None = None

    @property
    def path(self) -> Path:
        """Where the record lies."""
        return Path(self.file)

    @property
    def is_result(self) -> bool:
        """Whether the cell came out: with scores, skipped for a reason, or diverged as an adversary wanted."""
        return self.outcome in _GOOD or self.by_adversary


def read_brief(path: Path, proven: Proven, shared: Shared) -> Brief:
    """How the cell at ``path`` ended, of a record that was checked now or, with this very content, before. Raises ``UserError``
    for one that cannot be used."""
    given = read_file(path, MAX_RECORD_BYTES, RERUN)
    if proven.holds("read", content_of(given, path.with_suffix(".npz"))):
        content = known_values(given, _READ) or json.loads(given)
        require_own_name(path, content["key"])
        pooled = content.get("pooled", {})
        auc = _auc({group: score.get("values", {}).get("auc", {}).get("value") for group, score in pooled.items()})
    else:
        record = read_record(path, shared, proven).record
        content, auc = record.model_dump(include={*_READ} - {"key", "pooled"}), auc_of(record.pooled)
    machine = content["provenance"]
    return Brief(
        file=str(path), **{name: content[name] for name in _FIELDS if name in content}, cpu=_cpu(**machine),
        complaints=tuple(content.get("complaints", ())), auc=auc,
    )  # fmt: skip


def auc_of(pooled: Mapping[Any, Score]) -> float | None:
    """The AUC of a cell over all targets, as measured: against the outside non-members, as boards compare; where there are none,
    against all."""
    return _auc({group: score.value("auc") for group, score in pooled.items()})


def _auc(of_groups: Mapping[Any, float | None]) -> float | None:
    outside = of_groups.get("ofl")
    return of_groups.get("mix") if outside is None else outside


def _cpu(device: str, cpu: str, cpu_capability: str | None = None, **_: object) -> str | None:
    return None if device != "cpu" else cpu_type_of(cpu, cpu_capability)
