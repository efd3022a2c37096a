"""Does migration lower the risk, or move it? Each client's exposure under IFCA and under a defense that lets it move.

Beyond the paper: IFCA-MIR counts the bounds that migration mends (section 5.2.2), not what becomes of those who stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedbench.core import Analysis, Findings, FinishedRun, Judged, Judgement
from fedbench.core.metrics import auc
from fedbench.core.report import Block, Content, Quote, Row, Section, Table, Value, Words  # fmt: skip
from fedbench.plugins.analyses.common import numbers, over_seeds, words

BASE = "ifca"  # clients follow their loss alone
Change = tuple[float, float]
"""a client's exposure under IFCA and under the other defense"""


class Migration(Analysis):
    """Exposure of every client, and the model that serves it in the end."""

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Where the setting has groups of clients."""
        return bool(setting.get("groups"))

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``exposure`` [K], NaN where not known, and ``assignment`` [K]; None unless groups of clients are judged in a
        federation of several models."""
        groups = [t for t in judgement.targets if t.group is not None] if judgement else []
        if not groups or not len(run.assignment):
            return None
        exposure = np.full(run.clients, np.nan)
        for target in groups:
            for client, found in exposures(target).items():
                exposure[client] = found
        arrays = {"exposure": exposure, "assignment": run.assignment[-1].astype(np.float64)}
        return Findings({}, arrays, {"exposure": "AUC", "assignment": "model"})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Mean exposure of the clients that end with another model than under IFCA, and of the others.

        Both start from the same initial models (one draw a seed), so model j is the same model in name. Nothing where the
        section lacks IFCA, or another defense of several models.
        """
        base = next((r for r in section.rows if r.name == BASE), None)
        others = [
            r for r in section.rows if r.name != BASE and any(a.clusters for rounds in r.histories for a in rounds)
        ]  # fmt: skip
        if base is not None:
            rows = [line for row in others for a in section.attacks if (line := _line(section, base, row, a, label))]
            if rows:
                yield _table(base, rows)


def exposures(judged: Judged) -> dict[int, float]:
    """Client -> AUC of its own members among a group's candidates against the outsiders that look like the group's."""
    outside = judged.scores[judged.counted & ~judged.member]
    found = {}
    for client in np.unique(judged.owner[judged.member]):
        own = judged.scores[judged.member & (judged.owner == client)]
        if len(own) and len(outside):
            found[int(client)] = auc(np.concatenate([own, outside]), np.arange(len(own) + len(outside)) < len(own))
    return found


def _line(section: Section, base: Row, row: Row, attack: str, label: str) -> tuple[Content, ...]:
    """Nothing where no seed has findings of both."""
    moved, stayed = _changes(section, base, row, attack, label)
    return (row.label, attack, *_side(moved), *_side(stayed)) if moved or stayed else ()


def _changes(section: Section, base: Row, row: Row, attack: str, label: str) -> tuple[list[Change], list[Change]]:
    """Of the clients that end with another model than under the base, and of the others; all seeds together."""
    moved: list[Change] = []
    stayed: list[Change] = []
    for seed in section.seeds:
        found = [r.entries[attack].findings(label, seed) for r in (base, row)]
        arrays = [f.arrays for f in found if f is not None and {"exposure", "assignment"} <= f.arrays.keys()]
        if len(arrays) == 2:
            before, after = (a["exposure"] for a in arrays)
            apart = arrays[0]["assignment"] != arrays[1]["assignment"]
            for client in np.flatnonzero(~np.isnan(before) & ~np.isnan(after)):
                (moved if apart[client] else stayed).append((float(before[client]), float(after[client])))
    return moved, stayed


def _side(changes: list[Change]) -> tuple[Content, ...]:
    """How many, before, after, and the mean change with its interval over clients x seeds."""
    if not changes:
        return Words("0"), None, None, None
    before, after = np.array(changes).T
    means = Value(mean=float(before.mean())), Value(mean=float(after.mean()))
    return Value(mean=len(changes)), *means, over_seeds((after - before).tolist())


def _table(base: Row, rows: list[tuple[Content, ...]]) -> Table:
    sides = [
        column for clients in ("moved clients", "others")
        for column in (
            numbers(clients, digits=0), numbers("before", direction="lower"), numbers("after", direction="lower"),
            numbers("change", direction="lower", signed=True),
        )
    ]  # fmt: skip
    caption = (
        Words(" AUC of a client's own members against outsiders like its group's, under "), Quote(base.label, style="code"),
        Words(
            " (before) and under the defense (after), for clients that end with another model and for the others; means over "
            "seeds, change with its 95 % interval over clients x seeds"
        ),
    )  # fmt: skip
    title = "Does migration lower the risk, or move it?"
    return Table(title=title, caption=caption, columns=(words("defense"), words("attack"), *sides), rows=tuple(rows))
