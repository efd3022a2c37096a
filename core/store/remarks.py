"""Remarks of defenses on a federation, kept as notes of its records."""

from __future__ import annotations

from fedbench.core.contract.defense import REMARKS
from fedbench.core.store.record import Record


def remark_note(label: str, setting: str, text: str) -> str:
    """A remark of the defense with this label, as a plan prints it and its records keep it."""
    return f"{_lead(label, setting)}{text}"


def remarks_in(record: Record) -> list[str]:
    """The remarks of a record, each once: those that were made before the training, then those of the finished run. Their text
    is the defense's."""
    lead, said = _lead(record.defense.label, record.setting), record.facts.get(REMARKS, [])
    before = [note.removeprefix(lead) for note in record.notes if note.startswith(lead)]
    after = said if isinstance(said, list) else [said]
    return list(dict.fromkeys([*before, *(text for text in after if isinstance(text, str))]))


def _lead(label: str, setting: str) -> str:
    return f"defense '{label}' in setting '{setting}': "
