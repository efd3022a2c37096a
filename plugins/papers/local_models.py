"""Client models on members and outside non-members: generalisation error, losses.

MemberShield (Ahmed et al., Neural Networks 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray
from pydantic import Field

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number, Params
from fedbench.core.report import (
    Block,
    Content,
    Figure,
    Numbers,
    Row,
    Section,
    Style,
    Value,
)
from fedbench.plugins.analyses.common import (
    advantage,
    arrays_of,
    by_row,
    clients_of,
    colour,
    finite_mean,
    framed,
    grid,
    in_order,
    left_out,
    members_of,
    numbers,
    outsiders_of,
    seeds_of,
    separation,
    shown,
    table,
    words,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


_REPEATS = 200

# ---------------------------------------------------------------- generalisation error (Figure 7)


class GeneralisationError(Analysis):
    """Absolute difference of the accuracies on members and on outside non-members, of every class
    under every client's local model.
    """

    needs = frozenset({"margin"})
    by_default = False

    class Params(Params):
        least: int = Field(
            5, ge=1, description="samples that a class needs on either side to count for a client"
        )
        attacks: tuple[str, ...] = Field(
            (), description="labels of the attacks that it has findings beside; by default all"
        )

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Return ``error`` [n] of each (client, class), with ``client`` and ``class``.

        ``mean`` of it, with its bootstrap error over samples, and ``gap``, the mean of the signed
        differences, which noise does not raise. Last audited round; None where no class has enough
        samples.
        """
        if left_out(judgement, self.params.attacks):
            return None
        margin = run.signals["margin"][-1]  # [K', N]
        counted = np.isfinite(margin)
        correct = margin > 0
        samples = len(run.pool)
        least = self.params.least
        totals, differences = _differences(run, correct, counted, np.ones(samples))
        client, label = np.nonzero((totals >= least).all(axis=0))
        if not len(client):
            return None
        signed = differences[client, label]
        error = np.abs(signed)
        rng = run.rng("generalisation-error")
        resampled = []
        for _ in range(_REPEATS):
            times = rng.poisson(1.0, samples).astype(float)
            resampled.append(_differences(run, correct, counted, times)[1][client, label])
        drawn = np.array(resampled)
        numbers = {
            "mean": Number(float(error.mean()), _spread(np.abs(drawn)), "fraction"),
            "gap": Number(float(signed.mean()), _spread(drawn), "fraction"),
            "classes": Number(len(client), unit="classes x clients"),
        }
        arrays = {"error": error, "client": client.astype(float), "class": label.astype(float)}
        return Findings(numbers, arrays, {"error": "fraction", "client": "id", "class": "label"})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw the means, and the share of classes below each error: one line a defense, all seeds
        together.
        """
        yield Numbers(label)
        errors = errors_of(section, label)
        if errors:
            drawing = partial(_draw_errors, section, errors)
            yield Figure("generalisation", "Generalisation error", drawing)


def _differences(
    run: FinishedRun, correct: ndarray, counted: ndarray, times: ndarray
) -> tuple[ndarray, ndarray]:
    """Count the samples [2, K, C] of clients' members and outsiders by class, and subtract the
    accuracy [K, C] outside from that inside.

    A sample counts ``times`` [N]. NaN where a side has none.
    """
    classes = int(run.pool_y.max(initial=-1)) + 1
    totals, hits = np.zeros((2, 2, run.clients, classes))
    for k in clients_of(run):
        row = run.rows.index(k)
        for side, mask in enumerate((members_of(run, k), outsiders_of(run, k))):
            mask = mask & counted[row]
            y = run.pool_y[mask]
            weights = times[mask]
            totals[side, k] = np.bincount(y, weights, classes)
            hits[side, k] = np.bincount(y, weights * correct[row][mask], classes)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
        inside, outside = hits / totals
    return totals, inside - outside


def _spread(drawn: ndarray) -> float:
    """Standard deviation over repeats of the mean over pairs; a pair that a repeat left empty does
    not count there.
    """
    return float(np.nanmean(drawn, axis=1).std())


def errors_of(section: Section, label: str) -> dict[str, ndarray]:
    """Map a row's label to the sorted errors of all clients, classes and seeds."""
    errors = {}
    for name, by_seed in by_row(section, label, "error").items():
        errors[name] = np.sort(np.concatenate([f.arrays["error"] for f in by_seed]))
    return errors


def _draw_errors(section: Section, errors: dict[str, ndarray], style: Style) -> Canvas:
    figure = style.new_figure(6.4, 4.2)
    axis = figure.subplots()
    for i, row in enumerate(in_order(section)):
        if row.label in errors:
            look = {"color": colour(style, row, i), "ls": style.dashes(i)}
            axis.ecdf(errors[row.label], lw=1.3, label=style.literal(row.label), **look)
    axis.set(
        xlabel="generalisation error of a class", ylabel="share of clients' classes", xlim=(0, 1)
    )
    grid(axis)
    return framed(figure, axis, style, section, "Generalisation error (left: better)")


# ---------------------------------------------------------------- a round (Tables 10 and 11)


MODELS = ("local", "global")
QUANTITIES = ("train loss", "test loss", "train accuracy", "test accuracy", "AUC", "advantage")
_MODEL = 1000  # ids of the global models' rows are -1, -1001, -2001, ...


class ClientModels(Analysis):
    """Loss, accuracy and the AUC of the loss, of every client's uploaded model and of the global
    one after it.
    """

    needs = frozenset({"loss", "margin"})
    also = frozenset({"client"})
    by_default = False

    class Params(Params):
        round: int | None = Field(
            None,
            ge=1,
            description="the round to show, or the last audited one before it; by default the last "
            "audited one",
        )
        defenses: tuple[str, ...] = Field(
            (), description="labels of the defenses that a board shows; by default all"
        )

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Return arrays ``local`` and ``global`` + `` train loss`` and so on [K]; ``round``.

        NaN where not known. AUC and advantage are those of the loss in that round alone, and of the
        advantage the best threshold is chosen on the answers. None where no round so early was
        audited.
        """
        last = run.rounds.max() if self.params.round is None else self.params.round
        audited = np.flatnonzero(run.rounds <= last)
        clients = clients_of(run)
        if not len(audited) or not clients:
            return None
        r = int(audited[-1])
        arrays = {name: np.full(run.clients, np.nan) for name in _columns()}
        for k in clients:
            through = (k, -1 - _MODEL * int(run.assignment[r, k]))
            quantities = []
            for row in through:
                quantities += _quantities(run, r, run.rows.index(row), k)
            for array, number in zip(arrays.values(), quantities, strict=True):
                array[k] = number
        units = {name: "nats" if "loss" in name else "fraction" for name in arrays}
        return Findings({"round": Number(int(run.rounds[r]))}, arrays, units)

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw a row a defense and client, means over seeds."""
        rows: list[tuple[Content, ...]] = []
        rounds = set()
        for row in section.rows:
            rounds |= {f.numbers["round"].value or 0 for f in seeds_of(section, row, label)}
            if shown(row.label, self.params.defenses):
                rows += _model_rows(section, row, label)
        if not rows:
            return
        names = ", ".join(f"{r:g}" for r in sorted(rounds))
        caption = (
            f" of each client in round {names}: on its training samples and on outside "
            "non-members, and AUC and advantage of the loss in that round alone (the threshold is "
            "chosen on the answers); means over seeds"
        )
        columns = [words("defense"), numbers("client", digits=0)]
        for name in _columns():
            direction = "higher" if name.endswith("test accuracy") else "none"
            columns.append(numbers(name, direction=direction))
        yield table("Local and global models", caption, columns, rows)


def _columns() -> list[str]:
    """Name the quantities of both models."""
    return [f"{model} {name}" for model, name in product(MODELS, QUANTITIES)]


def _quantities(run: FinishedRun, r: int, row: int, client: int) -> list[float]:
    """Return the ``QUANTITIES`` in their order; NaN where the client was absent."""
    loss = run.signals["loss"][r, row]
    correct = run.signals["margin"][r, row] > 0
    known = np.isfinite(loss)
    inside = members_of(run, client) & known
    outside = outsiders_of(run, client) & known
    if not inside.any() or not outside.any():
        return [np.nan] * len(QUANTITIES)
    return [
        float(loss[inside].mean()),
        float(loss[outside].mean()),
        float(correct[inside].mean()),
        float(correct[outside].mean()),
        separation(-loss[inside], -loss[outside]),
        advantage(-loss[inside], -loss[outside]),
    ]


def _model_rows(section: Section, row: Row, label: str) -> Iterator[tuple[Content, ...]]:
    names = _columns()
    by_seed = arrays_of(section, row, label, names[0])
    for k in range(max((len(arrays[names[0]]) for arrays in by_seed), default=0)):
        means = []
        for name in names:
            means.append(finite_mean(arrays[name][k] for arrays in by_seed))
        if any(mean is not None for mean in means):
            yield row.label, Value(mean=k), *[Value(mean=mean) for mean in means]
