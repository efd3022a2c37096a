"""The groups of clients that a setting has."""

from __future__ import annotations

from typing import Any

from fedbench.core.contract.section import ClientGroup
from fedbench.core.store.reading import LoadedRecord

_CLIENTS = "clients:"  # an analysis that counts the clients of each group calls its numbers so


def groups_in(loaded: LoadedRecord) -> tuple[ClientGroup, ...]:
    """The groups that an analysis counted in the record's run, in the order of the setting; none where none did."""
    for found in loaded.record.analyses.values():
        sizes = {name.removeprefix(_CLIENTS): n.value for name, n in found.numbers.items() if name.startswith(_CLIENTS)}
        if sizes:
            return tuple(ClientGroup(name, int(size or 0)) for name, size in sizes.items())
    return ()


def group_names(records: list[LoadedRecord]) -> list[str]:
    """Names of the setting's groups, in the order of the targets -10, -11, ...; none where it has none."""
    for loaded in records:
        groups: Any = loaded.record.described.get("groups")
        if isinstance(groups, list) and all(isinstance(g, dict) and "name" in g for g in groups):
            return [str(g["name"]) for g in groups]
    return []
