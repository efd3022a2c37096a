"""Samples used in training, per round and per sample, and the loss intervals that a bandit draws.

CoFedMID (Bai et al.), Figures 5, 7b and 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number
from fedbench.core.report import Block, Content, Figure, Row, Section, Style, Table, Value, Words
from fedbench.plugins.analyses.common import (
    by_row,
    framed,
    numbers,
    over_seeds,
    stroke,
    table,
    words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# ---------------------------------------------------------------- usage (Figures 7b and 8)


QUANTILES = {"10 %": 0.1, "median": 0.5, "90 %": 0.9}
THIRDS = ("low loss", "middle loss", "high loss")
ROUNDS = ("first", "middle", "last")
SHARES = {
    "coalition": "coalition",
    "coalition protected": "coalition, protected",
    "federation": "federation",
}
USES = ("used", "protected")
_BY_SAMPLE = [f"{use}, {name}" for use, name in product(USES, ("mean", *QUANTILES, *THIRDS))]
_BY_ROUND = [f"{share}, {name} round" for share, name in product(SHARES, ROUNDS)]
_OF_SAMPLES = (
    ", as a share of all rounds, over the audited samples of the coalition (without one: of all "
    "honest clients) and by thirds of their last loss; protected: with a flag of the defense; "
    "means over seeds with their 95 % interval"
)
_OF_ROUNDS = (
    ", as a share of all training samples of the coalition (without one: of all honest clients) "
    "and of the federation's honest clients; means over seeds with their 95 % interval"
)
_BINS = np.linspace(0, 1, 21)


class DataUsage(Analysis):
    """Rounds in which a sample is trained on, and of these with a flag of the defense (protected);
    samples a round.

    Shares of all rounds, over the audited samples of the clients that defend (of all honest ones,
    where none does), and by thirds of their last loss on their own client's upload. Shares of a
    round are of all training samples of these clients (coalition) and of all honest ones
    (federation); a client that is absent uses none.
    """

    needs = frozenset({"loss"})
    by_default = False

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Return ``used`` and ``protected`` with mean, quantiles, and means of the thirds, and
        ``<share>, <which> round``.

        Arrays ``coalition``, ``coalition protected`` and ``federation`` [T], shares used in each
        round, and ``used`` and ``protected`` [n] of every such sample. None where it is not known
        what was trained on.
        """
        rounds = len(run.used_in_round)
        honest = [k for k in range(run.clients) if k not in run.malicious]
        counted = [k for k in honest if rounds and (run.used_in_round[:, k] >= 0).all()]
        coalition = [k for k in counted if k in run.members or not run.members]
        audited = np.isin(run.pool, coalition)
        if not audited.any():
            return None
        by_sample = {"used": run.used[audited] / rounds, "protected": run.flagged[audited] / rounds}
        by_round = {
            "coalition": _share(run, run.used_in_round, coalition),
            "coalition protected": _share(run, run.flagged_in_round, coalition),
            "federation": _share(run, run.used_in_round, counted),
        }
        loss = _last_loss(run)[audited]
        numbers: dict[str, Number] = {}
        for name, share in by_sample.items():
            numbers |= _of_samples(name, share, loss)
        for name, share in by_round.items():
            numbers |= _of_rounds(name, share)
        arrays = by_round | by_sample
        return Findings(numbers, arrays, dict.fromkeys(arrays, "fraction"))

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw a row a defense, of the samples and of the rounds, and their distributions."""
        rows = by_row(section, label, "used")
        if rows:
            yield _usage_table("Rounds in which a sample is used", _OF_SAMPLES, rows, _BY_SAMPLE)
            yield _usage_table("Samples used in a round", _OF_ROUNDS, rows, _BY_ROUND)
            drawing = partial(_draw_usage, section, rows)
            yield Figure("data-usage", "Use of the training samples", drawing)


def _last_loss(run: FinishedRun) -> ndarray:
    """Loss [N] on the upload of the client that trained on the sample, in the last audited round
    with it; NaN of the others.
    """
    losses = np.full(len(run.pool), np.nan)
    for k in np.unique(run.pool[run.pool >= 0]):
        own_losses = run.signals["loss"][:, run.rows.index(int(k))][:, run.pool == k]
        present = np.flatnonzero(~np.isnan(own_losses).any(axis=1))
        if len(present):
            losses[run.pool == k] = own_losses[present[-1]]
    return losses


def _of_samples(name: str, share: ndarray, loss: ndarray) -> dict[str, Number]:
    """Mean and quantiles of ``share`` [n], and means of the thirds of lowest, middle and highest
    loss; None of one without samples.
    """
    statistics: dict[str, float | None] = {"mean": float(share.mean())}
    for quantile, q in QUANTILES.items():
        statistics[quantile] = float(np.quantile(share, q))
    finite = ~np.isnan(loss)
    order = np.argsort(loss[finite], kind="stable")
    for third, part in zip(THIRDS, np.array_split(share[finite][order], 3), strict=True):
        statistics[third] = float(part.mean()) if len(part) else None
    return {f"{name}, {key}": Number(v, unit="of the rounds") for key, v in statistics.items()}


def _of_rounds(name: str, share: ndarray) -> dict[str, Number]:
    """Shares [T] of the first, the middle and the last round."""
    ends = zip(ROUNDS, (share[0], share[(len(share) - 1) // 2], share[-1]), strict=True)
    return {f"{name}, {key} round": Number(float(v), unit="of the samples") for key, v in ends}


def _share(run: FinishedRun, counts: ndarray, clients: list[int]) -> ndarray:
    """Share [T] of all training samples of these clients that ``counts`` [T, K] has in a round."""
    return counts[:, clients].sum(axis=1) / run.sizes[clients].sum()


def _usage_table(
    title: str, caption: str, findings: Mapping[str, list[Findings]], names: list[str]
) -> Table:
    columns = [words("defense")]
    columns += [numbers(name, unit="%", scale=100, digits=1) for name in names]
    rows = []
    for label, by_seed in findings.items():
        cells: list[Content] = [label]
        for name in names:
            values = [f.numbers[name].value for f in by_seed if name in f.numbers]
            cells.append(over_seeds(values))
        rows.append(cells)
    return table(title, caption, columns, rows)


def _draw_usage(section: Section, rows: Mapping[str, Sequence[Findings]], style: Style) -> Canvas:
    """Left: samples by the share of rounds they are used in, all seeds together. Right: shares of
    each round, over seeds.
    """
    figure = style.new_figure(7.2, 1.7 * len(rows) + 0.9)
    axes = figure.subplots(len(rows), 2, squeeze=False, sharex="col")
    for (label, by_seed), (left, right) in zip(rows.items(), axes, strict=True):
        _draw_samples(left, style, by_seed)
        _draw_rounds(right, style, by_seed)
        left.set_ylabel(style.literal(label, 24), fontsize=8)
    axes[-1][0].set_xlabel("share of the rounds")
    axes[-1][1].set_xlabel("round")
    for axis in axes[0]:
        axis.legend(frameon=False, fontsize=7)
    figure.suptitle(f"Use of the training samples, {style.literal(section.where, 90)}", fontsize=10)
    return figure


def _draw_samples(axis: Axes, style: Style, by_seed: Sequence[Findings]) -> None:
    for i, use in enumerate(USES):
        shares = np.concatenate([f.arrays[use] for f in by_seed])
        counts = np.histogram(shares, _BINS)[0] / max(1, len(shares))
        axis.stairs(counts, _BINS, lw=1.3, label=use, **stroke(style, i))


def _draw_rounds(axis: Axes, style: Style, by_seed: Sequence[Findings]) -> None:
    for i, (share, name) in enumerate(SHARES.items()):
        course = np.mean([f.arrays[share] for f in by_seed], axis=0)
        rounds = 1 + np.arange(len(course))
        axis.plot(rounds, 100 * course, lw=1.3, label=name, **stroke(style, i))
    axis.set_ylim(0, 105)
    axis.set_ylabel("samples, %", fontsize=8)


# ---------------------------------------------------------------- loss intervals (Figure 5)


WHEN = ("early", "late")
DRAWS = "draws of each loss interval"
PROBABILITIES = "probabilities of the loss intervals"
PROPORTIONS = "proportions of the loss intervals"
_NEEDED = f"late {PROBABILITIES}"


class LossIntervals(Analysis):
    """Facts of a defense that recycles samples by a bandit over loss intervals; asks nothing of a
    run.
    """

    place = "costs"

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw Figure 5's proportions and probabilities, and a table of them."""
        bandits = list(chain.from_iterable(map(bandits_of, section.rows)))
        if bandits:
            yield _intervals_table(bandits)
            drawing = partial(_draw_intervals, section, bandits)
            yield Figure("loss-intervals", "Loss intervals, early and late", drawing)


@dataclass(frozen=True)
class Bandits:
    """Means over seeds of the facts of a row."""

    label: str
    values: Mapping[str, ndarray]
    """Map a fact to [M], lowest losses first."""
    shares: Mapping[str, ndarray]
    """Share that was recycled, early and late."""

    @property
    def intervals(self) -> int:
        """Number M of intervals."""
        return len(self.values[_NEEDED])


def bandits_of(row: Row) -> Iterator[Bandits]:
    """Yield one, if the row has such facts; of several defenses, which lead the names of their
    facts, one each.
    """
    names = [f"{when} {fact}" for when, fact in product(WHEN, (DRAWS, PROBABILITIES, PROPORTIONS))]
    for name in row.facts:
        lead = name.removesuffix(_NEEDED)
        if name != lead + _NEEDED or (lead and not lead.endswith(": ")):
            continue
        values = _means(row, lead, {name: name for name in names}, 1)
        shares = _means(row, lead, {when: f"recycled share {when}" for when in WHEN}, 0)
        if _NEEDED in values:
            yield Bandits(lead + row.label, values, shares)


def _means(row: Row, lead: str, facts: Mapping[str, str], ndim: int) -> dict[str, ndarray]:
    """Average facts over seeds, element by element; those of another form are left out."""
    means = {}
    for name, fact in facts.items():
        try:
            by_seed = np.array(row.facts.get(lead + fact, ()), dtype=np.float64)
        except (TypeError, ValueError):  # words, or lists of several lengths
            continue
        if len(by_seed) and by_seed.ndim == ndim + 1:
            means[name] = by_seed.mean(0)
    return means


# ---------------------------------------------------------------- table


def _intervals_table(bandits: Sequence[Bandits]) -> Table:
    most = max(b.intervals for b in bandits)
    columns = [words("defense"), words("of each interval")]
    columns += [numbers(str(j + 1), digits=2) for j in range(most)]
    columns.append(numbers("recycled"))
    caption = (
        ", intervals of a member's losses from the lowest to the highest, in the first and the "
        "last third of the rounds that recycle (means over members, rounds and seeds; recycled: "
        "samples per training sample)"
    )
    rows: list[tuple[Content, ...]] = []
    for b in bandits:
        rows += _rows(b, most)
    return table("Loss intervals that are recycled, early and late", caption, columns, rows)


_TITLES = {
    PROBABILITIES: "probability",
    DRAWS: "share of the draws",
    PROPORTIONS: "share of the samples",
}


def _rows(b: Bandits, most: int) -> Iterator[tuple[Content, ...]]:
    for when, (fact, title) in product(WHEN, _TITLES.items()):
        values = b.values.get(f"{when} {fact}")
        if values is None or not values.sum() > 0:
            continue
        cells: list[Content] = [Value(mean=float(v)) for v in values / values.sum()]
        cells += [None] * (most - len(cells))
        recycled = None
        if fact == PROBABILITIES and when in b.shares:
            recycled = Value(mean=float(b.shares[when]))
        yield b.label, Words(f"{title}, {when}"), *cells, recycled


# ---------------------------------------------------------------- figure


def _draw_intervals(section: Section, bandits: Sequence[Bandits], style: Style) -> Canvas:
    figure = style.new_figure(8.4, 2.2 * len(bandits) + 0.9)
    axes = figure.subplots(len(bandits), 2, squeeze=False)
    for b, panels in zip(bandits, axes, strict=True):
        for axis, fact in zip(panels, (PROPORTIONS, PROBABILITIES), strict=True):
            _panel(axis, style, b, fact)
        panels[0].set_title(style.literal(b.label, 40), fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("loss interval, lowest losses first")
    return framed(figure, axes[0][1], style, section, "Loss intervals, early and late")


def _panel(axis: Axes, style: Style, b: Bandits, fact: str) -> None:
    intervals = np.arange(1, b.intervals + 1)
    width = 0.4
    for i, when in enumerate(WHEN):
        values = b.values.get(f"{when} {fact}")
        if values is not None and len(values) == b.intervals:
            bars = intervals + (i - 0.5) * width
            axis.bar(bars, values, width, color=style.colour(i), label=when)
    axis.axhline(1 / b.intervals, color="black", ls=style.dashes(1), lw=0.8, label="all alike")
    axis.set_xticks(intervals)
    axis.set_ylabel(_TITLES[fact])
