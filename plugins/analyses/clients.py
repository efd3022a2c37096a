"""Single clients of a clustered federation: bounds that are violated, and exposure before and after
migration (IFCA-MIR).

The paper counts the bounds that migration repairs (section 5.2.2), not the exposure of the clients
that stay; ``Migration`` compares both kinds of clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedbench.core import Analysis, Findings, FinishedRun, Judged, Judgement, Number
from fedbench.core.metrics import auc
from fedbench.core.report import (
    Block,
    Column,
    Content,
    Entry,
    Quote,
    Row,
    Section,
    Table,
    Value,
    Words,
    value,
)
from fedbench.plugins.analyses.common import interval_of, numbers, over_seeds, seeds_of, words

# ---------------------------------------------------------------- violated bounds (section 5.2.2)


NAME = "violations"


class Violations(Analysis):
    """Honest clients with a final global model that an attack reads more accurately than their
    bound allows.
    """

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Where the setting's clients have bounds."""
        return bool(setting.get("thresholds"))

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``violated`` of so many ``clients``, and ``accuracy_of_model`` [S], NaN where unknown.

        The accuracy of a model is (TPR + TNR) / 2 over the candidates it serves (equation 8). None
        where the clients have no bound, and of an attack without a threshold.
        """
        if (
            run.thresholds is None
            or not len(run.assignment)
            or judgement is None
            or judgement.threshold is None
        ):
            return None
        models = run.assignment[-1]
        accuracy = accuracy_of_model(judgement, int(models.max()) + 1)
        honest = np.setdiff1d(np.arange(run.clients), run.malicious)
        # NaN exceeds nothing
        violated = int((accuracy[models[honest]] > run.thresholds[honest]).sum())
        numbers = {
            "violated": Number(violated, count_error(violated, len(honest)), "clients"),
            "clients": Number(len(honest), unit="clients"),
        }
        return Findings(numbers, {"accuracy_of_model": accuracy}, {"accuracy_of_model": "fraction"})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """A column an attack; nothing where the table of the groups shows them, or where no client
        has a bound.
        """
        attacks = [a for a in section.attacks if bounded(section, a, label)]
        if attacks and not section.groups:
            rows = tuple(
                (r.label, *(count(section, r.entries[a], label) for a in attacks))
                for r in section.rows
            )
            yield Table(
                title="Violations",
                caption=Words(
                    ": clients with a model that an attack reads better than they tolerate"
                ),
                columns=(words("defense"), *map(column, attacks)),
                rows=rows,
            )


def accuracy_of_model(judgement: Judgement, models: int) -> np.ndarray:
    """[S] (TPR + TNR) / 2 over the candidates that each model serves; NaN without members or
    without non-members.
    """
    said = np.concatenate([t.scores > judgement.threshold for t in judgement.targets])
    member = np.concatenate([t.member for t in judgement.targets])
    counted = np.concatenate([t.counted for t in judgement.targets])
    model = np.concatenate([t.model_of for t in judgement.targets])
    found = np.full(models, np.nan)
    for j in range(models):
        inside, outside = counted & (model == j) & member, counted & (model == j) & ~member
        if inside.any() and outside.any():
            found[j] = (said[inside].mean() + (~said[outside]).mean()) / 2
    return found


def count_error(violated: float, clients: float) -> float:
    """The binomial error of drawing so many bounds, one violation and one other client added, since
    none among 200 clients is not none for certain (Agresti & Caffo, The American Statistician
    2000).
    """
    p = (violated + 1) / (clients + 2)
    return float(clients * np.sqrt(p * (1 - p) / (clients + 2)))


def bounded(section: Section, attack: str, label: str = NAME) -> bool:
    """Whether some row has violations under the attack."""
    return any(_per_seed(section, row.entries[attack], label) for row in section.rows)


def column(attack: str) -> Column:
    """Of one attack's violations."""
    return Column(name=(attack, Words(": violations")), direction="lower", digits=1)


def count(section: Section, entry: Entry, label: str = NAME) -> Content:
    """``10.0 ± 2.1 of 200``: mean over seeds with its 95 % interval, never narrower than the
    binomial one.
    """
    found = _per_seed(section, entry, label)
    interval = interval_of(found, "violated")
    if interval is None:
        return None
    clients = [f.numbers["clients"].value or 0 for f in found]
    low, high = int(min(clients)), int(max(clients))
    return value(interval, Words(f" of {low:,}" if low == high else f" of {low:,} to {high:,}"))


def _per_seed(section: Section, entry: Entry, label: str) -> list[Findings]:
    return [
        f for f in seeds_of(section, entry, label) if {"violated", "clients"} <= f.numbers.keys()
    ]


# ---------------------------------------------------------------- migration


BASE = "ifca"  # clients follow their loss alone
Change = tuple[float, float]
"""a client's exposure under IFCA and under the other defense"""


class Migration(Analysis):
    """Exposure of every client, and the model that serves it in the end."""

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Where the setting has groups of clients."""
        return bool(setting.get("groups"))

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``exposure`` [K], NaN where not known, and ``assignment`` [K]; None unless groups of
        clients are judged in a federation of several models.
        """
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
        """Mean exposure of the clients that end with another model than under IFCA, and of the
        others.

        Both start from the same initial models (one draw a seed), so model j is the same model in
        name. Nothing where the section lacks IFCA, or another defense of several models.
        """
        base = next((r for r in section.rows if r.name == BASE), None)
        others = [
            r
            for r in section.rows
            if r.name != BASE and any(a.clusters for rounds in r.histories for a in rounds)
        ]
        if base is not None:
            rows = [
                line
                for row in others
                for a in section.attacks
                if (line := _line(section, base, row, a, label))
            ]
            if rows:
                yield _migration_table(base, rows)


def exposures(judged: Judged) -> dict[int, float]:
    """Client -> AUC of its own members among a group's candidates against outsiders of the group's
    distribution.
    """
    outside = judged.scores[judged.counted & ~judged.member]
    found = {}
    for client in np.unique(judged.owner[judged.member]):
        own = judged.scores[judged.member & (judged.owner == client)]
        if len(own) and len(outside):
            found[int(client)] = auc(
                np.concatenate([own, outside]), np.arange(len(own) + len(outside)) < len(own)
            )
    return found


def _line(section: Section, base: Row, row: Row, attack: str, label: str) -> tuple[Content, ...]:
    """Nothing where no seed has findings of both."""
    moved, stayed = _changes(section, base, row, attack, label)
    return (row.label, attack, *_side(moved), *_side(stayed)) if moved or stayed else ()


def _changes(
    section: Section, base: Row, row: Row, attack: str, label: str
) -> tuple[list[Change], list[Change]]:
    """Of the clients that end with another model than under the base, and of the others; all seeds
    together.
    """
    moved: list[Change] = []
    stayed: list[Change] = []
    for seed in section.seeds:
        found = [r.entries[attack].findings(label, seed) for r in (base, row)]
        arrays = [
            f.arrays
            for f in found
            if f is not None and {"exposure", "assignment"} <= f.arrays.keys()
        ]
        if len(arrays) == 2:
            before, after = (a["exposure"] for a in arrays)
            apart = arrays[0]["assignment"] != arrays[1]["assignment"]
            for client in np.flatnonzero(~np.isnan(before) & ~np.isnan(after)):
                (moved if apart[client] else stayed).append(
                    (float(before[client]), float(after[client]))
                )
    return moved, stayed


def _side(changes: list[Change]) -> tuple[Content, ...]:
    """How many, before, after, and the mean change with its interval over clients x seeds."""
    if not changes:
        return Words("0"), None, None, None
    before, after = np.array(changes).T
    means = Value(mean=float(before.mean())), Value(mean=float(after.mean()))
    return Value(mean=len(changes)), *means, over_seeds((after - before).tolist())


def _migration_table(base: Row, rows: list[tuple[Content, ...]]) -> Table:
    sides = [
        column
        for clients in ("moved clients", "others")
        for column in (
            numbers(clients, digits=0),
            numbers("before", direction="lower"),
            numbers("after", direction="lower"),
            numbers("change", direction="lower", signed=True),
        )
    ]
    caption = (
        Words(" AUC of a client's own members against outsiders like its group's, under "),
        Quote(base.label, style="code"),
        Words(
            " (before) and under the defense (after), for clients that end with another model and "
            "for the others; means over "
            "seeds, change with its 95 % interval over clients x seeds"
        ),
    )
    title = "Does migration lower the risk, or move it?"
    return Table(
        title=title,
        caption=caption,
        columns=(words("defense"), words("attack"), *sides),
        rows=tuple(rows),
    )
