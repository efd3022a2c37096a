"""How many clients' models give more away than the clients tolerate (IFCA-MIR, section 5.2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number
from fedbench.core.report import Block, Column, Content, Entry, Section, Table, Words, value  # fmt: skip
from fedbench.plugins.analyses.common import interval_of, seeds_of, words

NAME = "violations"


class Violations(Analysis):
    """Honest clients whose final global model an attack reads more accurately than their bound allows."""

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Where the setting's clients have bounds."""
        return bool(setting.get("thresholds"))

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``violated`` of so many ``clients``, and ``accuracy_of_model`` [S], NaN where unknown.

        The accuracy of a model is (TPR + TNR) / 2 over the candidates it serves (equation 8). None where the clients have
        no bound, and of an attack without a threshold.
        """
        if run.thresholds is None or not len(run.assignment) or judgement is None or judgement.threshold is None:
            return None
        models = run.assignment[-1]
        accuracy = accuracy_of_model(judgement, int(models.max()) + 1)
        honest = np.setdiff1d(np.arange(run.clients), run.malicious)
        violated = int((accuracy[models[honest]] > run.thresholds[honest]).sum())  # NaN exceeds nothing
        numbers = {
            "violated": Number(violated, count_error(violated, len(honest)), "clients"),
            "clients": Number(len(honest), unit="clients"),
        }
        return Findings(numbers, {"accuracy_of_model": accuracy}, {"accuracy_of_model": "fraction"})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """A column an attack; nothing where the table of the groups shows them, or where no client has a bound."""
        attacks = [a for a in section.attacks if bounded(section, a, label)]
        if attacks and not section.groups:
            rows = tuple((r.label, *(count(section, r.entries[a], label) for a in attacks)) for r in section.rows)
            yield Table(
                title="Violations", caption=Words(": clients whose model an attack reads more accurately than they tolerate"),
                columns=(words("defense"), *map(column, attacks)), rows=rows,
            )  # fmt: skip


def accuracy_of_model(judgement: Judgement, models: int) -> np.ndarray:
    """[S] (TPR + TNR) / 2 over the candidates that each model serves; NaN without members or without non-members."""
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
    """The binomial error of drawing so many bounds, one violation and one other client added, since none among 200
    clients is not none for certain (Agresti & Caffo, The American Statistician 2000)."""
    p = (violated + 1) / (clients + 2)
    return float(clients * np.sqrt(p * (1 - p) / (clients + 2)))


def bounded(section: Section, attack: str, label: str = NAME) -> bool:
    """Whether some row has violations under the attack."""
    return any(_per_seed(section, row.entries[attack], label) for row in section.rows)


def column(attack: str) -> Column:
    """Of one attack's violations."""
    return Column(name=(attack, Words(": violations")), direction="lower", digits=1)


def count(section: Section, entry: Entry, label: str = NAME) -> Content:
    """``10.0 ± 2.1 of 200``: mean over seeds with its 95 % interval, never narrower than the binomial one."""
    found = _per_seed(section, entry, label)
    interval = interval_of(found, "violated")
    if interval is None:
        return None
    clients = [f.numbers["clients"].value or 0 for f in found]
    low, high = int(min(clients)), int(max(clients))
    return value(interval, Words(f" of {low:,}" if low == high else f" of {low:,} to {high:,}"))


def _per_seed(section: Section, entry: Entry, label: str) -> list[Findings]:
    return [f for f in seeds_of(section, entry, label) if {"violated", "clients"} <= f.numbers.keys()]
