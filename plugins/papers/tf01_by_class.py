"""TF01 of every client and class (CoFedMID, Table 12), with the numbers of candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy import ndarray
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
from fedbench.plugins.analyses.common import arrays_of, numbers, shown, table, words

_MOST_COLUMNS = 20  # classes; of more, a table shows the lowest, the median and the highest
_ARRAYS = ("client", "class", "members", "non-members", "found")


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
        """Return arrays with an entry a client and class with members.

        ``client``, ``class``, ``members``, ``non-members`` (those that set the threshold) and
        ``found``, the members above it; NaN with fewer than 1,999 non-members, and ``missing`` is
        the largest number of these that lack. None of an attack without scores, or on no client by
        itself.
        """
        lines: list[tuple[float, ...]] = []
        for target in judgement.targets if judgement else ():
            if target.target >= 0:
                lines += self._of_client(target)
        if not lines:
            return None
        arrays = dict(zip(_ARRAYS, np.array(lines, float).T, strict=True))
        missing = float(np.maximum(TF01_MIN_NONMEMBERS - arrays["non-members"], 0).max())
        numbers = {"missing": Number(missing, unit="non-members")}
        share = 100 * arrays["found"] / arrays["members"]
        share = share[~np.isnan(share)]
        if len(share):
            numbers["lowest"] = Number(float(share.min()), unit="%")
            numbers["highest"] = Number(float(share.max()), unit="%")
        units = {"client": "id", "class": "label"} | dict.fromkeys(_ARRAYS[2:], "candidates")
        return Findings(numbers, arrays, units)

    def _of_client(self, judged: Judged) -> Iterator[tuple[float, ...]]:
        nonmembers = judged.counted & ~judged.member
        if self.params.nonmembers == "outside":
            nonmembers = judged.kind == OFL
        for label in np.unique(judged.y[judged.member]):
            members = judged.member & (judged.y == label)
            above = _above(judged, members, nonmembers)
            yield judged.target, label, members.sum(), nonmembers.sum(), above

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw a row a defense, attack and client; a column a class, seeds pooled."""
        rows = self._rows(section, label)
        if not all(all(row.unknown()) for row in rows):
            yield self._table(rows)
        elif rows:
            most = max(row.nonmembers for row in rows)
            yield Note(
                Words(
                    f"TF01 by client and class: n/a, since a client has {most:,} non-members at "
                    f"the most; a threshold of its own needs {TF01_MIN_NONMEMBERS:,}."
                )
            )

    def _rows(self, section: Section, label: str) -> list[_Pooled]:
        """Collect the rows of clients that all defenses have, of defenses and attacks to show.

        The undefended federation was audited on every client, a coalition's rows on its own.
        """
        rows = []
        clients = []
        for row in section.rows:
            of_defense: list[_Pooled] = []
            for attack in section.attacks:
                arrays = arrays_of(section, row.entries[attack], label, "found")
                of_defense += _pooled(row.label, attack, arrays)
            if of_defense:
                clients.append({pooled.client for pooled in of_defense})
            if shown(row.label, self.params.defenses):
                rows += [p for p in of_defense if shown(p.attack, self.params.attacks)]
        common = set.intersection(*clients) if clients else set()
        return [pooled for pooled in rows if pooled.client in common]

    def _table(self, rows: list[_Pooled]) -> Table:
        every_class = sorted(set().union(*[row.of_class for row in rows]))
        classes: list[int] | None = every_class
        names = [f"class {c}" for c in every_class]
        if len(every_class) > _MOST_COLUMNS:
            classes = None
            names = ["lowest class", "median class", "highest class"]
        columns = [words("defense"), words("attack")]
        columns += [numbers(name, digits=0) for name in ("client", "members", "non-members")]
        for name in ("all classes", *names):
            columns.append(numbers(name, unit="%", direction="lower", digits=2, scale=100))
        kind = "outside" if self.params.nonmembers == "outside" else "outside and inside"
        caption = (
            f": members above the score that 0.1 % of the client's {kind} non-members exceed, all "
            "seeds together, in brackets how many members; the interval is the exact one of the "
            "share (Clopper & Pearson, 95 %) for these thresholds. Members and non-members: of the "
            "smallest seed, over all classes"
        )
        lines = [row.line(classes) for row in rows]
        return table("TF01 by client and class", caption, columns, lines, _missing(rows))


def _missing(rows: Sequence[_Pooled]) -> tuple[Words, ...]:
    """Say how many non-members lack, if some do."""
    fewest = min((row.nonmembers for row in rows if any(row.unknown())), default=None)
    if fewest is None:
        return ()
    text = (
        f"n/a: a threshold at 0.1 % needs {TF01_MIN_NONMEMBERS:,} non-members; there are as few as "
        f"{fewest:,}, {TF01_MIN_NONMEMBERS - fewest:,} are missing"
    )
    return (Words(text),)


def _above(judged: Judged, members: ndarray, nonmembers: ndarray) -> float:
    """Count the ``members`` above the threshold of ``nonmembers``; NaN with too few of these."""
    scores = judged.scores
    member = judged.kind == MEMBER
    counted = (members | nonmembers) & (judged.kind != EXCLUDED)
    percent = tf01(scores[counted], member[counted]) if nonmembers.any() else None
    return float("nan") if percent is None else round(percent / 100 * members.sum())


@dataclass(frozen=True, kw_only=True)
class _Pooled:
    """Seeds of a client under one defense and attack, pooled."""

    defense: str
    attack: str
    client: int
    of_class: dict[int, tuple[float, float]]
    """Map a label to (members above, members); NaN: a seed has no threshold."""
    members: int
    nonmembers: int

    def unknown(self) -> list[bool]:
        """Tell of each class whether it has no number."""
        return [bool(np.isnan(above)) for above, _ in self.of_class.values()]

    def line(self, classes: list[int] | None) -> tuple[Content, ...]:
        """Return names, numbers of candidates, all classes together, and each of ``classes``.

        None: the lowest, median and highest class.
        """
        counts = sorted(self.of_class.values(), key=lambda count: count[0] / count[1])
        total = tuple(map(sum, zip(*counts, strict=True)))
        if classes is not None:
            by_class = [self.of_class.get(c, (np.nan, 0)) for c in classes]
        elif np.isnan(total[0]):
            by_class = [(np.nan, 0)] * 3
        else:
            by_class = [counts[0], counts[len(counts) // 2], counts[-1]]
        sizes = [Value(mean=n) for n in (self.client, self.members, self.nonmembers)]
        shares = [_share(*count) for count in (total, *by_class)]
        return self.defense, self.attack, *sizes, *shares


def _share(above: float, members: float) -> Content:
    if np.isnan(above):
        return None
    ends = exact_interval(int(above), int(members))
    return Value(mean=above / members, ends=ends, suffix=Words(f" ({members:.0f})"))


def _pooled(defense: str, attack: str, seeds: Sequence[Mapping[str, ndarray]]) -> Iterator[_Pooled]:
    if not seeds:
        return
    table = {}
    for name in _ARRAYS:
        table[name] = np.concatenate([arrays[name] for arrays in seeds])
    seed = np.repeat(np.arange(len(seeds)), [len(arrays["client"]) for arrays in seeds])
    for k in np.unique(table["client"]):
        rows = table["client"] == k
        label = table["class"][rows]
        above = table["found"][rows]
        members = table["members"][rows]
        of_class = {}
        for c in np.unique(label):
            of_class[int(c)] = float(above[label == c].sum()), float(members[label == c].sum())
        by_seed = np.bincount(seed[rows], members)
        yield _Pooled(
            defense=defense,
            attack=attack,
            client=int(k),
            of_class=of_class,
            members=int(by_seed[np.unique(seed[rows])].min()),
            nonmembers=int(table["non-members"][rows].min()),
        )
