"""How much better each client's model does on what it trained on, class by class (MemberShield, Figure 7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number, Params
from fedbench.core.report import Block, Figure, Numbers, Section, Style
from fedbench.plugins.analyses.common import clients_of, framed, in_order, members_of, outsiders_of, seeds_of, stroke

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_REPEATS = 200


class GeneralisationError(Analysis):
    """|accuracy on members - accuracy on outside non-members| of every class under every client's local model."""

    needs = frozenset({"margin"})
    by_default = False

    class Params(Params):
        least: int = Field(5, ge=1, description="samples that a class needs on either side to count for a client")

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``error`` [n] of each (client, class), with ``client`` and ``class``; ``mean`` of it, with its bootstrap error over
        samples, and ``gap``, the mean of the signed differences, which noise does not raise. Last audited round; None where no
        class has enough samples."""
        margin = run.signals["margin"][-1]  # [K', N]
        counted, correct = np.isfinite(margin), margin > 0
        samples = np.ones(len(run.pool))
        pairs, differences = _differences(run, correct, counted, samples, self.params.least)
        if not pairs:
            return None
        rng = run.rng("generalisation-error")
        again = [rng.poisson(1.0, len(samples)).astype(float) for _ in range(_REPEATS)]
        drawn = np.array([_differences(run, correct, counted, times, self.params.least, {*pairs})[1] for times in again])
        client, label = np.array(pairs, float).T
        numbers = {
            "mean": Number(float(np.abs(differences).mean()), _spread(np.abs(drawn)), "fraction"),
            "gap": Number(float(differences.mean()), _spread(drawn), "fraction"),
            "classes": Number(len(pairs), unit="classes x clients"),
        }
        arrays = {"error": np.abs(differences), "client": client, "class": label}
        return Findings(numbers, arrays, {"error": "fraction", "client": "id", "class": "label"})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """The means, and the share of classes below each error: one line a defense, all seeds together."""
        yield Numbers(label)
        found = errors_of(section, label)
        if found:
            yield Figure("generalisation", "Generalisation error", partial(_draw, section, found))


def _differences(
    run: FinishedRun, correct: np.ndarray, counted: np.ndarray, times: np.ndarray, least: int,
    wanted: Collection[tuple[int, int]] | None = None,
) -> tuple[list[tuple[int, int]], np.ndarray]:  # fmt: skip
    """(client, class) with enough samples (or those ``wanted``), and accuracy inside less outside, samples counted ``times``."""
    classes = int(run.pool_y.max()) + 1 if len(run.pool_y) else 0
    pairs, found = [], []
    for k in clients_of(run):
        row = run.rows.index(k)
        sides = [side & counted[row] for side in (members_of(run, k), outsiders_of(run, k))]
        n, right = (
            [np.bincount(run.pool_y[side], times[side] * weight[side], classes) for side in sides]
            for weight in (np.ones(len(times)), correct[row])
        )
        for c in range(classes):
            if (k, c) in wanted if wanted is not None else min(n[0][c], n[1][c]) >= least:
                pairs.append((k, c))
                found.append(right[0][c] / n[0][c] - right[1][c] / n[1][c] if n[0][c] and n[1][c] else np.nan)
    return pairs, np.array(found)


def _spread(drawn: np.ndarray) -> float:
    """Standard deviation over repeats of the mean over pairs; a pair that a repeat left empty does not count there."""
    return float(np.nanmean(drawn, axis=1).std())


def errors_of(section: Section, label: str) -> dict[str, np.ndarray]:
    """Row's label -> sorted errors of all clients, classes and seeds."""
    found = {row.label: [f.arrays["error"] for f in seeds_of(section, row, label, "error")] for row in section.rows}
    return {name: np.sort(np.concatenate(errors)) for name, errors in found.items() if errors}


def _draw(section: Section, found: dict[str, np.ndarray], style: Style) -> Canvas:
    figure = style.new_figure(6.4, 4.2)
    axis = figure.subplots()
    for i, row in enumerate(in_order(section)):
        if row.label in found:
            axis.ecdf(found[row.label], lw=1.3, label=style.literal(row.label), **stroke(style, row, i))
    axis.set(xlabel="generalisation error of a class", ylabel="share of clients' classes", xlim=(0, 1))
    axis.grid(True, color="0.92", lw=0.6)
    return framed(figure, axis, style, section, "Generalisation error (left: better)")
