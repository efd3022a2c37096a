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
    TF01_MIN_NONMEMBERS,
    Analysis,
    Block,
    Content,
    Findings,
    FinishedRun,
    Judged,
    Judgement,
    Note,
    Number,
    Section,
    Table,
    Value,
    Words,
    exact_interval,
    tf01,
)
from fedbench.core import Params as Base
from fedbench.plugins.analyses.common import numbers, seeds_of, shown, words

_MOST_COLUMNS = 20  # classes; of more, a table shows the lowest, the median and the highest


class TF01ByClass(Analysis):
    """Share of each class's members above the score that 0.1 % of the non-members exceed, client by client.

    The threshold is one for a client, of its non-members of all classes: with one for each class (``threshold: class``), 1,999
    non-members of that class are needed. The interval is that of the counted share (Clopper & Pearson), seeds pooled: it holds
    for the thresholds at hand and does not cover how these were drawn.
    """

    by_default = False

    class Params(Base):
        nonmembers: Literal["outside", "all"] = Field(
            "outside", description="who sets the threshold: outside non-members, as on boards, or inside ones as well (paper)"
        )
        threshold: Literal["client", "class"] = Field(
            "client", description="one threshold for all classes of a client, or one for each, of that class's non-members"
        )
        defenses: tuple[str, ...] = Field((), description="labels of the defenses that a board shows; by default all")
        attacks: tuple[str, ...] = Field((), description="labels of the attacks that a board shows; by default all")

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Arrays with an entry a client and class with members: ``client``, ``class``, ``members``, ``non-members`` (those that
        set the threshold) and ``found``, the members above it; NaN with fewer than 1,999 non-members, and ``missing`` is the
        largest number of these that lack. None of an attack without scores, or on no client by itself."""
        lines = [line for t in (judgement.targets if judgement else ()) if t.target >= 0 for line in self._of_client(t)]
        if not lines:
            return None
        names = ("client", "class", "members", "non-members", "found")
        arrays = dict(zip(names, np.array(lines, float).T, strict=True))
        missing = float(np.maximum(TF01_MIN_NONMEMBERS - arrays["non-members"], 0).max())
        numbers = {"missing": Number(missing, unit="non-members")}
        known = ~np.isnan(arrays["found"])
        if known.any():
            share = 100 * arrays["found"][known] / arrays["members"][known]
            numbers |= {"lowest": Number(float(share.min()), unit="%"), "highest": Number(float(share.max()), unit="%")}
        units = {"client": "id", "class": "label"} | dict.fromkeys(names[2:], "candidates")
        return Findings(numbers, arrays, units)

    def _of_client(self, judged: Judged) -> Iterator[tuple[float, ...]]:
        others = judged.kind == OFL if self.params.nonmembers == "outside" else judged.counted & ~judged.member
        for label in np.unique(judged.y[judged.member]):
            mine = judged.member & (judged.y == label)
            against = others if self.params.threshold == "client" else others & (judged.y == label)
            yield judged.target, label, mine.sum(), against.sum(), _found(judged, mine, against)

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """A row a defense, attack and client; a column a class, seeds pooled."""
        every = [
            one for row in section.rows for attack in section.attacks
            for one in _pooled(row.label, attack, seeds_of(section, row.entries[attack], label, "found"))
        ]  # fmt: skip
        clients = [{one.client for one in every if one.defense == label} for label in {one.defense for one in every}]
        rows = [
            one for one in every
            # the undefended federation was asked about every client, a coalition's rows about its own
            if one.client in set.intersection(*clients)
            and shown(one.defense, self.params.defenses) and shown(one.attack, self.params.attacks)
        ]  # fmt: skip
        if any(hits is not None for row in rows for hits in row.of_class.values()):
            yield self._table(rows)
        elif rows:
            most = max(row.others for row in rows)
            yield Note(Words(
                f"TF01 by client and class: n/a, since a client has {most:,} non-members at the most; a threshold of its own "
                f"needs {TF01_MIN_NONMEMBERS:,}."
            ))  # fmt: skip

    def _table(self, rows: list[_Pooled]) -> Table:
        classes = sorted({c for row in rows for c in row.of_class})
        many = len(classes) > _MOST_COLUMNS
        shown = ["lowest class", "median class", "highest class"] if many else [f"class {c}" for c in classes]
        columns = [
            words("defense"), words("attack"),
            numbers("client", digits=0), numbers("members", digits=0),
            numbers("non-members", digits=0),
        ]  # fmt: skip
        shares = ["all classes", *shown]
        columns += [numbers(name, unit="%", direction="lower", digits=2, scale=100) for name in shares]
        whose = "outside non-members" if self.params.nonmembers == "outside" else "outside and inside non-members"
        of = "the client's" if self.params.threshold == "client" else "the class's"
        caption = Words(
            f": members above the score that 0.1 % of {of} {whose} exceed, all seeds together, in brackets how many members; the "
            "interval is the exact one of the share (Clopper & Pearson, 95 %) for these thresholds. Members and non-members: of "
            "the smallest seed, over all classes" + ("" if self.params.threshold == "client" else ", of the smallest class")
        )
        return Table(
            title="TF01 by client and class", caption=caption, columns=tuple(columns),
            rows=tuple((*row.head(), *(row.spread() if many else (row.cell(c) for c in classes))) for row in rows),
            footnotes=_footnotes(rows),
        )  # fmt: skip


def _found(judged: Judged, mine: np.ndarray, against: np.ndarray) -> float:
    """How many of ``mine`` lie above the threshold that ``against`` sets; NaN with too few of the latter."""
    scores, member = judged.scores, judged.kind == MEMBER
    counted = (mine | against) & (judged.kind != EXCLUDED)
    share = tf01(scores[counted], member[counted]) if against.any() else None
    return float("nan") if share is None else round(share / 100 * mine.sum())


@dataclass(frozen=True, kw_only=True)
class _Pooled:
    """A client under one defense and attack: ``of_class`` label -> (members above, members); None: a seed has no threshold."""

    defense: str
    attack: str
    client: int
    of_class: dict[int, tuple[int, int] | None]
    members: int
    others: int

    def cell(self, label: int) -> Content:
        """One class."""
        return _share(self.of_class.get(label))

    def head(self) -> tuple[Content, ...]:
        """Names, numbers of candidates, and all classes together."""
        known = [v for v in self.of_class.values() if v is not None]
        together = (sum(h for h, _ in known), sum(n for _, n in known)) if len(known) == len(self.of_class) else None
        sizes = Value(mean=self.client), Value(mean=self.members), Value(mean=self.others)
        return self.defense, self.attack, *sizes, _share(together)

    def spread(self) -> tuple[Content, ...]:
        """The lowest, the median and the highest class."""
        known = sorted((v for v in self.of_class.values() if v is not None), key=lambda v: v[0] / v[1])
        if len(known) < len(self.of_class):
            return None, None, None
        return tuple(_share(known[i]) for i in (0, len(known) // 2, -1))


def _share(counted: tuple[int, int] | None) -> Content:
    if counted is None:
        return None
    hits, of = counted
    low, high = exact_interval(hits, of)
    return Value(mean=hits / of, ends=(low, high), suffix=Words(f" ({of})"))


def _pooled(defense: str, attack: str, found: list[Findings]) -> Iterator[_Pooled]:
    seeds = [f.arrays for f in found]
    for k in sorted({int(k) for a in seeds for k in a["client"]}):
        mine = [{name: values[a["client"] == k] for name, values in a.items()} for a in seeds]
        of_class: dict[int, tuple[int, int] | None] = {}
        for label in sorted({int(c) for a in mine for c in a["class"]}):
            hits = sum(a["found"][a["class"] == label].sum() for a in mine)  # NaN where one seed has no threshold
            of = sum(a["members"][a["class"] == label].sum() for a in mine)
            of_class[label] = None if np.isnan(hits) else (int(hits), int(of))
        there = [a for a in mine if len(a["class"])]
        members, others = (min(int(of(a[name])) for a in there) for name, of in (("members", np.sum), ("non-members", np.min)))
        yield _Pooled(defense=defense, attack=attack, client=k, of_class=of_class, members=members, others=others)


def _footnotes(rows: list[_Pooled]) -> tuple[Words, ...]:
    lacking = [row.others for row in rows if any(v is None for v in row.of_class.values())]
    if not lacking:
        return ()
    return (Words(
        f"n/a: a threshold at 0.1 % needs {TF01_MIN_NONMEMBERS:,} non-members; there are as few as {min(lacking):,}, "
        f"{TF01_MIN_NONMEMBERS - min(lacking):,} are missing"
    ),)  # fmt: skip
