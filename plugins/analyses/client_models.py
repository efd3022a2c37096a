"""What each client's model and the global one do on the client's training and test samples (MemberShield, Tables 10 and 11)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number, Params
from fedbench.core.metrics import auc
from fedbench.core.report import Block, Content, Row, Section, Table, Value, Words  # fmt: skip
from fedbench.plugins.analyses.common import advantage, clients_of, members_of, numbers, outsiders_of, seeds_of, shown, words

MODELS = ("local", "global")
WHAT = ("train loss", "test loss", "train accuracy", "test accuracy", "AUC", "advantage")
_MODEL = 1000  # ids of the global models' rows are -1, -1001, -2001, ...


class ClientModels(Analysis):
    """Loss, accuracy and what the loss tells of membership, of every client's uploaded model and of the global one after it."""

    needs = frozenset({"loss", "margin"})
    also = frozenset({"client"})
    by_default = False

    class Params(Params):
        round: int | None = Field(
            None, ge=1, description="the round to show, or the last audited one before it; by default the last audited one"
        )
        defenses: tuple[str, ...] = Field((), description="labels of the defenses that a board shows; by default all")

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Arrays ``local`` and ``global`` + `` train loss`` and so on [K], NaN where not known; ``round``. AUC and advantage are
        those of the loss in that round alone, and of the advantage the best threshold is chosen on the answers. None where no
        round so early was audited."""
        last = run.rounds.max() if self.params.round is None else self.params.round
        at = np.flatnonzero(run.rounds <= last)
        clients = clients_of(run)
        if not len(at) or not clients:
            return None
        arrays = {f"{model} {what}": np.full(run.clients, np.nan) for model in MODELS for what in WHAT}
        for k in clients:
            through = (k, -1 - _MODEL * int(run.assignment[at[-1], k]))
            for model, row in zip(MODELS, through, strict=True):
                for what, found in zip(WHAT, _of(run, int(at[-1]), run.rows.index(row), k), strict=True):
                    arrays[f"{model} {what}"][k] = found
        units = {name: "nats" if "loss" in name else "fraction" for name in arrays}
        return Findings({"round": Number(int(run.rounds[at[-1]]))}, arrays, units)

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """A row a defense and client, means over seeds."""
        rows = [row for row in section.rows if shown(row.label, self.params.defenses)]
        lines = tuple(line for row in rows for line in _lines(section, row, label))
        if lines:
            rounds = sorted({f.numbers["round"].value or 0 for row in section.rows for f in seeds_of(section, row, label)})
            caption = Words(
                f" of each client in round {', '.join(f'{r:g}' for r in rounds)}: on its training samples and on outside "
                "non-members, and AUC and advantage of the loss in that round alone (the threshold is chosen on the answers); "
                "means over seeds"
            )
            columns = (
                numbers(f"{model} {what}", direction="higher" if what == "test accuracy" else "none")
                for model in MODELS for what in WHAT
            )  # fmt: skip
            names = (words("defense"), numbers("client", digits=0))
            yield Table(title="Local and global models", caption=caption, columns=(*names, *columns), rows=lines)


def _of(run: FinishedRun, r: int, row: int, client: int) -> list[float]:
    """In the order of ``WHAT``; NaN where the client was absent."""
    loss, right = run.signals["loss"][r, row], run.signals["margin"][r, row] > 0
    sides = [side(run, client) & np.isfinite(loss) for side in (members_of, outsiders_of)]
    if not all(side.any() for side in sides):
        return [np.nan] * len(WHAT)
    members, outsiders = (-loss[side] for side in sides)
    told = auc(np.concatenate([members, outsiders]), np.arange(len(members) + len(outsiders)) < len(members))
    losses, accuracies = ([float(of[side].mean()) for side in sides] for of in (loss, right))
    return [*losses, *accuracies, float(told), advantage(members, outsiders)]


def _lines(section: Section, row: Row, label: str) -> Iterator[tuple[Content, ...]]:
    found = [f.arrays for f in seeds_of(section, row, label, f"local {WHAT[0]}")]
    for k in range(max((len(arrays[f"local {WHAT[0]}"]) for arrays in found), default=0)):
        means = [_mean([arrays[f"{model} {what}"][k] for arrays in found]) for model in MODELS for what in WHAT]
        if any(m is not None for m in means):
            yield row.label, Value(mean=k), *(Value(mean=m) for m in means)


def _mean(values: list[float]) -> float | None:
    known = [v for v in values if np.isfinite(v)]
    return float(np.mean(known)) if known else None
