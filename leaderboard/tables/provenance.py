"""The end of a board: what has no score and why, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedbench.core.store.reading import LoadedRecord
from fedbench.leaderboard import text
from fedbench.leaderboard.collect import MISSING, Table

MAX_VALUES = 8


def cells_without_scores(tables: Sequence[Table]) -> list[str]:
    """A table of every failed, timed-out, diverged, skipped or missing cell with its reason; [] when there is none."""
    found: dict[tuple[str, ...], set[int]] = {}
    for table in tables:
        for row in table.rows:
            for attack, cell in row.cells.items():
                for seed in table.targets:
                    loaded = cell.records.get(seed)
                    if cell.ok(seed):
                        continue
                    outcome = loaded.record.outcome if loaded else MISSING
                    reason = loaded.record.reason if loaded else "no record; run the suite again to compute it"
                    coalition = loaded.record.coalition if loaded else (row.coalition or table.coalition)
                    found.setdefault((table.setting, coalition, row.label, attack, outcome, reason), set()).add(seed)
    if not found:
        return []
    rows = [
        [*map(text.escape, key[:4]), ", ".join(map(str, sorted(s))), key[4], text.escape(key[5]) or "no reason given"]
        for key, s in sorted(found.items())
    ]
    headers = ["setting", "coalition", "defense", "attack", "seeds", "outcome", "reason"]
    return ["## Cells without a score", text.table(headers, rows, left=len(headers))]


def provenance(records: Sequence[LoadedRecord]) -> str:
    """Versions, code, machine and data behind the board; where records differ, every value is listed."""
    facts: list[tuple[str, Callable[[LoadedRecord], object]]] = [
        ("fedbench", lambda r: r.record.provenance.fedbench),
        ("components", lambda r: r.record.defense.distribution),
        ("", lambda r: r.record.attack.distribution),
        ("Python", lambda r: r.record.provenance.python),
        ("torch", lambda r: r.record.provenance.torch),
        ("numpy", lambda r: r.record.provenance.numpy),
        ("git commit", _commit),
        ("platform", lambda r: r.record.provenance.platform),
        ("CPU", lambda r: r.record.provenance.cpu),
        ("device", lambda r: r.record.provenance.device),
        ("dtype", lambda r: r.record.provenance.dtype),
        ("threads a run", lambda r: r.record.provenance.threads),
        ("deterministic", lambda r: "yes" if r.record.provenance.deterministic else "no"),
        ("record schema", lambda r: r.record.schema_version),
        ("data", lambda r: r.record.digests.get("data", "unknown")[:16]),
        ("split", lambda r: r.record.digests.get("split", "unknown")[:16]),
    ]
    lines: list[tuple[str, set[str]]] = []
    for name, read in facts:
        values = {str(read(r)) for r in records}
        if name:
            lines.append((name, values))
        else:
            lines[-1][1].update(values)
    outcomes = sorted({r.record.outcome for r in records})
    count = ", ".join(f"{sum(r.record.outcome == o for r in records)} {o}" for o in outcomes)
    latest = max(r.record.measured.started for r in records)
    shown = [f"- {name}: {_shown(values)}" for name, values in lines]
    return "\n".join(["## Provenance", "", *shown, f"- records: {count}", f"- last run started: {text.escape(latest)}"])


def _commit(loaded: LoadedRecord) -> str:
    p = loaded.record.provenance
    if p.git_commit is None:
        return "not under git"
    return p.git_commit[:12] + (" with uncommitted changes" if p.git_dirty else "")


def _shown(values: set[str]) -> str:
    ordered = sorted(values)
    rest = f" and {len(ordered) - MAX_VALUES} more" if len(ordered) > MAX_VALUES else ""
    return ", ".join(text.escape(v, 120) for v in ordered[:MAX_VALUES]) + rest
