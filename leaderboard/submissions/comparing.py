"""Compare a claimed record with one of the same key that was computed again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedbench.core.store.reading import (
    REPRODUCED,
    Candidates,
    LoadedRecord,
    load_records,
    record_paths,
)
from fedbench.leaderboard.comparison.cells import Snapshot, key_of, run_cell, scored_cell
from fedbench.leaderboard.comparison.compare import ComparedRow
from fedbench.leaderboard.comparison.compare import compare as compare_cells
from fedbench.leaderboard.comparison.fields import differing, far
from fedbench.leaderboard.comparison.measures import MEASURES

# of an AUC, of TF01 and of the test accuracy, as fractions: smaller differences change no board
FLOOR = 0.005
# chance of refusing an honest cell by its intervals, over all comparisons of the cell
_FALSE_ALARMS = 0.05
_NAMES = ("suite", "setting", "coalition")  # for people: a cell may stand in several suites
Verdict = Literal["bit for bit", "within tolerance", "not reproduced", "not repeatable"]


def reproductions(root: Path) -> dict[str, LoadedRecord]:
    """Return the records of the imported cells that were computed again in a results folder, by
    key.
    """
    folder = root / REPRODUCED
    if not record_paths(folder / "records"):
        return {}
    return {r.record.key: r for r in load_records(folder)}


@dataclass(frozen=True)
class Compared:
    """How a claimed record compares with its reproduction."""

    verdict: Verdict
    how: str
    """the largest difference beside its tolerance, or the field that differs"""


def compare(claimed: LoadedRecord, again: LoadedRecord) -> Compared:
    """Compare a claimed record with one of the same key that was computed here.

    Within tolerance: AUC and TF01 of every target and group and the test accuracy differ by at most
    ``FLOOR`` or by the interval of their paired difference, whichever is larger, and facts,
    findings, history, single rounds and decisions agree as :func:`far` says. Times, memory, machine
    and versions are not compared. Raises ``UserError`` for scores that cannot be read.
    """
    old, new = claimed.record, again.record
    if old.outcome != new.outcome:
        reason = f": {new.reason}" if new.reason else ""
        return Compared("not reproduced", f"'{old.outcome}' claimed, '{new.outcome}' here{reason}")
    field = next(differing(claimed, again, _NAMES), None)
    if field is None:
        return Compared("bit for bit", "every score and number is the same")
    if old.outcome != "ok":  # in what round, or with which last digit, may depend on the CPU
        return Compared("within tolerance", f"'{old.outcome}' here, too, but not {field}")
    if old.digests == new.digests:
        return Compared("not reproduced", f"the scores are the same, but not {field}")
    if not _same_samples(claimed, again):
        return Compared("not reproduced", "the candidates or the test samples are others")
    return _of_scores(claimed, again)


def judged(loaded: LoadedRecord, again: LoadedRecord) -> Compared:
    """Return :func:`compare`; a record that was measured here is not repeatable where one type of
    processor gave other bits, or any type a result outside the tolerance.
    """
    compared = compare(loaded, again)
    old, new = loaded.record.provenance, again.record.provenance
    same_processor = (old.cpu_type, old.device) == (new.cpu_type, new.device)
    may_differ = compared.verdict == "within tolerance" and not same_processor
    if loaded.bundle or compared.verdict == "bit for bit" or may_differ:
        return compared
    return Compared("not repeatable", compared.how)


def _same_samples(claimed: LoadedRecord, again: LoadedRecord) -> bool:
    (before, correct), (now, correct_now) = claimed.everything(), again.everything()
    if list(before) != list(now) or len(correct) != len(correct_now):
        return False
    return all(_same_candidates(before[target], c) for target, c in now.items())


def _same_candidates(a: Candidates, b: Candidates) -> bool:
    parts = ("kind", "ids", "in_mix", "canary")
    return all(np.array_equal(getattr(a, part), getattr(b, part)) for part in parts)


def _of_scores(claimed: LoadedRecord, again: LoadedRecord) -> Compared:
    comparison = compare_cells(
        _snapshot(again),
        _snapshot(claimed),
        floors={m.metric: FLOOR for m in MEASURES.values()} | {"tf01": 100 * FLOOR},
        false_alarms=_FALSE_ALARMS,
    )
    worst = max(comparison.rows, key=lambda row: row.excess)
    same_cpu = claimed.record.provenance.cpu_type == again.record.provenance.cpu_type
    note = "; on this type of CPU the same bits were to be expected" if same_cpu else ""
    if worst.excess > 1:
        return Compared("not reproduced", _in_words(worst) + note)
    if field := next(far(claimed, again), None):
        return Compared("not reproduced", f"the scores are within tolerance, but not {field}{note}")
    return Compared("within tolerance", _in_words(worst) + note)


def _snapshot(loaded: LoadedRecord) -> Snapshot:
    """Return one cell for each target, and one for the run."""
    key, seeds = key_of(loaded), {loaded.record.seed: loaded}
    cells = [run_cell(key, seeds)]
    for t in loaded.record.targets:
        of_target = key._replace(attack=f"{key.attack}, target {t.target}")
        cells.append(scored_cell(of_target, seeds, MEASURES, t.target))
    return Snapshot(suite="", made={}, cells={cell.key: cell for cell in cells})


def _in_words(row: ComparedRow) -> str:
    assert row.measure is not None and row.pairing is not None and row.tolerance is not None
    old, new = row.pairing.means
    source = "its paired interval" if row.tolerance == row.half_width else "its floor"
    title = f"{row.measure.title} of {row.key.attack or 'the model'}"
    return f"{title}: {old:.4f} claimed, {new:.4f} here, tolerance {row.tolerance:.4f} ({source})"
