"""The end of a board: what has no score and why, and where the numbers come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from fedbench.core.contract.board import Block, Bullets, Column, Heading, Note, Part, Quote, Table, Text, Words
from fedbench.core.registry.use import ComponentUse
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.record import Record
from fedbench.leaderboard.statistics.rows import MISSING, ended
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.statistics.unscored import Unscored, unscored
from fedbench.leaderboard.tables.common import joined

MAX_VALUES = 8
MAX_NAMES = 60  # of one package's components of one kind
_KINDS = ("data sets", "models", "defenses", "attacks", "signals", "analyses")
_UNSCORED = ("setting", "coalition", "defense", "attack", "seeds", "outcome", "reason")


def unscored_blocks(sections: Sequence[Section]) -> list[Block]:
    """A table of every failed, timed-out, diverged, skipped or missing cell with its reason; [] when there is none."""
    found = unscored(sections)
    if not found:
        return []
    rows = tuple(
        (c.setting, c.coalition, c.defense, c.attack, Words(", ".join(map(str, seeds))), Words(c.outcome), _reason(c))
        for c, seeds in found.items()
    )
    columns = tuple(Column(name=Words(name), align="left") for name in _UNSCORED)
    return [Heading(2, Words("Cells without a score")), Table(title="", columns=columns, rows=rows)]


def _reason(cell: Unscored) -> Text:
    if cell.outcome == MISSING:
        return Words("no record; run the suite again to compute it")
    return cell.reason if cell.reason.strip() else Words("no reason given")


_FACTS: dict[str, tuple[Callable[[LoadedRecord], object], ...]] = {
    "fedbench": (lambda r: r.record.provenance.fedbench,),
    "Python": (lambda r: r.record.provenance.python,),
    "torch": (lambda r: r.record.provenance.torch,),
    "numpy": (lambda r: r.record.provenance.numpy,),
    "git commit": (lambda r: _commit(r),),
    "platform": (lambda r: r.record.provenance.platform,),
    "CPU": (lambda r: r.record.provenance.cpu_type,),
    "device": (lambda r: r.record.provenance.device,),
    "dtype": (lambda r: r.record.provenance.dtype,),
    "threads a run": (lambda r: r.record.provenance.threads,),
    "deterministic": (lambda r: "yes" if r.record.provenance.deterministic else "no",),
    "record schema": (lambda r: r.record.schema_version,),
    "data": (lambda r: r.record.digests.get("data", "unknown")[:16],),
    "split": (lambda r: r.record.digests.get("split", "unknown")[:16],),
}


def origin(loaded: LoadedRecord) -> list[tuple[str, str]]:
    """(what, its value) of where one record comes from: versions, machine, data."""
    return [(name, str(read(loaded))) for name, reads in _FACTS.items() for read in reads]


def mixed_note(records: Sequence[LoadedRecord]) -> list[Block]:
    """Said at the top: one command gives the same bits on one type of CPU, and these records come from several."""
    types = sorted({r.record.provenance.cpu_type for r in records if r.record.provenance.device == "cpu"})
    if len(types) < 2:
        return []
    said = "Records of several types of CPU, whose last digits may differ: one command gives the same bits on one type only ("
    return [Note((Words(said), *joined([Quote(t, 120) for t in types[:MAX_VALUES]], "; "), Words(").")))]


def provenance_blocks(records: Sequence[LoadedRecord], more: Sequence[Text] = ()) -> list[Block]:
    """Versions, code, machine and data behind the board; where records differ, every value is listed. ``more``: further lines."""
    lines: list[Text] = [*more, *_packages(records)]
    lines += [
        (Words(f"{name}: "), *_values({str(read(r)) for r in records for read in reads})) for name, reads in _FACTS.items()
    ]
    count = ", ".join(f"{n} {what}" for what, n in sorted(Counter(map(ended, records)).items()))
    latest = max(r.record.measured.started for r in records)
    lines += [Words(f"records: {count}"), (Words("last run started: "), latest)]
    return [Heading(2, Words("Provenance")), Bullets(tuple(lines))]


def _packages(records: Sequence[LoadedRecord]) -> Iterator[Text]:
    """Of every package, with its version, what it brought."""
    found: dict[str, dict[str, set[str]]] = {}
    uses = {(kind, id(use)): use for loaded in records for kind, use in _components(loaded.record)}
    for (kind, _), use in uses.items():
        for part in use.chain:
            found.setdefault(part.distribution, {}).setdefault(kind, set()).add(part.name)
    for package, kinds in sorted(found.items()):
        parts = ((Words(f"{kind} "), *_names(kinds[kind])) for kind in _KINDS if kind in kinds)
        yield (Words("components of "), Quote(package, 120), Words(": "), *joined(parts, "; "))


def _names(names: set[str]) -> tuple[Part, ...]:
    rest = (Words(f" and {len(names) - MAX_NAMES} more"),) if len(names) > MAX_NAMES else ()
    return (*joined([Quote(name, 60) for name in sorted(names)[:MAX_NAMES]]), *rest)


def _components(record: Record) -> Iterator[tuple[str, ComponentUse]]:
    yield from (("defenses", record.defense), ("attacks", record.attack))
    if (also := record.components) is not None:
        yield from (("data sets", also.dataset), ("models", also.model))
        yield from (("signals", use) for use in also.signals.values())
        yield from (("analyses", use) for use in also.analyses.values())


def _commit(loaded: LoadedRecord) -> str:
    p = loaded.record.provenance
    if p.git_commit is None:
        return "not under git"
    return p.git_commit[:12] + (" with uncommitted changes" if p.git_dirty else "")


def _values(values: set[str]) -> tuple[Quote | str | Words, ...]:
    ordered = sorted(values)
    rest = (Words(f" and {len(ordered) - MAX_VALUES} more"),) if len(ordered) > MAX_VALUES else ()
    return (*joined([Quote(v, 120) for v in ordered[:MAX_VALUES]]), *rest)
