"""Compare the cells of a results folder with a baseline: one verdict a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, get_args

from fedbench.core import UserError
from fedbench.leaderboard.gate.measures import MEASURES, Measure
from fedbench.leaderboard.gate.noise import Pairing, half_widths
from fedbench.leaderboard.gate.snapshot import Cell, Key, Snapshot, changes

Verdict = Literal[
    "worse", "better", "missing", "not-comparable", "moved", "new", "same", "identical"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Side = Literal["defense", "attack"]
FALSE_ALARMS = 0.01
"""the chance that a comparison of two unchanged trees has any cell that is better or worse"""
_MOST_REASONS = 4


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measure of one cell, or (``measure`` None) why a cell has none to compare.

    ``half_width``: of the change's interval, corrected for the number of comparisons;
    ``tolerance``: the larger of it and the floor; ``seeds``: number of seeds (old, new);
    ``changed``: components with changed code.
    """

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
    """``rows``: by verdict, in the order of ``VERDICTS``, then by cell; ``level``: of one interval;
    ``machines``: differences in machine and versions, in words; ``by_bits``: whether there are none
    that let the same code compute other bits.
    """

    suite: str
    side: Side
    rows: tuple[Row, ...]
    compared: int
    level: float
    floors: Mapping[str, float]
    machines: tuple[str, ...]
    by_bits: bool

    @property
    def counts(self) -> Counter[Verdict]:
        """Rows by verdict."""
        return Counter(row.verdict for row in self.rows)

    def failing(self, verdicts: Sequence[str]) -> bool:
        """Whether a row has one of these verdicts, or no number could be compared."""
        return self.compared == 0 or any(self.counts[v] for v in VERDICTS if v in verdicts)


def compare(
    new: Snapshot,
    old: Snapshot,
    *,
    side: Side = "defense",
    floors: Mapping[str, float] | None = None,
    refuse_changed_code: bool = False,
) -> Comparison:
    """``floors``: the smallest change that counts, by metric, in its unit; ``refuse_changed_code``:
    cells with changed code are not comparable. ``UserError`` where the two are of different suites.

    A number is ``identical`` where the scores of every seed are the same bits, ``moved`` where they
    are not and the change does not count. Another machine or library may round differently: there
    nothing is ``moved``, it is the ``same``.

    A change counts beyond max(floor, half-width of its interval), at a level that is corrected for
    the number of comparisons (Bonferroni), so that of a hundred comparisons of unchanged trees one
    is expected to have an alarm, at most.
    """
    if new.suite != old.suite:
        raise UserError(
            f"the results are of suite '{new.suite}', the baseline is of '{old.suite}'; name the "
            f"results of '{old.suite}', or "
            "make a baseline of these"
        )
    found = [
        row
        for key in sorted(old.cells.keys() | new.cells.keys())
        for row in _rows(new, old, key, refuse_changed_code)
    ]
    compared = [(row, pairing) for row, pairing in found if pairing is not None]
    all_floors = {m.metric: m.floor for m in MEASURES.values()} | dict(floors or {})
    level = FALSE_ALARMS / max(len(compared), 1)
    rows = [
        *(row for row, pairing in found if pairing is None),
        *_judged(compared, level, all_floors, side),
    ]
    if not (by_bits := _same_machine(new, old)):
        rows = [replace(row, verdict="same") if row.verdict == "moved" else row for row in rows]
    return Comparison(
        suite=old.suite,
        side=side,
        rows=tuple(sorted(rows, key=_order)),
        compared=len(compared),
        level=level,
        floors=all_floors,
        machines=_machines(new, old),
        by_bits=by_bits,
    )


def _order(row: Row) -> tuple[int, Key, str]:
    return VERDICTS.index(row.verdict), row.key, row.measure.name if row.measure else ""


def _machines(new: Snapshot, old: Snapshot) -> tuple[str, ...]:
    before, now = ({name: ", ".join(values) for name, values in s.made.items()} for s in (old, new))
    names = sorted(before.keys() | now.keys())
    return tuple(
        f"{n} {before.get(n, 'none')} -> {now.get(n, 'none')}"
        for n in names
        if before.get(n) != now.get(n)
    )


def _same_machine(new: Snapshot, old: Snapshot) -> bool:
    """Whether the same code would compute the same bits: one machine type and one version of each
    library, on both sides.
    """
    before, now = (
        {name: values for name, values in s.made.items() if name != "fedbench"} for s in (old, new)
    )
    return before == now and all(len(values) == 1 for values in now.values())


def _rows(
    new: Snapshot, old: Snapshot, key: Key, refuse_changed_code: bool
) -> Iterator[tuple[Row, Pairing | None]]:
    """The rows of a cell, those that can be compared with their values."""
    before, now = old.cells.get(key), new.cells.get(key)
    said = new.unscored.get(key, {})
    if before is None:
        yield Row(key=key, verdict="new"), None
    elif now is None:
        said = said or next((why for k, why in new.unscored.items() if k[:4] == key[:4]), {})
        reasons = _few([f"seed {seed} {why}" for seed, why in said.items()]) or ("no record",)
        yield Row(key=key, verdict="missing", reasons=reasons), None
    else:
        if gone := [
            seed for seed in before.identities if seed not in now.identities and seed in new.seeds
        ]:
            reasons = _few([f"seed {seed} {said.get(seed, 'has no record')}" for seed in gone])
            yield Row(key=key, verdict="missing", reasons=reasons), None
        yield from _of_cell(before, now, refuse_changed_code)


def _few(reasons: Sequence[str]) -> tuple[str, ...]:
    more = (f"and {len(reasons) - _MOST_REASONS} more",) if len(reasons) > _MOST_REASONS else ()
    return (*reasons[:_MOST_REASONS], *more)


def _of_cell(
    before: Cell, now: Cell, refuse_changed_code: bool
) -> Iterator[tuple[Row, Pairing | None]]:
    """A row for each measure that can be compared, with its values; without, why not."""
    common = [seed for seed in before.identities if seed in now.identities]
    paired = len(common) > 1 or (len(common) == len(before.identities) == len(now.identities))
    protocol, code = _changes(before, now, common)
    if reasons := [*protocol, *(code if refuse_changed_code else [])]:
        yield (
            Row(key=now.key, verdict="not-comparable", reasons=_few(reasons), changed=_few(code)),
            None,
        )
        return
    for name, m in MEASURES.items():
        a, b = before.values.get(name, {}), now.values.get(name, {})
        if not a and not b:
            continue
        seeds = (
            ([s for s in common if s in a and s in b],) * 2 if paired else (sorted(a), sorted(b))
        )
        row = Row(
            key=now.key,
            verdict=_by_bits(before, now, name, seeds[0]) if paired else "same",
            measure=m,
            changed=_few(code),
            paired=paired,
            seeds=(len(seeds[0]), len(seeds[1])),
        )
        if all(seeds):
            yield (
                row,
                Pairing(old=[a[s] for s in seeds[0]], new=[b[s] for s in seeds[1]], paired=paired),
            )
        else:
            yield _refused(row, f"{m.title} is not defined on both sides"), None


def _by_bits(before: Cell, now: Cell, measure: str, seeds: Sequence[int]) -> Verdict:
    """``moved`` where scores or values differ; whether the change counts is judged later."""
    old, new = (
        [(cell.digests[s], cell.values[measure][s]) for s in seeds] for cell in (before, now)
    )
    return "identical" if old == new else "moved"


def _refused(row: Row, why: str) -> Row:
    return Row(
        key=row.key,
        verdict="not-comparable",
        measure=row.measure,
        reasons=(why,),
        changed=row.changed,
    )


def _changes(before: Cell, now: Cell, common: Sequence[int]) -> tuple[list[str], list[str]]:
    """(protocol and data, code) that differ in any common seed; without one, between the first of
    either side.
    """
    pairs = [(before.identities[s], now.identities[s], True) for s in common]
    pairs = pairs or [
        (next(iter(before.identities.values())), next(iter(now.identities.values())), False)
    ]
    found = [changes(*pair) for pair in pairs]
    protocol, code = (list(dict.fromkeys(what for one in found for what in one[i])) for i in (0, 1))
    return protocol, code


def _judged(
    pairings: Sequence[tuple[Row, Pairing]], level: float, floors: Mapping[str, float], side: Side
) -> Iterator[Row]:
    def family(item: tuple[Row, Pairing]) -> tuple[str, str, str, str, bool, int, int]:
        row = item[0]
        assert row.measure is not None
        return (
            row.key.setting,
            row.key.attack,
            row.key.view,
            row.measure.name,
            row.paired,
            *row.seeds,
        )

    for _, group in groupby(sorted(pairings, key=family), key=family):
        items = list(group)
        widths = half_widths([pairing for _, pairing in items], level)
        for (row, pairing), width in zip(items, widths, strict=True):
            yield _verdict(row, pairing, width, floors, side)


def _verdict(
    row: Row, pairing: Pairing, width: float | None, floors: Mapping[str, float], side: Side
) -> Row:
    m = row.measure
    assert m is not None
    if width is None and pairing.change != 0:
        return _refused(row, f"{m.title} has no interval with one seed a side")
    tolerance = max(floors[m.metric], width or 0.0)
    verdict = row.verdict
    if abs(pairing.change) > tolerance:
        rose_is_worse = (m.direction == "lower") != (side == "attack" and m.flips)
        verdict = "worse" if (pairing.change > 0) == rose_is_worse else "better"
    old, new = (sum(v.mean for v in values) / len(values) for values in (pairing.old, pairing.new))
    return replace(
        row,
        verdict=verdict,
        old=old,
        new=new,
        change=pairing.change,
        half_width=width,
        tolerance=tolerance,
    )
