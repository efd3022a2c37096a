"""No board shows a number that the scores beside its record do not give."""

from __future__ import annotations

from collections.abc import Iterable

from fedbench.core import UserError
from fedbench.core.store.proven import Proven
from fedbench.core.store.reading import RERUN, LoadedRecord
from fedbench.core.store.recount import not_recounted


def require_recounted(records: Iterable[LoadedRecord], proven: Proven | None = None) -> None:
    """UserError naming every record whose AUC, TF01, numbers of candidates or test accuracy its score file does not give.
    ``proven``: what is known of their folder."""
    known, messages = proven or Proven(), []
    for loaded in records:
        found = not_recounted(loaded, known)
        messages += [f"{loaded.path}: {what}: the record or its scores were changed; {RERUN}" for what in found]
    if messages:
        raise UserError(*messages)
    known.save()
