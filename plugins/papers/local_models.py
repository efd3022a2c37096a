"""Client models on members and outside non-members: distributions, generalisation error, losses.

MemberShield (Ahmed et al., Neural Networks 2025).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Literal

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
    members_of,
    numbers,
    outsiders_of,
    seeds_of,
    separation,
    shown,
    stroke,
    table,
    words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# ---------------------------------------------------------------- distributions (Figures 1 to 6)


GRADIENT = "upload-grad-sq"
_BINS = 40
EDGES = {  # fixed, so that panels can be compared; the outer bins hold what lies beyond
    "confidence": np.linspace(0, 1, _BINS + 1),
    "modified entropy": np.logspace(-6, 2, _BINS + 1),
    "gradient norm": np.logspace(-6, 4, _BINS + 1),
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
        """Count ``<number> members`` and ``<number> non-members`` [40].

        ``<number> distance`` is the total variation of the two, with its bootstrap error over
        samples, and ``<number> null`` its mean where both are drawn from one distribution. None
        where no client has both members and outsiders among the audited samples.
        """
        values = _values(run)
        clients = clients_of(run)
        if not clients:
            return None
        models = [(len(run.rounds) - 1, k) for k in clients]
        worst = self.params.which == "worst"
        if worst:
            every_model = product(range(len(run.rounds)), clients)
            models = [max(every_model, key=lambda model: _best_advantage(run, values, *model))]
        numbers: dict[str, Number] = {}
        arrays: dict[str, ndarray] = {}
        for name in EDGES:
            sides = {side: _bins(run, name, values[name], models, side) for side in SIDES}
            for side, bins in sides.items():
                if not (bins >= 0).any():
                    return None
                arrays[f"{name} {side}"] = _counts(bins)
            numbers |= _distances(name, [*sides.values()], run.rng(f"distributions/{name}"))
        if worst:
            ((r, k),) = models
            numbers |= {"client": Number(k), "round": Number(int(run.rounds[r]))}
        return Findings(numbers, arrays, dict.fromkeys(arrays, "samples"))

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw the distances, and members over non-members, a row of panels a defense."""
        yield Numbers(label)
        if by_row(section, label):
            oracle = self.params.which == "worst"
            kind = "distributions-worst" if oracle else "distributions"  # a suite may have both
            drawing = partial(_draw_distributions, section, label, oracle)
            yield Figure(kind, "Members and non-members", drawing)


def _values(run: FinishedRun) -> dict[str, ndarray]:
    """Map a name to [R, K, N]; what does not vary over the clients is the same for each."""
    shape = (len(run.rounds), len(run.rows), len(run.pool))
    values = {
        "confidence": run.signals["confidence"],
        "modified entropy": run.signals["modified-entropy"],
        "gradient norm": np.sqrt(run.signals[GRADIENT]),
    }
    return {name: np.broadcast_to(a, shape) for name, a in values.items()}


def _best_advantage(run: FinishedRun, values: dict[str, ndarray], r: int, k: int) -> float:
    """Largest advantage of a threshold on one of the numbers, for the client's members."""
    row = run.rows.index(k)
    members = members_of(run, k)
    outsiders = outsiders_of(run, k)
    advantages = []
    for array in values.values():
        a = array[r, row]
        advantages.append(advantage(a[members & np.isfinite(a)], a[outsiders & np.isfinite(a)]))
    return max(advantages)


def _bins(
    run: FinishedRun, name: str, values: ndarray, models: list[tuple[int, int]], side: str
) -> ndarray:
    """Bin [m, N] that each of m models (round, client) puts a sample of the side in, else -1."""
    rows = []
    for r, k in models:
        a = values[r, run.rows.index(k)]
        bins = np.clip(np.searchsorted(EDGES[name], a, side="right") - 1, 0, _BINS - 1)
        rows.append(np.where(SIDES[side](run, k) & np.isfinite(a), bins, -1))
    return np.stack(rows)


def _counts(bins: ndarray, weights: ndarray | None = None) -> ndarray:
    """Count the samples of each bin, [40]; ``weights`` [N]: how often each counts."""
    inside = bins >= 0
    if weights is not None:
        weights = np.broadcast_to(weights, bins.shape)[inside]
    return np.bincount(bins[inside], weights, minlength=_BINS)


def _distances(name: str, sides: list[ndarray], rng: np.random.Generator) -> dict[str, Number]:
    counts = [_counts(bins) for bins in sides]
    resampled = []
    for _ in range(_REPEATS):
        again = [_counts(bins, rng.poisson(1.0, bins.shape[1:])) for bins in sides]
        resampled.append(total_variation(*again))
    shares = sum(counts) / sum(c.sum() for c in counts)
    sizes = [int((bins >= 0).any(axis=0).sum()) for bins in sides]
    null = []
    for _ in range(_REPEATS):
        null.append(total_variation(*[rng.multinomial(n, shares) for n in sizes]))
    error = float(np.nanstd(resampled))
    return {
        f"{name} distance": Number(total_variation(*counts), error, "total variation"),
        f"{name} null": Number(float(np.mean(null)), unit="total variation"),
    }


def total_variation(p: ndarray, q: ndarray) -> float:
    """Half the sum of absolute differences of two histograms' shares; NaN where one is empty."""
    if not p.sum() or not q.sum():
        return float("nan")
    return float(np.abs(p / p.sum() - q / q.sum()).sum() / 2)


def _draw_distributions(section: Section, label: str, oracle: bool, style: Style) -> Canvas:
    """Draw shares of each bin, all seeds together; a column a number, a row a defense."""
    rows = by_row(section, label, "confidence members")
    figure = style.new_figure(3.3 * len(EDGES), 1.5 * len(rows) + 0.9)
    axes = figure.subplots(len(rows), len(EDGES), squeeze=False, sharex="col")
    for (name, by_seed), panels in zip(rows.items(), axes, strict=True):
        for number, axis in zip(EDGES, panels, strict=True):
            _histograms(axis, style, by_seed, number)
        panels[0].set_ylabel(style.literal(name, 24), fontsize=8)
    for number, axis in zip(EDGES, axes[-1], strict=True):
        axis.set_xlabel(number)
    models = "all clients' models, last audited round"
    if oracle:
        models = "the model that separates members best (oracle)"
    return framed(figure, axes[0][0], style, section, f"Members and non-members under {models}")


def _histograms(axis: Axes, style: Style, by_seed: Sequence[Findings], number: str) -> None:
    """Draw members and non-members by one number."""
    bins = EDGES[number]
    for i, side in enumerate(SIDES):
        counts = np.sum([f.arrays[f"{number} {side}"] for f in by_seed], axis=0)
        if counts.sum():
            shares = counts / counts.sum()
            axis.stairs(shares, bins, color=style.colour(i), fill=True, alpha=0.35, label=side)
            axis.stairs(shares, bins, lw=1.1, **stroke(style, i))
    if bins[0] > 0:
        axis.set_xscale("log")
    axis.set_yticks([])


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

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Return ``error`` [n] of each (client, class), with ``client`` and ``class``.

        ``mean`` of it, with its bootstrap error over samples, and ``gap``, the mean of the signed
        differences, which noise does not raise. Last audited round; None where no class has enough
        samples.
        """
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
