"""Samples used in training: rounds per sample, samples per round, and the loss intervals that a
bandit draws (CoFedMID).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number
from fedbench.core.report import Block, Content, Figure, Row, Section, Style, Table, Value, Words
from fedbench.plugins.analyses.common import framed, numbers, over_seeds, seeds_of, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# ---------------------------------------------------------------- rounds and samples (Figures 7b
# and 8)


QUANTILES = {"10 %": 0.1, "median": 0.5, "90 %": 0.9}
THIRDS = ("low", "middle", "high")
ROUNDS = ("first", "middle", "last")
SHARES = ("coalition", "coalition protected", "federation")
SAMPLES = tuple(
    f"{what}, {which}"
    for what in ("used", "protected")
    for which in ("mean", *QUANTILES, *(f"{t} loss" for t in THIRDS))
)
OF_ROUNDS = tuple(f"{of}, {which} round" for of in SHARES for which in ROUNDS)
_OF_SAMPLES = Words(
    ", as a share of all rounds, over the audited samples of the coalition (without one: of all "
    "honest clients) and by thirds of "
    "their last loss; protected: with a flag of the defense; means over seeds with their 95 % "
    "interval"
)
_OF_ROUNDS = Words(
    ", as a share of all training samples of the coalition (without one: of all honest clients) "
    "and of the federation's honest "
    "clients; means over seeds with their 95 % interval"
)
_BINS = np.linspace(0, 1, 21)
_LINES = {
    "coalition": "coalition",
    "coalition protected": "coalition, protected",
    "federation": "federation",
}


class DataUsage(Analysis):
    """In how many rounds a sample is trained on, in how many of these with a flag of the defense
    (protected); samples a round.

    Shares of all rounds, over the audited samples of the clients that defend (of all honest ones,
    where none does), and by thirds of their last loss on their own client's upload. Shares of a
    round are of all training samples of these clients (coalition) and of all honest ones
    (federation); a client that is absent uses none.
    """

    needs = frozenset({"loss"})
    by_default = False

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``used`` and ``protected``: mean, quantiles, and means of the thirds; ``<share>, <which>
        round``; arrays ``coalition``, ``coalition protected`` and ``federation`` [T], shares used
        in each round, and ``used`` and ``protected`` [n] of every such sample. None where it is not
        known what was trained on.
        """
        rounds = len(run.used_in_round)
        known = [
            k
            for k in range(run.clients)
            if k not in run.malicious and rounds and (run.used_in_round[:, k] >= 0).all()
        ]
        chosen = [k for k in known if k in run.members or not run.members]
        mine = np.isin(run.pool, chosen)
        if not mine.any():
            return None
        of = {"used": run.used[mine] / rounds, "protected": run.flagged[mine] / rounds}
        loss = _last_loss(run)[mine]
        numbers: dict[str, Number] = {}
        for name, share in of.items():
            values: dict[str, float | None] = {"mean": float(share.mean())}
            values |= {q: float(np.quantile(share, at)) for q, at in QUANTILES.items()}
            values |= {
                f"{third} loss": m for third, m in zip(THIRDS, _thirds(share, loss), strict=True)
            }
            numbers |= {
                f"{name}, {which}": Number(v, unit="of the rounds") for which, v in values.items()
            }
        shares = {
            "coalition": _share(run, run.used_in_round, chosen),
            "coalition protected": _share(run, run.flagged_in_round, chosen),
            "federation": _share(run, run.used_in_round, known),
        }
        for part, course in shares.items():
            of_rounds = dict(
                zip(ROUNDS, (course[0], course[(rounds - 1) // 2], course[-1]), strict=True)
            )
            numbers |= {
                f"{part}, {which} round": Number(float(v), unit="of the samples")
                for which, v in of_rounds.items()
            }
        arrays = shares | of
        return Findings(numbers, arrays, dict.fromkeys(arrays, "fraction"))

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """A row a defense, of the samples and of the rounds; the distribution over samples, and the
        shares of every round.
        """
        found = {
            row.label: f for row in section.rows if (f := seeds_of(section, row, label, "used"))
        }
        if found:
            yield _usage_table("Rounds in which a sample is used", _OF_SAMPLES, found, SAMPLES)
            yield _usage_table("Samples used in a round", _OF_ROUNDS, found, OF_ROUNDS)
            yield Figure(
                "data-usage", "Use of the training samples", partial(_draw_usage, section, found)
            )


def _last_loss(run: FinishedRun) -> np.ndarray:
    """[N] on the upload of the client that trained on the sample, in the last audited round with
    it; NaN of the others.
    """
    found = np.full(len(run.pool), np.nan)
    for k in np.unique(run.pool[run.pool >= 0]):
        own = run.signals["loss"][:, run.rows.index(int(k))][:, run.pool == k]
        there = np.flatnonzero(~np.isnan(own).any(axis=1))
        if len(there):
            found[run.pool == k] = own[there[-1]]
    return found


def _thirds(share: np.ndarray, loss: np.ndarray) -> list[float | None]:
    """Means of ``share`` over the thirds of lowest, middle and highest loss; None of one without
    samples.
    """
    order = np.argsort(loss[~np.isnan(loss)], kind="stable")
    parts = np.array_split(share[~np.isnan(loss)][order], 3)
    return [float(p.mean()) if len(p) else None for p in parts]


def _share(run: FinishedRun, counts: np.ndarray, who: list[int]) -> np.ndarray:
    """[T] of all training samples of these clients, the share in ``counts`` [T, K] of each round."""
    return counts[:, who].sum(axis=1) / run.sizes[who].sum()


def _usage_table(
    title: str, caption: Words, found: Mapping[str, list[Findings]], names: tuple[str, ...]
) -> Table:
    columns = (words("defense"), *(numbers(name, unit="%", scale=100, digits=1) for name in names))
    rows: tuple[tuple[Content, ...], ...] = tuple(
        (
            label,
            *(
                over_seeds(f.numbers[name].value for f in every if name in f.numbers)
                for name in names
            ),
        )
        for label, every in found.items()
    )
    return Table(title=title, caption=caption, columns=columns, rows=rows)


def _draw_usage(section: Section, found: Mapping[str, Sequence[Findings]], style: Style) -> Canvas:
    """Left: samples by the share of rounds they are used in, all seeds together. Right: shares of
    each round, over seeds.
    """
    figure = style.new_figure(7.2, 1.7 * len(found) + 0.9)
    axes = figure.subplots(len(found), 2, squeeze=False, sharex="col")
    for (label, every), (left, right) in zip(found.items(), axes, strict=True):
        for i, what in enumerate(("used", "protected")):
            shares = np.concatenate([f.arrays[what] for f in every])
            counts = np.histogram(shares, _BINS)[0] / max(1, len(shares))
            left.stairs(
                counts, _BINS, color=style.colour(i), ls=style.dashes(i), lw=1.3, label=what
            )
        for i, (name, shown) in enumerate(_LINES.items()):
            course = np.mean([f.arrays[name] for f in every], axis=0)
            right.plot(
                1 + np.arange(len(course)),
                100 * course,
                color=style.colour(i),
                ls=style.dashes(i),
                lw=1.3,
                label=shown,
            )
        right.set_ylim(0, 105)
        left.set_ylabel(style.literal(label, 24), fontsize=8)
        right.set_ylabel("samples, %", fontsize=8)
    axes[-1][0].set_xlabel("share of the rounds")
    axes[-1][1].set_xlabel("round")
    for axis in axes[0]:
        axis.legend(frameon=False, fontsize=7)
    figure.suptitle(f"Use of the training samples, {style.literal(section.where, 90)}", fontsize=10)
    return figure


# ---------------------------------------------------------------- loss intervals (Figure 5)


WHEN = ("early", "late")
DRAWS = "draws of each loss interval"
PROBABILITIES, PROPORTIONS = (
    f"{what} of the loss intervals" for what in ("probabilities", "proportions")
)
_NEEDED = f"late {PROBABILITIES}"


class LossIntervals(Analysis):
    """Reads the facts of a defense that recycles samples by a bandit over loss intervals; asks
    nothing of a run.
    """

    place = "costs"
    tells = (DRAWS, PROBABILITIES, PROPORTIONS)

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Figure 5's proportions and probabilities, and a table of them; nothing where no row has
        such facts.
        """
        found = [bandits for row in section.rows for bandits in bandits_of(row)]
        if found:
            yield _intervals_table(found)
            yield Figure(
                "loss-intervals",
                "Loss intervals, early and late",
                partial(_draw_intervals, section, found),
            )


@dataclass(frozen=True)
class Bandits:
    """Of one row, means over its seeds: ``values``: fact -> [M], lowest losses first; ``shares``:
    recycled, early and late.
    """

    label: str
    values: Mapping[str, np.ndarray]
    shares: Mapping[str, float]

    @property
    def intervals(self) -> int:
        """M."""
        return len(self.values[_NEEDED])


def bandits_of(row: Row) -> Iterator[Bandits]:
    """One, if the row has such facts; of several defenses in one, which lead the names of their
    facts, one each.
    """
    facts = row.facts
    for name in facts:
        lead = name.removesuffix(_NEEDED)
        if name == lead + _NEEDED and (not lead or lead.endswith(": ")):
            wanted = [
                f"{when} {what}" for when in WHEN for what in (DRAWS, PROBABILITIES, PROPORTIONS)
            ]
            values = {
                w: mean
                for w in wanted
                if (mean := _mean(facts.get(lead + w, ()))) is not None and mean.ndim == 1
            }
            shares = {
                w: float(mean)
                for w in WHEN
                if (mean := _mean(facts.get(f"{lead}recycled share {w}", ()))) is not None
            }
            if _NEEDED in values:
                yield Bandits(lead + row.label, values, shares)


def _mean(values: Sequence[object]) -> np.ndarray | None:
    """Over seeds, element by element; None without any, or where a record holds something else."""
    try:
        arrays = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):  # words, or lists of several lengths
        return None
    if not len(arrays):
        return None
    return arrays.mean(0)


# ---------------------------------------------------------------- table


def _intervals_table(found: Sequence[Bandits]) -> Table:
    most = max(b.intervals for b in found)
    intervals = (numbers(str(j + 1), digits=2) for j in range(most))
    columns = (words("defense"), words("of each interval"), *intervals, numbers("recycled"))
    rows = tuple(row for b in found for row in _rows(b, most))
    caption = Words(
        ", intervals of a member's losses from the lowest to the highest, in the first and the "
        "last third of the rounds that "
        "recycle (means over members, rounds and seeds; recycled: samples per training sample)"
    )
    return Table(
        title="Loss intervals that are recycled, early and late",
        caption=caption,
        columns=columns,
        rows=rows,
    )


def _rows(b: Bandits, most: int) -> Iterator[tuple[Content, ...]]:
    kinds = (
        (PROBABILITIES, "probability"),
        (DRAWS, "share of the draws"),
        (PROPORTIONS, "share of the samples"),
    )
    for when in WHEN:
        for fact, said in kinds:
            values = b.values.get(f"{when} {fact}")
            if values is not None and values.sum() > 0:
                shares = [Value(mean=float(v)) for v in values / values.sum()]
                share = (
                    Value(mean=b.shares[when])
                    if when in b.shares and fact == PROBABILITIES
                    else None
                )
                yield (
                    b.label,
                    Words(f"{said}, {when}"),
                    *shares,
                    *[None] * (most - len(shares)),
                    share,
                )


# ---------------------------------------------------------------- figure


def _draw_intervals(section: Section, found: Sequence[Bandits], style: Style) -> Canvas:
    figure = style.new_figure(8.4, 2.2 * len(found) + 0.9)
    axes = figure.subplots(len(found), 2, squeeze=False)
    for b, line in zip(found, axes, strict=True):
        for axis, fact, said in zip(
            line, (PROPORTIONS, PROBABILITIES), ("share of the samples", "probability"), strict=True
        ):
            _panel(axis, style, b, fact)
            axis.set_ylabel(said)
        line[0].set_title(style.literal(b.label, 40), fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("loss interval, lowest losses first")
    return framed(figure, axes[0][1], style, section, "Loss intervals, early and late")


def _panel(axis: Axes, style: Style, b: Bandits, fact: str) -> None:
    at, width = np.arange(1, b.intervals + 1), 0.4
    for i, when in enumerate(WHEN):
        values = b.values.get(f"{when} {fact}")
        if values is not None and len(values) == b.intervals:
            axis.bar(at + (i - 0.5) * width, values, width, color=style.colour(i), label=when)
    axis.axhline(1 / b.intervals, color="black", ls=style.dashes(1), lw=0.8, label="all alike")
    axis.set_xticks(at)
