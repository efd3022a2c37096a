"""Compare the cells of two snapshots: one verdict a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from fedbench.core import UserError
from fedbench.leaderboard.comparison.cells import Cell, Key, Snapshot, changes
from fedbench.leaderboard.comparison.intervals import Pairing, half_widths
from fedbench.leaderboard.comparison.measures import MEASURES, Measure

Verdict = Literal[
    "refuted", "worse", "better", "missing", "not-comparable", "moved", "new", "same", "identical"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Side = Literal["defense", "attack"]
FALSE_ALARMS = 0.01
"""the chance that a comparison of two unchanged trees has any cell that is better or worse"""
_MOST_REASONS = 4


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """A measure of one cell or, without a ``measure``, why a cell has none to compare."""

    key: Key
    verdict: Verdict
    measure: Measure | None = None
    pairing: Pairing | None = None
    """the values; None where they cannot be compared"""
    half_width: float | None = None
    """of the change's interval, corrected for the number of comparisons"""
    tolerance: float | None = None
    """the larger of half-width and floor"""
    changed: tuple[str, ...] = ()
    """components with changed code"""
    reasons: tuple[str, ...] = ()

    @property
    def change(self) -> float | None:
        """Return new minus old."""
        return None if self.pairing is None else self.pairing.change

    @property
    def seeds(self) -> int:
        """Return the number of seeds that are compared."""
        return 0 if self.pairing is None else len(self.pairing.old)

    @property
    def excess(self) -> float:
        """Return the size of the change over its tolerance."""
        return abs(self.change or 0.0) / (self.tolerance or 1.0)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows by verdict, in the order of ``VERDICTS``, then by cell."""

    suite: str
    side: Side
    rows: tuple[ComparedRow, ...]
    compared: int
    """numbers with an interval"""
    level: float
    """of one interval"""
    floors: Mapping[str, float]
    machines: tuple[str, ...]
    """differences in machine and versions, in words"""
    by_bits: bool
    """whether machine and versions let the same code compute the same bits"""

    @property
    def counts(self) -> Counter[Verdict]:
        """Return the number of rows by verdict."""
        return Counter(row.verdict for row in self.rows)

    def failing(self, verdicts: Sequence[str]) -> bool:
        """Return whether a row has one of these verdicts, or no number could be compared."""
        return self.compared == 0 or any(row.verdict in verdicts for row in self.rows)


def compare(
    new: Snapshot,
    old: Snapshot,
    *,
    side: Side = "defense",
    floors: Mapping[str, float] | None = None,
    false_alarms: float = FALSE_ALARMS,
) -> Comparison:
    """Compare two snapshots of one suite.

    A number is ``identical`` where the scores of every seed are the same bits, ``moved`` where they
    are not and the change does not count. Another machine or library may round differently: there
    nothing is ``moved``, it is the ``same``. ``refuted`` is of the new results alone: a row that
    claims a smaller epsilon than its coins show.

    Args:
        side: who reads it.
        floors: the smallest change that counts, by metric, in its unit.
        false_alarms: the chance that any number of unchanged cells counts as changed (Bonferroni).

    Raises:
        UserError: the two are of different suites.
    """
    if new.suite != old.suite:
        raise UserError(
            f"the results are of suite '{new.suite}', the baseline is of '{old.suite}'; name the "
            f"results of '{old.suite}', or "
            "make a baseline of these"
        )
    by_bits = _same_machine(new, old)
    rows: list[ComparedRow] = []
    for key in sorted(old.cells.keys() | new.cells.keys()):
        rows += _rows(new, old, key)
    for key, reason in new.refuted.items():
        rows.append(ComparedRow(key=key, verdict="refuted", reasons=(reason,)))
    compared = sum(row.pairing is not None for row in rows)
    level = false_alarms / max(compared, 1)
    all_floors = {m.metric: m.floor for m in MEASURES.values()} | dict(floors or {})
    rows = [_verdict(row, all_floors, side, by_bits) for row in _with_intervals(rows, level)]
    return Comparison(
        suite=old.suite,
        side=side,
        rows=tuple(sorted(rows, key=_order)),
        compared=compared,
        level=level,
        floors=all_floors,
        machines=_machines(new, old),
        by_bits=by_bits,
    )


def _order(row: ComparedRow) -> tuple[int, Key, str]:
    return VERDICTS.index(row.verdict), row.key, row.measure.name if row.measure else ""


def _machines(new: Snapshot, old: Snapshot) -> tuple[str, ...]:
    lines = []
    for name in sorted(old.made.keys() | new.made.keys()):
        before = ", ".join(old.made.get(name, ["none"]))
        now = ", ".join(new.made.get(name, ["none"]))
        if before != now:
            lines.append(f"{name} {before} -> {now}")
    return tuple(lines)


def _same_machine(new: Snapshot, old: Snapshot) -> bool:
    """Return whether both sides have one type of machine and one version of each library."""
    names = (old.made.keys() | new.made.keys()) - {"fedbench"}
    return all(old.made.get(n) == new.made.get(n) and len(new.made[n]) == 1 for n in names)


# -- rows of a cell, not judged yet ----------------------------------------------------------------


def _rows(new: Snapshot, old: Snapshot, key: Key) -> Iterator[ComparedRow]:
    before, now = old.cells.get(key), new.cells.get(key)
    why = new.unscored.get(key, {})
    if before is None:
        yield ComparedRow(key=key, verdict="new")
    elif now is None:
        # the attack's own reason, or that of another one on the same run
        run = (lines for cell, lines in new.unscored.items() if cell[:4] == key[:4])
        reasons = [f"seed {seed} {reason}" for seed, reason in (why or next(run, {})).items()]
        yield ComparedRow(key=key, verdict="missing", reasons=_few(reasons or ["no record"]))
    else:
        # a seed that no record is of was left out on purpose
        computed = set(new.seeds).union(*new.unscored.values())
        gone = before.identities.keys() & computed - now.identities.keys()
        if gone:
            reasons = [f"seed {seed} {why.get(seed, 'has no record')}" for seed in sorted(gone)]
            yield ComparedRow(key=key, verdict="missing", reasons=_few(reasons))
        yield from _of_cell(before, now)


def _few(reasons: Sequence[str]) -> tuple[str, ...]:
    if len(reasons) <= _MOST_REASONS:
        return tuple(reasons)
    return (*reasons[:_MOST_REASONS], f"and {len(reasons) - _MOST_REASONS} more")


def _of_cell(before: Cell, now: Cell) -> Iterator[ComparedRow]:
    row = ComparedRow(key=now.key, verdict="not-comparable")
    seeds = [seed for seed in before.identities if seed in now.identities]
    if not seeds:
        yield replace(row, reasons=("no seed in common",))
        return
    protocol, code = _changes(before, now, seeds)
    row = replace(row, changed=_few(code))
    if protocol:
        yield replace(row, reasons=_few(protocol))
        return
    for name in sorted(before.values.keys() | now.values.keys()):
        yield _of_measure(before, now, replace(row, measure=MEASURES[name]))


def _of_measure(before: Cell, now: Cell, row: ComparedRow) -> ComparedRow:
    assert row.measure is not None
    old = before.values.get(row.measure.name, {})
    new = now.values.get(row.measure.name, {})
    seeds = [seed for seed in old if seed in new]
    if not seeds:
        return replace(row, reasons=(f"{row.measure.title} is not defined on both sides",))
    same_scores = all(before.digests[seed] == now.digests[seed] for seed in seeds)
    pairing = Pairing(old=[old[seed] for seed in seeds], new=[new[seed] for seed in seeds])
    same = same_scores and pairing.old == pairing.new
    return replace(row, verdict="identical" if same else "moved", pairing=pairing)


def _changes(before: Cell, now: Cell, seeds: Sequence[int]) -> tuple[list[str], list[str]]:
    """Return (protocol and data, code) that differ in any of the seeds."""
    protocol: dict[str, None] = {}
    code: dict[str, None] = {}
    for seed in seeds:
        of_protocol, of_code = changes(before.identities[seed], now.identities[seed])
        protocol |= dict.fromkeys(of_protocol)
        code |= dict.fromkeys(of_code)
    return list(protocol), list(code)


# -- verdicts --------------------------------------------------------------------------------------


def _with_intervals(rows: Sequence[ComparedRow], level: float) -> Iterator[ComparedRow]:
    """Yield the rows with the half-widths of their intervals, family by family."""
    families: dict[object, list[tuple[ComparedRow, Pairing]]] = {}
    for row in rows:
        if row.pairing is None or row.measure is None:
            yield row
            continue
        key = row.key
        family = key.setting, key.attack, key.view, row.measure.name, row.seeds
        families.setdefault(family, []).append((row, row.pairing))
    for items in families.values():
        widths = half_widths([pairing for _, pairing in items], level)
        for (row, _), width in zip(items, widths, strict=True):
            yield replace(row, half_width=width)


def _verdict(
    row: ComparedRow, floors: Mapping[str, float], side: Side, by_bits: bool
) -> ComparedRow:
    m, change = row.measure, row.change
    if m is None or change is None:
        return row
    if row.half_width is None and change != 0:
        reason = f"{m.title} has no interval with one seed"
        return replace(row, verdict="not-comparable", pairing=None, reasons=(reason,))
    tolerance = max(floors[m.metric], row.half_width or 0.0)
    verdict = row.verdict
    if abs(change) > tolerance:
        rise_is_worse = (m.direction == "lower") != (side == "attack" and m.flips)
        verdict = "worse" if (change > 0) == rise_is_worse else "better"
    elif verdict == "moved" and not by_bits:
        verdict = "same"
    return replace(row, verdict=verdict, tolerance=tolerance)
