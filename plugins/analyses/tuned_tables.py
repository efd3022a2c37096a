"""What was chosen for each defense, what that is worth on the reported seeds, and one defense against all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedbench.core import (
    Block,
    Column,
    Content,
    Note,
    Section,
    Standing,
    Strengths,
    Table,
    Text,
    Value,
    Words,
    pareto_front,
    value,
)
from fedbench.plugins.analyses.paired_differences import verdict

At = Literal["matched", "best"]
_DEFENSE = Column(name=Words("defense"), align="left")
_WORST = Column(name=Words("worst case AUC"), direction="lower")
_DELTA = Column(name=Words("delta-accuracy"), unit="pp", direction="higher", digits=2, scale=100, signed=True)
_ACCURACY = Column(name=Words("accuracy"), unit="%", direction="higher", digits=1, scale=100)


def chosen_table(section: Section, found: Sequence[Strengths], at: At, within: float) -> Table:
    """Every defense at what was chosen ``at`` matched accuracy, or as the best: numbers of the reported seeds alone."""
    taken = {c.family: label for c in found if (label := chosen(c, at)) is not None}
    taken |= (plain := {r.label: r.label for r in section.rows if r.undefended})
    stands = {name: section.standing(label) for name, label in taken.items()}
    known = [s for s in stands.values() if s is not None]
    ranks, front = section.ranks([s.label for s in known]), on_front(known)
    lines = [
        (
            _rank(ranks.get(taken[name])), name, Words("undefended") if name in plain else _said(taken[name], s),
            *_numbers(s, front, name in plain),
        )
        for name, s in sorted(stands.items(), key=lambda item: (_order(item[1]), item[0]))
    ]  # fmt: skip
    lines += [(_rank(None), c.family, none_chosen(c, at, within), *_numbers(None, front)) for c in found if not chosen(c, at)]
    columns = (
        Column(name=Words("#"), align="left"), _DEFENSE, Column(name=Words("strength"), align="left"), _WORST,
        Column(name=Words("worst TF01"), unit="%", direction="lower", digits=2), _DELTA, _ACCURACY,
        Column(name=Words("on the front"), align="left"),
    )  # fmt: skip
    rule = {
        "matched": f": of the strengths that lose at most {within:g} pp on average, the one of lowest worst case AUC",
        "best": ": the strength of largest (1 - advantage) x accuracy, with the advantage 2 AUC - 1 of the worst case",
    }[at]
    title = {"matched": "Tuned defenses at matched accuracy", "best": "Tuned defenses at their best"}[at]
    caption = Words(f"{rule}. Chosen on the tuning seeds; all numbers are of the reported ones, and ranks are among these rows")
    return Table(title=title, caption=caption, columns=columns, rows=tuple(lines))


def chosen(choice: Strengths, at: At) -> str | None:
    """The label taken."""
    return choice.matched if at == "matched" else choice.best


def strength_of(label: str) -> str:
    """What a label says of the strength: ``sigma=0.1`` of ``grad-noise[sigma=0.1]``, else the label itself."""
    inner = label.partition("[")[2].removesuffix("]")
    return inner or label


def none_chosen(choice: Strengths, at: At, within: float) -> Text:
    """Why there is none, and which strength comes nearest."""
    known = [s for s in choice.strengths if s.complete and s.worst is not None]
    deltas = {s.label: s.delta_accuracy.mean for s in known if s.delta_accuracy is not None}
    if at == "best" or not known:
        return Words("none has all its scores on the tuning seeds")
    if not deltas:
        return Words("none can be matched: no undefended run on the tuning seeds")
    near = max(deltas, key=lambda label: deltas[label])
    said = f"none within {within:g} pp; nearest on the tuning seeds, at {100 * deltas[near]:+.2f} pp: "
    return (Words(said), strength_of(near))


def on_front(rows: Sequence[Standing]) -> dict[str, bool]:
    """Label -> whether no other row of these is as private and as accurate, and once better."""
    known = [s for s in rows if s.worst is not None and s.accuracy is not None]
    best = pareto_front(np.array([(Strengths.advantage(s), 1 - Strengths.accuracy(s)) for s in known]).reshape(-1, 2))
    return {s.label: bool(b) for s, b in zip(known, best, strict=True)}


def comparison(section: Section, found: Sequence[Strengths], compared: str) -> Block:
    """The choices of one defense minus those of every other one, at matched accuracy and at their best."""
    own = next((c for c in found if c.family == compared), None)
    if own is None:
        return Note((Words("No tuned defense here is called "), compared, Words(", so none is compared with the others.")))
    asked: list[tuple[At, str, str, str]] = []
    for at in ("matched", "best"):
        mine = chosen(own, at)
        asked += [(at, c.family, mine, theirs) for c in found if c is not own and mine and (theirs := chosen(c, at))]
    duels = {(d.first, d.second): d for d in section.duels([(a, b) for *_, a, b in asked])}
    rows = tuple(
        (Words(at), name, value(d.worst), Words(verdict(d)), value(d.accuracy))
        for at, name, a, b in asked
        if (d := duels.get((a, b))) is not None
    )
    columns = (
        Column(name=Words("chosen"), align="left"), Column(name=Words("minus"), align="left"),
        Column(name=Words("worst case AUC"), direction="lower", signed=True), Column(name=Words("it leaks"), align="left"),
        Column(name=Words("accuracy"), unit="pp", direction="higher", digits=2, scale=100, signed=True),
    )  # fmt: skip
    caption = (
        Words(": "), compared, Words(
            " minus each rival, both as chosen, on the same candidates and reported seeds; verdicts at 95 % for all lines "
            "together (Holm)"
        ),
    )  # fmt: skip
    said = tuple(Words(f"It has no strength {'within reach' if at == 'matched' else 'with all scores'}, so nothing is compared "
                       f"{'at matched accuracy' if at == 'matched' else 'at its best'}.")
                 for at in ("matched", "best") if chosen(own, at) is None)  # fmt: skip
    return Table(title="One tuned defense against the others", caption=caption, columns=columns, rows=rows, footnotes=said)


def strengths_table(tuning: Section, found: Sequence[Strengths]) -> Table:
    """Every strength on the tuning seeds, which the choice was made by."""
    rows: list[tuple[Content, ...]] = []
    for choice in found:
        for s in choice.strengths:
            taken = [at for at in ("matched", "best") if chosen(choice, at) == s.label]
            known = s.complete and s.worst is not None and s.accuracy is not None
            said = ", ".join(taken) if known else "not all its scores"
            area = Value(mean=Strengths.area(s) if known else None)
            rows.append((s.label, value(s.worst), value(s.delta_accuracy), area, Words(said)))
    columns = (
        _DEFENSE, _WORST, _DELTA, Column(name=Words("(1 - advantage) x accuracy"), direction="higher"),
        Column(name=Words("chosen"), align="left"),
    )  # fmt: skip
    caption = Words(f" ({', '.join(map(str, tuning.seeds))}), by which strengths are chosen; no other table has these numbers")
    return Table(title="Strengths on the tuning seeds", caption=caption, columns=columns, rows=tuple(rows))


def _numbers(s: Standing | None, front: dict[str, bool], undefended: bool = False) -> tuple[Content, ...]:
    if s is None:
        return (None,) * 5
    return (
        value(s.worst, (Words(" "), s.attack)) if s.worst else None,
        value(s.tf01, (Words(" "), s.tf01_attack)) if s.tf01 else None,
        Words("0") if undefended else value(s.delta_accuracy), value(s.accuracy),
        None if s.label not in front else Words("yes" if front[s.label] else "no"),
    )  # fmt: skip


def _order(s: Standing | None) -> float:
    return s.worst.mean if s is not None and s.worst is not None else 2.0


def _said(label: str, s: Standing | None) -> Text:
    missing = "no record" if s is None else "" if s.complete else "not all its scores"
    return (strength_of(label), Words(f" ({missing} on the reported seeds)")) if missing else strength_of(label)


def _rank(found: tuple[int, int] | None) -> Words:
    if found is None:
        return Words("–")  # noqa: RUF001
    low, high = found
    return Words(str(low) if low == high else f"{low}-{high}")
