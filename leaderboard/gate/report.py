"""A comparison for a pull request: how it ended in a line, what fails first, what is the same
folded away; and as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedbench.core.contract.board import (
    Block,
    Bullets,
    Column,
    Content,
    Heading,
    Note,
    Part,
    Table,
    Text,
    Words,
)
from fedbench.leaderboard.gate.measures import MEASURES
from fedbench.leaderboard.gate.verdict import FALSE_ALARMS, VERDICTS, Comparison, Row
from fedbench.leaderboard.markdown import paragraphs
from fedbench.leaderboard.tables.common import joined

JSON_SCHEMA = 2
_FOLDED = ("new", "same", "identical")
_SAID = {"not-comparable": "not comparable"}
_COLUMNS = (
    *(
        Column(name=Words(name), align="left")
        for name in ("verdict", "setting", "coalition", "defense", "attack", "measure")
    ),
    *(Column(name=Words(name)) for name in ("baseline", "now", "change", "tolerance")),
    Column(name=Words("reason, changed code"), align="left"),
)


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A comparison, and the verdicts that fail it."""

    comparison: Comparison
    fail_on: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether the exit status is 1."""
        return self.comparison.failing(self.fail_on)


def markdown(gate: Gate) -> str:
    """Rows that fail, then the other ones; the same and the new ones in a ``<details>``."""
    c = gate.comparison
    failing = [row for row in c.rows if row.verdict in gate.fail_on]
    shown = [row for row in c.rows if row not in failing and row.verdict not in _FOLDED]
    folded = [row for row in c.rows if row not in failing and row.verdict in _FOLDED]
    found = _written([Heading(3, (Words("Regression gate: "), c.suite)), Note(_summary(gate))])
    for title, rows in (("These fail the gate", failing), ("These do not", shown)):
        found += _written([_table(title, rows)] if rows else [])
    if folded:
        counts = ", ".join(
            f"{c.counts[v]} {v}"
            for v in VERDICTS
            if v in _FOLDED and v not in gate.fail_on and c.counts[v]
        )
        found += [
            f"<details><summary>{counts}</summary>",
            *_written([_table("", folded)]),
            "</details>",
        ]
    return "\n\n".join(found + _written([_method(gate)])) + "\n"


def as_json(gate: Gate) -> str:
    """Numbers in the units of their metrics; the same rows in the same order."""
    c = gate.comparison
    content = {
        "schema": JSON_SCHEMA,
        "kind": "fedbench comparison",
        "suite": c.suite,
        "for": c.side,
        "fail_on": list(gate.fail_on),
        "failed": gate.failed,
        "compared": c.compared,
        "level": c.level,
        "floors": dict(c.floors),
        "machines": list(c.machines),
        "by_bits": c.by_bits,
        "counts": {v: c.counts[v] for v in VERDICTS},
        "rows": [_plain(row) for row in c.rows],
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(row: Row) -> dict[str, Any]:
    numbers = {
        name: getattr(row, name) for name in ("old", "new", "change", "half_width", "tolerance")
    }
    return {
        "verdict": row.verdict,
        **row.key._asdict(),
        "measure": row.measure.name if row.measure else None,
        **numbers,
        "paired": row.paired,
        "seeds": list(row.seeds),
        "changed": list(row.changed),
        "reasons": list(row.reasons),
    }


def _written(blocks: Sequence[Block]) -> list[str]:
    return [paragraph for block in blocks for paragraph in paragraphs(block)]


def _summary(gate: Gate) -> Text:
    c = gate.comparison
    counts = ", ".join(f"{c.counts[v]} {_SAID.get(v, v)}" for v in VERDICTS if c.counts[v])
    nothing = (
        " No number could be compared, which fails whatever is asked for."
        if c.compared == 0
        else ""
    )
    ended = Words("failed" if gate.failed else "passed", "strong")
    asked = f", read for the {c.side}; fails on {', '.join(gate.fail_on) or 'nothing'}.{nothing}"
    return Words("The gate "), ended, Words(f": {counts}{asked}")


def _table(title: str, rows: Sequence[Row]) -> Table:
    return Table(title=title, columns=_COLUMNS, rows=tuple(_cells(row) for row in rows))


def _cells(row: Row) -> tuple[Content, ...]:
    key, m = row.key, row.measure
    attack: Text = key.attack or ((Words("under "), key.adversary) if key.adversary else Words("–"))  # noqa: RUF001
    names = (
        Words(_SAID.get(row.verdict, row.verdict)),
        key.setting,
        key.coalition,
        key.defense,
        attack,
    )
    if m is None or row.change is None:
        return (*names, Words(m.title if m else ""), *[Words("")] * 4, _why(row))
    numbers = [
        _number(row, row.old),
        _number(row, row.new),
        _change(row),
        _number(row, row.tolerance),
    ]
    return (*names, Words(m.title + (f" ({m.unit})" if m.unit else "")), *numbers, _why(row))


def _number(row: Row, value: float | None) -> Words:
    m = row.measure
    assert m is not None and value is not None
    return Words(f"{value * m.scale:.{m.digits}f}")


def _change(row: Row) -> Words:
    m = row.measure
    assert m is not None and row.change is not None
    width = "" if row.half_width is None else f" ± {row.half_width * m.scale:.{m.digits}f}"
    return Words(f"{row.change * m.scale + 0.0:+.{m.digits}f}{width}")


def _why(row: Row) -> Text:
    said: list[Text] = [*row.reasons, *(what for what in row.changed if what not in row.reasons)]
    unpaired: list[Text] = (
        []
        if row.paired or row.change is None
        else [Words(f"{row.seeds[0]} and {row.seeds[1]} other seeds")]
    )
    return joined([*said, *unpaired], "; ")


def _method(gate: Gate) -> Block:
    c = gate.comparison
    compared = [row for row in c.rows if row.change is not None]
    titles = {
        m.metric: f"{c.floors[m.metric] * m.scale:g} {m.unit}".strip() for m in MEASURES.values()
    }
    floors = ", ".join(f"{name} {floor}" for name, floor in titles.items())
    pairs = sorted({row.seeds[1] for row in compared if row.paired})
    seeds = (
        f"{' or '.join(map(str, pairs))} paired seeds"
        if pairs
        else "no seed in common, so that intervals are unpaired"
    )
    lines: list[tuple[Part, ...]] = [
        (
            Words(
                f"{c.compared} numbers compared on {seeds}. Tolerance: the larger of the floor "
                f"({floors}) and the half-width of the "
                f"interval of the change, at a level of {FALSE_ALARMS:.0%} for all of them "
                "together (Bonferroni)."
            ),
        )
    ]
    code = list(dict.fromkeys(what for row in c.rows for what in row.changed))
    lines += [(Words("Code that changed: "), *joined([*code], "; "))] if code else []
    lines += (
        [(Words("Other machine or versions: "), *joined([*c.machines], "; "))] if c.machines else []
    )
    lines += (
        []
        if c.by_bits
        else [
            (
                Words(
                    "Bits cannot agree: a number that moved within its tolerance is called the "
                    "same."
                ),
            )
        ]
    )
    return Bullets(tuple(lines))
