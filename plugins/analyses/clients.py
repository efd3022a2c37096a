"""Single clients: violated bounds, exposure before and after migration, sources of samples.

IFCA-MIR (Jung et al., ARTMAN 2025), source inference (Hu et al., ICDM 2021).

The paper counts the bounds that migration repairs (section 5.2.2), not the exposure of the clients
that stay; ``Migration`` compares both kinds of clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeGuard

import numpy as np
from numpy import ndarray

from fedbench.core import Analysis, Findings, FinishedRun, Judged, Judgement, Number
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
from fedbench.plugins.analyses.common import (
    interval_of,
    numbers,
    over_seeds,
    seeds_of,
    separation,
    table,
    words,
)

# ---------------------------------------------------------------- violated bounds (section 5.2.2)


NAME = "violations"


class Violations(Analysis):
    """Honest clients with a final global model that an attack reads more accurately than their
    bound allows.
    """

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Tell whether the setting's clients have bounds."""
        return bool(setting.get("thresholds"))

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Count the clients that are ``violated``, of ``clients``, and ``violated:<group>`` of each
        group; ``accuracy_of_model`` [S].

        The accuracy of a model is (TPR + TNR) / 2 over the candidates it serves (equation 8), NaN
        where unknown. None where the clients have no bound, and of an attack without a threshold.
        """
        if run.thresholds is None or not len(run.assignment):
            return None
        if judgement is None or judgement.threshold is None:
            return None
        models = run.assignment[-1]
        accuracy = accuracy_of_model(judgement, int(models.max()) + 1)
        honest = np.setdiff1d(np.arange(run.clients), run.malicious)
        # NaN exceeds nothing
        over = accuracy[models[honest]] > run.thresholds[honest]
        numbers = {"violated": _counted(over), "clients": Number(len(honest), unit="clients")}
        if run.group_of is not None:
            for g, name in enumerate(run.group_names):
                numbers[f"violated:{name}"] = _counted(over[run.group_of[honest] == g])
        return Findings(numbers, {"accuracy_of_model": accuracy}, {"accuracy_of_model": "fraction"})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw a column an attack, unless the groups' table has them or no client has a bound."""
        attacks = [a for a in section.attacks if bounded(section, a, label)]
        if not attacks or section.groups:
            return
        rows: list[Any] = []
        for row in section.rows:
            counts = [count(section, row.entries[a], label) for a in attacks]
            rows.append((row.label, *counts))
        caption = ": clients with a model that an attack reads better than they tolerate"
        yield table("Violations", caption, (words("defense"), *map(column, attacks)), rows)


def _counted(over: ndarray) -> Number:
    """Count of True with its error."""
    violated = int(over.sum())
    return Number(violated, count_error(violated, len(over)), "clients")


def accuracy_of_model(judgement: Judgement, models: int) -> ndarray:
    """Return (TPR + TNR) / 2, [S], over the candidates that each model serves.

    NaN without members or without non-members.
    """
    targets = judgement.targets
    positive = np.concatenate([t.scores > judgement.threshold for t in targets])
    member = np.concatenate([t.member for t in targets])
    counted = np.concatenate([t.counted for t in targets])
    model = np.concatenate([t.model_of for t in targets])
    accuracy = np.full(models, np.nan)
    for j in range(models):
        inside = counted & (model == j) & member
        outside = counted & (model == j) & ~member
        if inside.any() and outside.any():
            accuracy[j] = (positive[inside].mean() + (~positive[outside]).mean()) / 2
    return accuracy


def count_error(violated: float, clients: float) -> float:
    """Return the binomial error of a count, one violation and one other client added.

    None among 200 clients is not none for certain (Agresti & Caffo, The American Statistician
    2000).
    """
    p = (violated + 1) / (clients + 2)
    return float(clients * np.sqrt(p * (1 - p) / (clients + 2)))


def bounded(section: Section, attack: str, label: str = NAME) -> bool:
    """Tell whether some row has violations under the attack."""
    return any(_per_seed(section, row.entries[attack], label) for row in section.rows)


def column(attack: str) -> Column:
    """Column of an attack's violations."""
    return Column(name=(attack, Words(": violations")), direction="lower", digits=1)


def count(section: Section, entry: Entry, label: str = NAME) -> Content:
    """Mean over seeds with its 95 % interval, never narrower than the binomial one.

    In words: ``10.0 ± 2.1 of 200``, and those of each group: ``(1.5 + 8.5)``.
    """
    by_seed = _per_seed(section, entry, label)
    interval = interval_of(by_seed, "violated")
    if interval is None:
        return None
    clients = [findings.numbers["clients"].value or 0 for findings in by_seed]
    low = int(min(clients))
    high = int(max(clients))
    suffix = f" of {low:,}"
    if high > low:
        suffix += f" to {high:,}"
    by_group = []
    for group in section.groups:
        in_group = interval_of(by_seed, f"violated:{group.name}")
        if in_group is not None:
            by_group.append(f"{in_group.mean:.1f}")
    if by_group:
        suffix += f" ({' + '.join(by_group)})"
    return value(interval, Words(suffix))


def _per_seed(section: Section, entry: Entry, label: str) -> list[Findings]:
    by_seed = seeds_of(section, entry, label)
    return [f for f in by_seed if {"violated", "clients"} <= f.numbers.keys()]


# ---------------------------------------------------------------- migration


BASE = "ifca"  # clients follow their loss alone
SIDES = ("moved clients", "others")


class Migration(Analysis):
    """Exposure of every client, and the model that serves it in the end."""

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Tell whether the setting has groups of clients."""
        return bool(setting.get("groups"))

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Return ``exposure`` [K], NaN where not known, and ``assignment`` [K].

        None unless groups of clients are judged in a federation of several models.
        """
        targets = judgement.targets if judgement else ()
        groups = [target for target in targets if target.group is not None]
        if not groups or not len(run.assignment):
            return None
        exposure = np.full(run.clients, np.nan)
        for target in groups:
            for client, client_auc in exposures(target).items():
                exposure[client] = client_auc
        arrays = {"exposure": exposure, "assignment": run.assignment[-1].astype(np.float64)}
        return Findings({}, arrays, {"exposure": "AUC", "assignment": "model"})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw the mean exposure of clients that end with another model than under IFCA, and of
        the others.

        Both start from the same initial models (one draw a seed), so model j is the same model in
        name. Nothing where the section lacks IFCA, or another defense of several models.
        """
        base = next((row for row in section.rows if row.name == BASE), None)
        if base is None:
            return
        rows: list[Any] = []
        for row in section.rows:
            if row.name != BASE and _clustered(row):
                rows += _lines(section, base, row, label)
        if rows:
            yield _migration_table(base, rows)


def _clustered(row: Row) -> bool:
    audited = chain.from_iterable(row.histories)
    return any(audited_round.clusters for audited_round in audited)


def exposures(judged: Judged) -> dict[int, float]:
    """Map a client to the AUC of its own members among a group's candidates against outsiders of
    the group's distribution.
    """
    outside = judged.scores[judged.counted & ~judged.member]
    by_client = {}
    for client in np.unique(judged.owner[judged.member]):
        members = judged.scores[judged.member & (judged.owner == client)]
        if len(members) and len(outside):
            by_client[int(client)] = separation(members, outside)
    return by_client


def _lines(section: Section, base: Row, row: Row, label: str) -> Iterator[tuple[Content, ...]]:
    """Yield a line an attack, unless no seed has findings of both rows."""
    for attack in section.attacks:
        moved, stayed = _changes(section, base, row, attack, label)
        if moved or stayed:
            yield row.label, attack, *_side(moved), *_side(stayed)


def _changes(
    section: Section, base: Row, row: Row, attack: str, label: str
) -> tuple[list[ndarray], list[ndarray]]:
    """Exposures (before, after) [n, 2] of the clients that end with another model than under the
    base, and of the others: an array a seed that has any.
    """
    moved: list[ndarray] = []
    stayed: list[ndarray] = []
    for seed in section.seeds:
        before = base.entries[attack].findings(label, seed)
        after = row.entries[attack].findings(label, seed)
        if _complete(before) and _complete(after):
            both = np.column_stack([before.arrays["exposure"], after.arrays["exposure"]])
            known = ~np.isnan(both).any(axis=1)
            differ = before.arrays["assignment"] != after.arrays["assignment"]
            moved.append(both[known & differ])
            stayed.append(both[known & ~differ])
    return [of for of in moved if len(of)], [of for of in stayed if len(of)]


def _complete(findings: Findings | None) -> TypeGuard[Findings]:
    return findings is not None and {"exposure", "assignment"} <= findings.arrays.keys()


def _side(changes: Sequence[ndarray]) -> tuple[Content, ...]:
    """Count the clients of all seeds; means over seeds before and after, and of the change: the
    clients of one seed share a training.
    """
    if not changes:
        return Words("0"), None, None, None
    before, after = np.array([of_seed.mean(axis=0) for of_seed in changes]).T
    means = Value(mean=float(before.mean())), Value(mean=float(after.mean()))
    count = Value(mean=sum(map(len, changes)))
    return count, *means, over_seeds((after - before).tolist())


def _migration_table(base: Row, rows: list[tuple[Content, ...]]) -> Table:
    columns = [words("defense"), words("attack")]
    for clients in SIDES:
        columns += [
            numbers(clients, digits=0),
            numbers("before", direction="lower"),
            numbers("after", direction="lower"),
            numbers("change", direction="lower", signed=True),
        ]
    caption = (
        Words(" AUC of a client's own members against outsiders like its group's, under "),
        Quote(base.label, style="code"),
        Words(
            " (before) and under the defense (after), for clients that end with another model and "
            "for the others (counts are of all seeds); means over seeds, change with its 95 % "
            "interval over these"
        ),
    )
    return table("Does migration lower the risk, or move it?", caption, columns, rows)


# ---------------------------------------------------------------- source inference


class SourceAccuracy(Analysis):
    """Share of the audited training samples with their owner's upload as the one of least loss.

    The accuracy of source inference (Hu et al., ICDM 2021) in the last audited round,
    over the samples of the clients that took part; ``guessing`` is one among these clients.
    """

    needs = frozenset({"loss"})
    by_default = False

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Return ``source accuracy`` and ``guessing``; None with fewer than two clients."""
        rows = np.array(run.rows)
        losses = run.signals["loss"][-1]
        present = (rows >= 0) & ~np.isnan(losses).any(axis=1)
        clients = rows[present]
        asked = np.isin(run.pool, clients)
        if len(clients) < 2 or not asked.any():
            return None
        sources = clients[np.argmin(losses[present][:, asked], axis=0)]
        accuracy = float((sources == run.pool[asked]).mean())
        error = float(np.sqrt(accuracy * (1 - accuracy) / asked.sum()))
        numbers = {"source accuracy": Number(accuracy, error), "guessing": Number(1 / len(clients))}
        return Findings(numbers)
