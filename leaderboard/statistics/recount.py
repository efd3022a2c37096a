"""Recompute the metrics of records from their scores before a board shows them."""

from __future__ import annotations

from collections.abc import Iterable

from fedbench.core import UserError
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.recount import not_recounted
from fedbench.core.store.validity import RERUN


def require_recounted(records: Iterable[LoadedRecord]) -> None:
    """Raises UserError naming every record with a metric, number of candidates or test accuracy that its scores do
    not give."""
    found = [(loaded.path, what) for loaded in records for what in not_recounted(loaded)]
    messages = [f"{path}: {what}: the record or its scores were changed; {RERUN}" for path, what in found]
    if messages:
        raise UserError(*messages)
