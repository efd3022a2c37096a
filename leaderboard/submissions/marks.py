"""How far each record and row can be trusted: whom it is from, whether it was run again here, and whether its code is today's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.core.contract.board import Quote, Text, Words
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.trust import MEASURED_HERE, Trust, read_trust
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.submissions.installed import why_stale
from fedbench.leaderboard.tables.common import joined

_MOST_REASONS = 4


@dataclass(frozen=True)
class Mark:
    """``level`` of one record; ``stale``: what is another now than when it was made."""

    level: str
    stale: tuple[str, ...]


class Marks:
    """Of the records of one folder."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._known: dict[tuple[Path, str], Mark] = {}

    @classmethod
    def of_folder(cls, root: Path) -> Marks:
        """Raises ``UserError`` for notes that fedbench did not write."""
        return cls(read_trust(root))

    def of(self, loaded: LoadedRecord) -> Mark:
        """What is known of one record."""
        at = loaded.path, loaded.record.key
        if at not in self._known:
            self._known[at] = Mark(self._trust.of(loaded).level, why_stale(loaded.record))
        return self._known[at]

    def needed(self, records: Sequence[LoadedRecord]) -> bool:
        """Whether a record is from elsewhere: then every row says what it is."""
        return any(self._trust.of(r).level != MEASURED_HERE for r in records)

    def of_row(self, row: Row) -> Words:
        """The row in a few words: ``claimed``, ``claimed, 3 of 30 reproduced``, ``reproduced``, ``stale``, ..."""
        marks = [self.of(r) for e in row.entries.values() for r in e.records.values()]
        levels = Counter(mark.level for mark in marks)
        words = [f"{levels['not reproduced']} of {len(marks)} not reproduced"] if levels["not reproduced"] else []
        if levels["claimed"]:
            words.append("claimed")
            words += [f"{levels['reproduced']} of {len(marks)} reproduced"] if levels["reproduced"] else []
        elif not words:
            words += [level for level in ("reproduced", MEASURED_HERE) if levels[level]]
        return Words(", ".join([*words, *(["stale"] if any(mark.stale for mark in marks) else [])]))

    def lines(self, records: Sequence[LoadedRecord]) -> list[Text]:
        """For a board's provenance: how many records are of which level, and why some are stale."""
        marks = [self.of(r) for r in records]
        levels = Counter(mark.level for mark in marks)
        lines: list[Text] = [Words("trust: " + ", ".join(f"{n} {level}" for level, n in sorted(levels.items())))]
        if reasons := Counter(text for mark in marks for text in mark.stale):
            n = sum(bool(mark.stale) for mark in marks)
            shown = joined([Quote(f"{text} ({of})", 160) for text, of in reasons.most_common(_MOST_REASONS)], "; ")
            more = f" and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
            lines.append((Words(f"stale, made by other code than is installed here: {n}: "), *shown, Words(more)))
        return lines
