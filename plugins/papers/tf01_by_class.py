"""TF01 of every client and class (CoFedMID, Table 12), with how many candidates each number is of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from fedbench.core import (
    EXCLUDED,
    MEMBER,
    OFL,
    Analysis,
    Findings,
    FinishedRun,
    Judged,
    Judgement,
    Number,
    Params,
)
from fedbench.core.metrics import TF01_MIN_NONMEMBERS, exact_interval, tf01
from fedbench.core.report import Block, Content, Note, Section, Table, Value, Words
from fedbench.plugins.analyses.common import numbers, seeds_of, shown, words

_MOST_COLUMNS = 20  # classes; of more, a table shows the lowest, the median and the highest


class TF01ByClass(Analysis):
    """Share of each class's members above the score that 0.1 % of the non-members exceed, client by
    client.

    The threshold is one for a client, of its non-members of all classes, of which 1,999 are needed.
    The interval is that of the counted share (Clopper & Pearson), seeds pooled: it holds for the
    thresholds at hand and does not cover how these were drawn.
    """

    by_default = False

    class Params(Params):
        nonmembers: Literal["outside", "all"] = Field(
            "outside",
            description="who sets the threshold: outside non-members, as on boards, or inside ones "
            "as well (paper)",
        )
        defenses: tuple[str, ...] = Field(
            (), description="labels of the defenses that a board shows; by default all"
        )
        attacks: tuple[str, ...] = Field(
            (), description="labels of the attacks that a board shows; by default all"
        )

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Arrays with an entry a client and class with members: ``client``, ``class``, ``members``,
        ``non-members`` (those that set the threshold) and ``found``, the members above it; NaN with
        fewer than 1,999 non-members, and ``missing`` is the largest number of these that lack. None
        of an attack without scores, or on no client by itself.
        """
        lines = [
            line
            for t in (judgement.targets if judgement else ())
            if t.target >= 0
            for line in self._of_client(t)
        ]
        if not lines:
            return None
        names = ("client", "class", "members", "non-members", "found")
        arrays = dict(zip(names, np.array(lines, float).T, strict=True))
        missing = float(np.maximum(TF01_MIN_NONMEMBERS - arrays["non-members"], 0).max())
        numbers = {"missing": Number(missing, unit="non-members")}
        known = ~np.isnan(arrays["found"])
        if known.any():
            share = 100 * arrays["found"][known] / arrays["members"][known]
            numbers |= {
                "lowest": Number(float(share.min()), unit="%"),
                "highest": Number(float(share.max()), unit="%"),
            }
        units = {"client": "id", "class": "label"} | dict.fromkeys(names[2:], "candidates")
        return Findings(numbers, arrays, units)

    def _of_client(self, judged: Judged) -> Iterator[tuple[float, ...]]:
        others = (
            judged.kind == OFL
            if self.params.nonmembers == "outside"
            else judged.counted & ~judged.member
        )
        for label in np.unique(judged.y[judged.member]):
            mine = judged.member & (judged.y == label)
            yield judged.target, label, mine.sum(), others.sum(), _found(judged, mine, others)

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """A row a defense, attack and client; a column a class, seeds pooled."""
        every = [
            one
            for row in section.rows
            for attack in section.attacks
            for one in _pooled(
                row.label, attack, seeds_of(section, row.entries[attack], label, "found")
            )
        ]
        clients = [
            {one.client for one in every if one.defense == label}
            for label in {one.defense for one in every}
        ]
        rows = [
            one
            for one in every
            # the undefended federation was audited on every client, a coalition's rows on its own
            if one.client in set.intersection(*clients)
            and shown(one.defense, self.params.defenses)
            and shown(one.attack, self.params.attacks)
        ]
        if any(not np.isnan(hits) for row in rows for hits, _ in row.of_class.values()):
            yield self._table(rows)
        elif rows:
            most = max(row.others for row in rows)
            yield Note(
                Words(
                    f"TF01 by client and class: n/a, since a client has {most:,} non-members at "
                    "the most; a threshold of its own "
                    f"needs {TF01_MIN_NONMEMBERS:,}."
                )
            )

    def _table(self, rows: list[_Pooled]) -> Table:
        classes = sorted({c for row in rows for c in row.of_class})
        many = len(classes) > _MOST_COLUMNS
        names = (
            ["lowest class", "median class", "highest class"]
            if many
            else [f"class {c}" for c in classes]
        )
        columns = (
            words("defense"),
            words("attack"),
            *(numbers(name, digits=0) for name in ("client", "members", "non-members")),
            *(
                numbers(n, unit="%", direction="lower", digits=2, scale=100)
                for n in ("all classes", *names)
            ),
        )
        others = (
            "outside non-members"
            if self.params.nonmembers == "outside"
            else "outside and inside non-members"
        )
        caption = Words(
            f": members above the score that 0.1 % of the client's {others} exceed, all seeds "
            "together, in brackets how many "
            "members; the interval is the exact one of the share (Clopper & Pearson, 95 %) for "
            "these thresholds. Members and "
            "non-members: of the smallest seed, over all classes"
        )
        lacking = [
            row.others for row in rows if any(np.isnan(hits) for hits, _ in row.of_class.values())
        ]
        footnotes = (
            (
                Words(
                    f"n/a: a threshold at 0.1 % needs {TF01_MIN_NONMEMBERS:,} non-members; there "
                    f"are as few as {min(lacking):,}, "
                    f"{TF01_MIN_NONMEMBERS - min(lacking):,} are missing"
                ),
            )
            if lacking
            else ()
        )
        lines = tuple(row.line(None if many else classes) for row in rows)
        return Table(
            title="TF01 by client and class",
            caption=caption,
            columns=columns,
            rows=lines,
            footnotes=footnotes,
        )


def _found(judged: Judged, mine: np.ndarray, against: np.ndarray) -> float:
    """How many of ``mine`` lie above the threshold that ``against`` sets; NaN with too few of the
    latter.
    """
    scores, member = judged.scores, judged.kind == MEMBER
    counted = (mine | against) & (judged.kind != EXCLUDED)
    share = tf01(scores[counted], member[counted]) if against.any() else None
    return float("nan") if share is None else round(share / 100 * mine.sum())


@dataclass(frozen=True, kw_only=True)
class _Pooled:
    """A client under one defense and attack: ``of_class`` label -> (members above, members); NaN: a
    seed has no threshold.
    """

    defense: str
    attack: str
    client: int
    of_class: dict[int, tuple[float, float]]
    members: int
    others: int

    def line(self, classes: list[int] | None) -> tuple[Content, ...]:
        """Names, numbers of candidates, all classes together, and each of ``classes``; None:
        lowest, median and highest.
        """
        counts = sorted(self.of_class.values(), key=lambda v: v[0] / v[1])
        together = tuple(map(sum, zip(*counts, strict=True)))
        unknown = np.isnan(together[0])
        if classes is None:
            each = [(np.nan, 0) if unknown else counts[i] for i in (0, len(counts) // 2, -1)]
        else:
            each = [self.of_class.get(c, (np.nan, 0)) for c in classes]
        sizes = (Value(mean=n) for n in (self.client, self.members, self.others))
        return (
            self.defense,
            self.attack,
            *sizes,
            *(_share(*counted) for counted in (together, *each)),
        )


def _share(hits: float, of: float) -> Content:
    if np.isnan(hits):
        return None
    return Value(
        mean=hits / of, ends=exact_interval(int(hits), int(of)), suffix=Words(f" ({of:.0f})")
    )


def _pooled(defense: str, attack: str, found: list[Findings]) -> Iterator[_Pooled]:
    seeds = [f.arrays for f in found]
    for k in sorted({int(k) for a in seeds for k in a["client"]}):
        mine = [{name: values[a["client"] == k] for name, values in a.items()} for a in seeds]
        of_class = {}
        for label in sorted({int(c) for a in mine for c in a["class"]}):
            hits, of = (
                float(sum(a[name][a["class"] == label].sum() for a in mine))
                for name in ("found", "members")
            )
            of_class[label] = hits, of
        there = [a for a in mine if len(a["class"])]
        members, others = (
            min(int(of(a[name])) for a in there)
            for name, of in (("members", np.sum), ("non-members", np.min))
        )
        yield _Pooled(
            defense=defense,
            attack=attack,
            client=k,
            of_class=of_class,
            members=members,
            others=others,
        )
