"""Client models on members and outside non-members: distributions, generalisation error, losses
(MemberShield).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number, Params
from fedbench.core.metrics import auc
from fedbench.core.report import (
    Block,
    Content,
    Figure,
    Numbers,
    Row,
    Section,
    Style,
    Table,
    Value,
    Words,
)
from fedbench.plugins.analyses.common import (
    advantage,
    clients_of,
    framed,
    in_order,
    members_of,
    numbers,
    outsiders_of,
    seeds_of,
    shown,
    stroke,
    words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# ---------------------------------------------------------------- distributions (Figures 1 to 6)


GRADIENT = "upload-grad-sq"
EDGES = {  # fixed, so that panels can be compared; the outer bins hold what lies beyond
    "confidence": np.linspace(0, 1, 41),
    "modified entropy": np.logspace(-6, 2, 41),
    "gradient norm": np.logspace(-6, 4, 41),
}
SIDES = {"members": members_of, "non-members": outsiders_of}
_REPEATS = 200


class Distributions(Analysis):
    """Histograms of confidence, modified entropy and gradient norm of members and of outside
    non-members under local models.
    """

    needs = frozenset({"confidence", "modified-entropy", GRADIENT})
    by_default = False

    class Params(Params):
        which: Literal["pooled", "worst"] = Field(
            "pooled",
            description="pooled: every client's model in the last audited round; worst: the one "
            "model of all audited rounds "
            "that separates members best by one of the three numbers, as the paper's: chosen with "
            "the labels, so an oracle",
        )

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``<number> members`` and ``<number> non-members`` [40], counts; ``<number> distance``,
        the total variation of the two, with its bootstrap error over samples, and ``<number>
        null``, its mean where both are drawn from one distribution.

        None where no client has both members and outsiders among the audited samples.
        """
        values = _values(run)
        models = [(len(run.rounds) - 1, k) for k in clients_of(run)]
        if self.params.which == "worst":
            every = [(r, k) for r in range(len(run.rounds)) for k in clients_of(run)]
            models = (
                [max(every, key=lambda model: _best_advantage(run, values, *model))]
                if every
                else []
            )
        if not models:
            return None
        numbers: dict[str, Number] = {}
        arrays: dict[str, np.ndarray] = {}
        for name in EDGES:
            sides = {side: _bins(run, name, values[name], models, side) for side in SIDES}
            if not all((bins >= 0).any() for bins in sides.values()):
                return None
            numbers |= _distances(name, list(sides.values()), run.rng(f"distributions/{name}"))
            arrays |= {f"{name} {side}": _counts(bins) for side, bins in sides.items()}
        if self.params.which == "worst":
            ((r, k),) = models
            numbers |= {"client": Number(k), "round": Number(int(run.rounds[r]))}
        return Findings(numbers, arrays, dict.fromkeys(arrays, "samples"))

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """The distances of every defense, and members over non-members, a row of panels a defense."""
        yield Numbers(label)
        if any(seeds_of(section, row, label) for row in section.rows):
            oracle = self.params.which == "worst"
            kind = "distributions-worst" if oracle else "distributions"  # a suite may have both
            yield Figure(
                kind,
                "Members and non-members",
                partial(_draw_distributions, section, label, oracle),
            )


def _values(run: FinishedRun) -> dict[str, np.ndarray]:
    """Name -> [R, K, N]; what does not vary over the clients is the same for each."""
    shape = (len(run.rounds), len(run.rows), len(run.pool))
    found = {
        "confidence": run.signals["confidence"],
        "modified entropy": run.signals["modified-entropy"],
        "gradient norm": np.sqrt(run.signals[GRADIENT]),
    }
    return {name: np.broadcast_to(a, shape) for name, a in found.items()}


def _best_advantage(run: FinishedRun, values: dict[str, np.ndarray], r: int, k: int) -> float:
    """The largest advantage of a threshold on one of the numbers, for the client's members."""
    row = run.rows.index(k)
    seen = [a[r, row] for a in values.values()]
    return max(
        advantage(a[members_of(run, k) & np.isfinite(a)], a[outsiders_of(run, k) & np.isfinite(a)])
        for a in seen
    )


def _bins(
    run: FinishedRun, name: str, values: np.ndarray, models: list[tuple[int, int]], side: str
) -> np.ndarray:
    """[m, N] the bin that each of m models (round, client) puts a sample in, -1 where it is not of
    the side.
    """
    rows = []
    for r, k in models:
        a = values[r, run.rows.index(k)]
        bins = np.clip(np.searchsorted(EDGES[name], a, side="right") - 1, 0, len(EDGES[name]) - 2)
        rows.append(np.where(SIDES[side](run, k) & np.isfinite(a), bins, -1))
    return np.stack(rows)


def _counts(bins: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """[40] how many fall in each bin; a sample counts as often as its weight says, under all models
    alike.
    """
    here = bins >= 0
    return np.bincount(
        bins[here],
        None if weights is None else np.broadcast_to(weights, bins.shape)[here],
        minlength=40,
    )


def _distances(name: str, sides: list[np.ndarray], rng: np.random.Generator) -> dict[str, Number]:
    whole = [_counts(bins) for bins in sides]
    drawn = [
        total_variation(*(_counts(bins, rng.poisson(1.0, bins.shape[1:])) for bins in sides))
        for _ in range(_REPEATS)
    ]
    shares = sum(whole) / sum(w.sum() for w in whole)
    samples = [int((bins >= 0).any(axis=0).sum()) for bins in sides]
    null = [
        total_variation(*(rng.multinomial(n, shares) for n in samples)) for _ in range(_REPEATS)
    ]
    return {
        f"{name} distance": Number(
            total_variation(*whole), float(np.nanstd(drawn)), "total variation"
        ),
        f"{name} null": Number(float(np.mean(null)), unit="total variation"),
    }


def total_variation(one: np.ndarray, other: np.ndarray) -> float:
    """Half the sum of absolute differences of two histograms' shares: 0 alike, 1 apart; NaN where
    one is empty.
    """
    if not one.sum() or not other.sum():
        return float("nan")
    return float(np.abs(one / one.sum() - other / other.sum()).sum() / 2)


def _draw_distributions(section: Section, label: str, oracle: bool, style: Style) -> Canvas:
    """Shares of each bin, all seeds together; one column a number, one row a defense that has
    findings.
    """
    found = {
        row.label: [f.arrays for f in seeds_of(section, row, label, "confidence members")]
        for row in section.rows
    }
    found = {name: arrays for name, arrays in found.items() if arrays}
    figure = style.new_figure(3.3 * len(EDGES), 1.5 * len(found) + 0.9)
    axes = figure.subplots(len(found), len(EDGES), squeeze=False, sharex="col")
    for (row, arrays), line in zip(found.items(), axes, strict=True):
        for (name, bins), axis in zip(EDGES.items(), line, strict=True):
            for i, side in enumerate(SIDES):
                _outline(
                    axis,
                    style,
                    np.sum([a[f"{name} {side}"] for a in arrays], axis=0),
                    bins,
                    i,
                    side,
                )
            if bins[0] > 0:
                axis.set_xscale("log")
            axis.set_yticks([])
        line[0].set_ylabel(style.literal(row, 24), fontsize=8)
    for name, axis in zip(EDGES, axes[-1], strict=True):
        axis.set_xlabel(name)
    models = (
        "the model that separates members best (oracle)"
        if oracle
        else "all clients' models, last audited round"
    )
    return framed(figure, axes[0][0], style, section, f"Members and non-members under {models}")


def _outline(
    axis: Axes, style: Style, counts: np.ndarray, bins: np.ndarray, i: int, side: str
) -> None:
    if counts.sum():
        axis.stairs(
            counts / counts.sum(), bins, color=style.colour(i), fill=True, alpha=0.35, label=side
        )
        axis.stairs(counts / counts.sum(), bins, color=style.colour(i), lw=1.1, ls=style.dashes(i))


# ---------------------------------------------------------------- generalisation error (Figure 7)


_REPEATS = 200


class GeneralisationError(Analysis):
    """|accuracy on members - accuracy on outside non-members| of every class under every client's
    local model.
    """

    needs = frozenset({"margin"})
    by_default = False

    class Params(Params):
        least: int = Field(
            5, ge=1, description="samples that a class needs on either side to count for a client"
        )

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``error`` [n] of each (client, class), with ``client`` and ``class``; ``mean`` of it,
        with its bootstrap error over samples, and ``gap``, the mean of the signed differences,
        which noise does not raise. Last audited round; None where no class has enough samples.
        """
        margin = run.signals["margin"][-1]  # [K', N]
        counted, correct = np.isfinite(margin), margin > 0
        samples = np.ones(len(run.pool))
        pairs, differences = _differences(run, correct, counted, samples, self.params.least)
        if not pairs:
            return None
        rng = run.rng("generalisation-error")
        again = [rng.poisson(1.0, len(samples)).astype(float) for _ in range(_REPEATS)]
        drawn = np.array(
            [
                _differences(run, correct, counted, times, self.params.least, {*pairs})[1]
                for times in again
            ]
        )
        client, label = np.array(pairs, float).T
        numbers = {
            "mean": Number(float(np.abs(differences).mean()), _spread(np.abs(drawn)), "fraction"),
            "gap": Number(float(differences.mean()), _spread(drawn), "fraction"),
            "classes": Number(len(pairs), unit="classes x clients"),
        }
        arrays = {"error": np.abs(differences), "client": client, "class": label}
        return Findings(numbers, arrays, {"error": "fraction", "client": "id", "class": "label"})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """The means, and the share of classes below each error: one line a defense, all seeds
        together.
        """
        yield Numbers(label)
        found = errors_of(section, label)
        if found:
            yield Figure(
                "generalisation", "Generalisation error", partial(_draw_errors, section, found)
            )


def _differences(
    run: FinishedRun,
    correct: np.ndarray,
    counted: np.ndarray,
    times: np.ndarray,
    least: int,
    wanted: Collection[tuple[int, int]] | None = None,
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """(client, class) with enough samples (or those ``wanted``), and accuracy inside less outside,
    samples counted ``times``.
    """
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
                found.append(
                    right[0][c] / n[0][c] - right[1][c] / n[1][c] if n[0][c] and n[1][c] else np.nan
                )
    return pairs, np.array(found)


def _spread(drawn: np.ndarray) -> float:
    """Standard deviation over repeats of the mean over pairs; a pair that a repeat left empty does
    not count there.
    """
    return float(np.nanmean(drawn, axis=1).std())


def errors_of(section: Section, label: str) -> dict[str, np.ndarray]:
    """Row's label -> sorted errors of all clients, classes and seeds."""
    found = {
        row.label: [f.arrays["error"] for f in seeds_of(section, row, label, "error")]
        for row in section.rows
    }
    return {name: np.sort(np.concatenate(errors)) for name, errors in found.items() if errors}


def _draw_errors(section: Section, found: dict[str, np.ndarray], style: Style) -> Canvas:
    figure = style.new_figure(6.4, 4.2)
    axis = figure.subplots()
    for i, row in enumerate(in_order(section)):
        if row.label in found:
            axis.ecdf(
                found[row.label], lw=1.3, label=style.literal(row.label), **stroke(style, row, i)
            )
    axis.set(
        xlabel="generalisation error of a class", ylabel="share of clients' classes", xlim=(0, 1)
    )
    axis.grid(True, color="0.92", lw=0.6)
    return framed(figure, axis, style, section, "Generalisation error (left: better)")


# ---------------------------------------------------------------- every model in one round (Tables
# 10 and 11)


MODELS = ("local", "global")
WHAT = ("train loss", "test loss", "train accuracy", "test accuracy", "AUC", "advantage")
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
        """Arrays ``local`` and ``global`` + `` train loss`` and so on [K], NaN where not known;
        ``round``. AUC and advantage are those of the loss in that round alone, and of the advantage
        the best threshold is chosen on the answers. None where no round so early was audited.
        """
        last = run.rounds.max() if self.params.round is None else self.params.round
        at = np.flatnonzero(run.rounds <= last)
        clients = clients_of(run)
        if not len(at) or not clients:
            return None
        arrays = {
            f"{model} {what}": np.full(run.clients, np.nan) for model in MODELS for what in WHAT
        }
        for k in clients:
            through = (k, -1 - _MODEL * int(run.assignment[at[-1], k]))
            for model, row in zip(MODELS, through, strict=True):
                for what, found in zip(
                    WHAT, _numbers_of(run, int(at[-1]), run.rows.index(row), k), strict=True
                ):
                    arrays[f"{model} {what}"][k] = found
        units = {name: "nats" if "loss" in name else "fraction" for name in arrays}
        return Findings({"round": Number(int(run.rounds[at[-1]]))}, arrays, units)

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """A row a defense and client, means over seeds."""
        rows = [row for row in section.rows if shown(row.label, self.params.defenses)]
        lines = tuple(line for row in rows for line in _model_rows(section, row, label))
        if lines:
            rounds = sorted(
                {
                    f.numbers["round"].value or 0
                    for row in section.rows
                    for f in seeds_of(section, row, label)
                }
            )
            caption = Words(
                f" of each client in round {', '.join(f'{r:g}' for r in rounds)}: on its training "
                "samples and on outside "
                "non-members, and AUC and advantage of the loss in that round alone (the threshold "
                "is chosen on the answers); "
                "means over seeds"
            )
            columns = (
                numbers(
                    f"{model} {what}", direction="higher" if what == "test accuracy" else "none"
                )
                for model in MODELS
                for what in WHAT
            )
            names = (words("defense"), numbers("client", digits=0))
            yield Table(
                title="Local and global models",
                caption=caption,
                columns=(*names, *columns),
                rows=lines,
            )


def _numbers_of(run: FinishedRun, r: int, row: int, client: int) -> list[float]:
    """In the order of ``WHAT``; NaN where the client was absent."""
    loss, right = run.signals["loss"][r, row], run.signals["margin"][r, row] > 0
    sides = [side(run, client) & np.isfinite(loss) for side in (members_of, outsiders_of)]
    if not all(side.any() for side in sides):
        return [np.nan] * len(WHAT)
    members, outsiders = (-loss[side] for side in sides)
    of_loss = auc(
        np.concatenate([members, outsiders]),
        np.arange(len(members) + len(outsiders)) < len(members),
    )
    losses, accuracies = ([float(of[side].mean()) for side in sides] for of in (loss, right))
    return [*losses, *accuracies, float(of_loss), advantage(members, outsiders)]


def _model_rows(section: Section, row: Row, label: str) -> Iterator[tuple[Content, ...]]:
    found = [f.arrays for f in seeds_of(section, row, label, f"local {WHAT[0]}")]
    for k in range(max((len(arrays[f"local {WHAT[0]}"]) for arrays in found), default=0)):
        means = [
            _mean([arrays[f"{model} {what}"][k] for arrays in found])
            for model in MODELS
            for what in WHAT
        ]
        if any(m is not None for m in means):
            yield row.label, Value(mean=k), *(Value(mean=m) for m in means)


def _mean(values: list[float]) -> float | None:
    known = [v for v in values if np.isfinite(v)]
    return float(np.mean(known)) if known else None
