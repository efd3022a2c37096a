"""A gate for a pull request: ceilings, and a comparison with how it ended in a line, what fails
first, what is the same folded away; and as JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedbench.core.contract.board import (
    Block,
    Bullets,
    Content,
    Fold,
    Heading,
    Note,
    Table,
    Text,
    Words,
)
from fedbench.leaderboard.comparison.compare import FALSE_ALARMS, VERDICTS, ComparedRow, Comparison
from fedbench.leaderboard.comparison.measures import MEASURES, Measure
from fedbench.leaderboard.gate.ceilings import Ceiling, ceiling_table
from fedbench.leaderboard.markdown import render
from fedbench.leaderboard.tables.common import joined, number, numbers, words

JSON_SCHEMA = 3
_FOLDED = ("new", "same", "identical")
_TEXTS = ("verdict", "setting", "coalition", "defense", "attack", "measure")
_COLUMNS = (
    *map(words, _TEXTS),
    *map(numbers, ("baseline", "now", "change", "tolerance")),
    words("reason, changed code"),
)


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A comparison with the verdicts that fail it, ceilings, or both."""

    comparison: Comparison | None = None
    fail_on: tuple[str, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()

    @property
    def failed(self) -> bool:
        """Return whether the exit status is 1."""
        above = not all(ceiling.passed for ceiling in self.ceilings)
        return above or (self.comparison is not None and self.comparison.failing(self.fail_on))


def as_json(gate: Gate) -> str:
    """Return the gate for programs: numbers in the ``unit`` beside them."""
    ceilings = [asdict(c) | {"unit": c.unit, "verdict": c.verdict} for c in gate.ceilings]
    content = {
        "schema": JSON_SCHEMA,
        "kind": "fedbench comparison",
        "failed": gate.failed,
        "ceilings": ceilings,
    }
    if gate.comparison is not None:
        content |= _comparison(gate.comparison, gate.fail_on)
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _comparison(c: Comparison, fail_on: Sequence[str]) -> dict[str, Any]:
    return {
        "suite": c.suite,
        "for": c.side,
        "fail_on": list(fail_on),
        "compared": c.compared,
        "level": c.level,
        "floors": dict(c.floors),
        "machines": list(c.machines),
        "by_bits": c.by_bits,
        "counts": {v: c.counts[v] for v in VERDICTS},
        "rows": [_fields(row) for row in c.rows],
    }


def _fields(row: ComparedRow) -> dict[str, Any]:
    old = new = None
    if row.pairing is not None:
        old, new = row.pairing.means
    return {
        "verdict": row.verdict,
        **row.key._asdict(),
        "measure": row.measure.name if row.measure else None,
        "unit": row.measure.stored_unit if row.measure else None,
        "old": old,
        "new": new,
        "change": row.change,
        "half_width": row.half_width,
        "tolerance": row.tolerance,
        "seeds": row.seeds,
        "changed": list(row.changed),
        "reasons": list(row.reasons),
    }


def markdown(gate: Gate) -> str:
    """Return the ceilings, then the comparison."""
    blocks: list[Block] = []
    if gate.ceilings:
        blocks += [Heading(3, Words("Ceilings")), Note(_under(gate.ceilings))]
        blocks.append(ceiling_table(gate.ceilings))
    if gate.comparison is not None:
        blocks += _compared(gate, gate.comparison)
    return render(blocks)


def _under(ceilings: Sequence[Ceiling]) -> Text:
    failing = sum(not ceiling.passed for ceiling in ceilings)
    verdict = Words("failed" if failing else "passed", "strong")
    end = (
        f": {failing} of {len(ceilings)} numbers are above or not known. The upper end of the 95 % "
        "interval is compared; where there is none, the number is not known."
    )
    return Words("The ceilings "), verdict, Words(end)


def _compared(gate: Gate, c: Comparison) -> list[Block]:
    """Return rows that fail, then the other ones; the same and the new ones in a fold."""
    failing = [row for row in c.rows if row.verdict in gate.fail_on]
    passing = [row for row in c.rows if row.verdict not in gate.fail_on]
    folded = [row for row in passing if row.verdict in _FOLDED]
    unfolded = [row for row in passing if row.verdict not in _FOLDED]
    blocks: list[Block] = [
        Heading(3, (Words("Regression gate: "), c.suite)),
        Note(_summary(gate, c)),
    ]
    for title, rows in (("These fail the gate", failing), ("These do not", unfolded)):
        if rows:
            blocks.append(_table(title, rows))
    if folded:
        counts = Counter(row.verdict for row in folded)
        summary = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
        blocks.append(Fold(Words(summary), (_table("", folded),)))
    return [*blocks, _method(c)]


def _summary(gate: Gate, c: Comparison) -> Text:
    counts = ", ".join(f"{c.counts[v]} {_in_words(v)}" for v in VERDICTS if c.counts[v])
    end = f": {counts}, read for the {c.side}; fails on {', '.join(gate.fail_on) or 'nothing'}."
    if c.compared == 0:
        end += " No number could be compared, which fails whatever is asked for."
    verdict = Words("failed" if c.failing(gate.fail_on) else "passed", "strong")
    return Words("The gate "), verdict, Words(end)


def _in_words(verdict: str) -> str:
    return verdict.replace("not-comparable", "not comparable")


def _table(title: str, rows: Sequence[ComparedRow]) -> Table:
    return Table(title=title, columns=_COLUMNS, rows=tuple(map(_cells, rows)))


def _cells(row: ComparedRow) -> tuple[Content, ...]:
    key = row.key
    attack: Text = key.attack or Words("–")  # noqa: RUF001
    if key.adversary and not key.attack:
        attack = (Words("under "), key.adversary)
    names = Words(_in_words(row.verdict)), key.setting, key.coalition, key.defense, attack
    reasons: list[Text] = list(dict.fromkeys([*row.reasons, *row.changed]))
    m, pairing = row.measure, row.pairing
    if m is None or pairing is None:
        return (*names, Words(m.title if m else ""), *[Words("")] * 4, joined(reasons, "; "))
    unit = f" ({m.unit})" if m.unit else ""
    old, new = pairing.means
    change = _amount(m, pairing.change, signed=True)
    if row.half_width is not None:
        change += f" ± {_amount(m, row.half_width)}"
    texts = m.title + unit, _amount(m, old), _amount(m, new), change
    tolerance = Words(_amount(m, row.tolerance or 0.0))
    return (*names, *map(Words, texts), tolerance, joined(reasons, "; "))


def _amount(m: Measure, value: float, signed: bool = False) -> str:
    return number(value * m.scale, m.digits, signed)


def _method(c: Comparison) -> Block:
    floors: dict[str, None] = {}
    compared = {row.measure.name for row in c.rows if row.measure}
    for m in (m for m in MEASURES.values() if m.name in compared):
        floor = f"{m.metric} {c.floors[m.metric] * m.scale:g} {m.unit}"
        floors[floor.strip()] = None
    numbers_of_seeds = map(str, sorted({row.seeds for row in c.rows if row.pairing}))
    lines: list[Text] = [
        Words(
            f"{c.compared} numbers compared on {' or '.join(numbers_of_seeds) or 'no'} paired "
            "seeds. Tolerance: the larger of the floor "
            f"({', '.join(floors)}) and the half-width of the interval of the change, at "
            f"a level of {FALSE_ALARMS:.0%} for all of them together (Bonferroni)."
        )
    ]
    code: dict[str, None] = {}
    for row in c.rows:
        code |= dict.fromkeys(row.changed)
    for start, texts in (
        ("Code that changed: ", code),
        ("Other machine or versions: ", c.machines),
    ):
        if texts:
            lines.append((Words(start), *joined(texts, "; ")))
    if not c.by_bits:
        end = "a number that moved within its tolerance is called the same."
        lines.append(Words(f"Bits cannot agree: {end}"))
    return Bullets(tuple(lines))
