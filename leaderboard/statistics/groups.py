"""The groups of clients that a setting has."""

from __future__ import annotations

from typing import Any

from fedbench.core.contract.section import ClientGroup
from fedbench.core.store.reading import LoadedRecord

_CLIENTS = "clients:"  # an analysis that counts the clients of each group calls its numbers so


def groups_in(loaded: LoadedRecord) -> tuple[ClientGroup, ...]:
    """The setting's groups with the sizes that an analysis counted in the record's run; none where none counted them."""
    names = group_names([loaded])
    for found in loaded.record.analyses.values() if names else ():
        sizes = [found.numbers.get(f"{_CLIENTS}{name}") for name in names]
        if all(size is not None for size in sizes):
            return tuple(ClientGroup(n, int((s.value if s else None) or 0)) for n, s in zip(names, sizes, strict=True))
    return ()


def group_names(records: list[LoadedRecord]) -> list[str]:
    """Names of the setting's groups, in the order of the targets -10, -11, ...; none where it has none."""
    for loaded in records:
        groups: Any = loaded.record.described.get("groups")
        if isinstance(groups, list) and all(isinstance(g, dict) and "name" in g for g in groups):
            return [str(g["name"]) for g in groups]
    return []
