"""Every cell of a results folder beside a baseline: better, same, worse, new, missing or not comparable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from fedbench.core import UserError
from fedbench.leaderboard.gate.identity import changes
from fedbench.leaderboard.gate.measures import MEASURES, Measure
from fedbench.leaderboard.gate.noise import Pairing, half_widths
from fedbench.leaderboard.gate.snapshot import Cell, Key, Snapshot

Verdict = Literal["worse", "better", "missing", "not-comparable", "new", "same"]
VERDICTS: tuple[Verdict, ...] = ("worse", "better", "missing", "not-comparable", "new", "same")
Side = Literal["defense", "attack"]
FALSE_ALARMS = 0.01
"""the chance that a comparison of two unchanged trees has any cell that is better or worse"""
_MOST_REASONS = 4


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measure of one cell, or (``measure`` None) why a cell has none to compare. ``half_width``: of the change's
    interval, corrected for the number of comparisons; ``tolerance``: the larger of it and the floor; ``seeds``: how many
    there are (old, new); ``changed``: whose code."""

    key: Key
    verdict: Verdict
    measure: Measure | None = None
    old: float | None = None
    new: float | None = None
    change: float | None = None
    half_width: float | None = None
    tolerance: float | None = None
    paired: bool = True
    seeds: tuple[int, int] = (0, 0)
    changed: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """``rows``: by verdict, in the order of ``VERDICTS``, then by cell; ``level``: of one interval; ``machines``: what of the
    machine and the versions differs, in words."""

    suite: str
    side: Side
    rows: tuple[Row, ...]
    compared: int
    level: float
    floors: Mapping[str, float]
    machines: tuple[str, ...]

    @property
    def counts(self) -> Counter[Verdict]:
        """Rows by verdict."""
        return Counter(row.verdict for row in self.rows)

    def failing(self, verdicts: Sequence[str]) -> bool:
        """Whether a row has one of these verdicts, or nothing could be compared at all."""
        return self.compared == 0 or any(self.counts[v] for v in VERDICTS if v in verdicts)


def compare(
    new: Snapshot, old: Snapshot, *, side: Side = "defense", floors: Mapping[str, float] | None = None, same_code: bool = False,
    false_alarms: float = FALSE_ALARMS,
) -> Comparison:  # fmt: skip
    """``floors``: the smallest change that counts, by metric, in its unit; ``same_code``: cells whose code changed are not
    compared. ``UserError`` where the two are of different suites.

    A change counts beyond max(floor, half-width of its interval), whose level is corrected for the number of comparisons
    (Bonferroni), so that of a hundred comparisons of unchanged trees one is expected to have an alarm, at most.
    """
    if new.suite != old.suite:
        raise UserError(
            f"the results are of suite '{new.suite}', the baseline is of '{old.suite}'; name the results of '{old.suite}', or "
            "make a baseline of these"
        )
    found: list[Row] = []
    pairings: list[tuple[Row, Pairing]] = []
    for key in sorted(old.cells.keys() | new.cells.keys()):
        before, now = old.cells.get(key), new.cells.get(key)
        if before is None:
            found.append(Row(key=key, verdict="new"))
        elif now is None:
            found.append(Row(key=key, verdict="missing", reasons=_why_gone(new, key)))
        else:
            found += _lacking(new, before, now)
            rows = list(_of_cell(before, now, _redefined(new, old), same_code))
            found += [row for row, pairing in rows if pairing is None]
            pairings += [(row, pairing) for row, pairing in rows if pairing is not None]
    all_floors = {m.metric: m.floor for m in MEASURES.values()} | dict(floors or {})
    level = false_alarms / max(len(pairings), 1)
    found += _judged(pairings, level, all_floors, side)
    return Comparison(
        suite=old.suite, side=side, rows=tuple(sorted(found, key=_order)), compared=len(pairings), level=level,
        floors=all_floors, machines=_machines(new, old),
    )  # fmt: skip


def _order(row: Row) -> tuple[int, Key, str]:
    return VERDICTS.index(row.verdict), row.key, row.measure.name if row.measure else ""


def _redefined(new: Snapshot, old: Snapshot) -> dict[str, str]:
    """Measure -> what changed in its definition."""
    return {
        name: f"definition of {name} {old.definitions.get(name, 'none')} -> {said}"
        for name, said in new.definitions.items() if old.definitions.get(name) != said
    }  # fmt: skip


def _machines(new: Snapshot, old: Snapshot) -> tuple[str, ...]:
    before, now = ({name: ", ".join(values) for name, values in s.made.items()} for s in (old, new))
    names = sorted(before.keys() | now.keys())
    return tuple(f"{n} {before.get(n, 'none')} -> {now.get(n, 'none')}" for n in names if before.get(n) != now.get(n))


def _why_gone(new: Snapshot, key: Key) -> tuple[str, ...]:
    """Of a cell without scores: as its records say, or that there are none."""
    said = new.unscored.get(key) or next((w for k, w in new.unscored.items() if k[:4] == key[:4]), {})
    return _few([f"seed {seed} {why}" for seed, why in said.items()]) or ("no record",)


def _lacking(new: Snapshot, before: Cell, now: Cell) -> Iterator[Row]:
    """A cell lacks a seed that the baseline has and its folder has elsewhere."""
    gone = [seed for seed in before.identities if seed not in now.identities and seed in new.seeds]
    if gone:
        said = new.unscored.get(now.key, {})
        reasons = _few([f"seed {seed} {said.get(seed, 'has no record')}" for seed in gone])
        yield Row(key=now.key, verdict="missing", reasons=reasons)


def _few(reasons: Sequence[str]) -> tuple[str, ...]:
    more = (f"and {len(reasons) - _MOST_REASONS} more",) if len(reasons) > _MOST_REASONS else ()
    return (*reasons[:_MOST_REASONS], *more)


def _of_cell(before: Cell, now: Cell, redefined: Mapping[str, str], same_code: bool) -> Iterator[tuple[Row, Pairing | None]]:
    """A row for each measure that can be compared, with its values; without, why not."""
    common = [seed for seed in before.identities if seed in now.identities]
    paired = len(common) > 1 or (len(common) == len(before.identities) == len(now.identities))
    protocol, code = _changes(before, now, common)
    reasons = [*protocol, *(code if same_code else [])]
    if reasons:
        yield Row(key=now.key, verdict="not-comparable", reasons=_few(reasons), changed=_few(code)), None
        return
    for name, m in MEASURES.items():
        a, b = before.values.get(name, {}), now.values.get(name, {})
        if not a and not b:
            continue
        seeds = ([s for s in common if s in a and s in b],) * 2 if paired else (sorted(a), sorted(b))
        row = Row(key=now.key, verdict="same", measure=m, changed=_few(code), paired=paired, seeds=(len(seeds[0]), len(seeds[1])))
        if why := redefined.get(name) or (None if all(seeds) else f"{m.title} is not defined on both sides"):
            yield _refused(row, why), None
        else:
            yield row, Pairing(old=[a[s] for s in seeds[0]], new=[b[s] for s in seeds[1]], paired=paired)


def _refused(row: Row, why: str) -> Row:
    return Row(key=row.key, verdict="not-comparable", measure=row.measure, reasons=(why,), changed=row.changed)


def _changes(before: Cell, now: Cell, common: Sequence[int]) -> tuple[list[str], list[str]]:
    """(protocol and data, code) that differ in any common seed; without one, between the first of either side."""
    pairs = [(before.identities[s], now.identities[s], True) for s in common]
    pairs = pairs or [(next(iter(before.identities.values())), next(iter(now.identities.values())), False)]
    found = [changes(*pair) for pair in pairs]
    protocol, code = (list(dict.fromkeys(what for one in found for what in one[i])) for i in (0, 1))
    return protocol, code


def _judged(pairings: Sequence[tuple[Row, Pairing]], level: float, floors: Mapping[str, float], side: Side) -> Iterator[Row]:
    def family(item: tuple[Row, Pairing]) -> tuple[str, str, str, str, bool, int, int]:
        row = item[0]
        assert row.measure is not None
        return (row.key.setting, row.key.attack, row.key.view, row.measure.name, row.paired, *row.seeds)

    for _, group in groupby(sorted(pairings, key=family), key=family):
        items = list(group)
        widths = half_widths([pairing for _, pairing in items], level)
        for (row, pairing), width in zip(items, widths, strict=True):
            yield _verdict(row, pairing, width, floors, side)


def _verdict(row: Row, pairing: Pairing, width: float | None, floors: Mapping[str, float], side: Side) -> Row:
    m = row.measure
    assert m is not None
    if width is None and pairing.change != 0:
        return _refused(row, f"{m.title} has no interval with one seed a side")
    tolerance = max(floors[m.metric], width or 0.0)
    verdict: Verdict = "same"
    if abs(pairing.change) > tolerance:
        rose_is_worse = (m.direction == "lower") != (side == "attack" and m.flips)
        verdict = "worse" if (pairing.change > 0) == rose_is_worse else "better"
    old, new = (sum(v.mean for v in values) / len(values) for values in (pairing.old, pairing.new))
    return Row(
        key=row.key, verdict=verdict, measure=m, old=old, new=new, change=pairing.change, half_width=width, tolerance=tolerance,
        paired=row.paired, seeds=row.seeds, changed=row.changed,
    )  # fmt: skip
