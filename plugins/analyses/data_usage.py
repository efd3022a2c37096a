"""How many rounds each sample is trained on, and how many samples a round (CoFedMID, Figures 7b and 8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number
from fedbench.core.report import Block, Content, Figure, Section, Style, Table, Words  # fmt: skip
from fedbench.plugins.analyses.common import numbers, over_seeds, seeds_of, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

QUANTILES = {"10 %": 0.1, "median": 0.5, "90 %": 0.9}
THIRDS = ("low", "middle", "high")
ROUNDS = ("first", "middle", "last")
SHARES = ("coalition", "coalition protected", "federation")
SAMPLES = tuple(
    f"{what}, {which}" for what in ("used", "protected") for which in ("mean", *QUANTILES, *(f"{t} loss" for t in THIRDS))
)
OF_ROUNDS = tuple(f"{of}, {which} round" for of in SHARES for which in ROUNDS)
_OF_SAMPLES = Words(
    ", as a share of all rounds, over the audited samples of the coalition (without one: of all honest clients) and by thirds of "
    "their last loss; protected: with a flag of the defense; means over seeds with their 95 % interval"
)
_OF_ROUNDS = Words(
    ", as a share of all training samples of the coalition (without one: of all honest clients) and of the federation's honest "
    "clients; means over seeds with their 95 % interval"
)
_BINS = np.linspace(0, 1, 21)
_LINES = {"coalition": "coalition", "coalition protected": "coalition, protected", "federation": "federation"}


class DataUsage(Analysis):
    """In how many rounds a sample is trained on, in how many of these with a flag of the defense (protected); samples a round.

    Shares of all rounds, over the audited samples of the clients that defend (of all honest ones, where none does), and by
    thirds of their last loss on their own client's upload. Shares of a round are of all training samples of these clients
    (coalition) and of all honest ones (federation); a client that is absent uses none.
    """

    needs = frozenset({"loss"})
    by_default = False

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``used`` and ``protected``: mean, quantiles, and means of the thirds; ``<share>, <which> round``; arrays ``coalition``,
        ``coalition protected`` and ``federation`` [T], shares used in each round, and ``used`` and ``protected`` [n] of every
        such sample. None where it is not known what was trained on."""
        rounds = len(run.used_in_round)
        known = [k for k in range(run.clients) if k not in run.malicious and rounds and (run.used_in_round[:, k] >= 0).all()]
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
            values |= {f"{third} loss": m for third, m in zip(THIRDS, _thirds(share, loss), strict=True)}
            numbers |= {f"{name}, {which}": Number(v, unit="of the rounds") for which, v in values.items()}
        shares = {
            "coalition": _share(run, run.used_in_round, chosen), "coalition protected": _share(run, run.flagged_in_round, chosen),
            "federation": _share(run, run.used_in_round, known),
        }  # fmt: skip
        for part, course in shares.items():
            of_rounds = dict(zip(ROUNDS, (course[0], course[(rounds - 1) // 2], course[-1]), strict=True))
            numbers |= {f"{part}, {which} round": Number(float(v), unit="of the samples") for which, v in of_rounds.items()}
        arrays = shares | of
        return Findings(numbers, arrays, dict.fromkeys(arrays, "fraction"))

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """A row a defense, of the samples and of the rounds; the distribution over samples, and the shares of every round."""
        found = {row.label: f for row in section.rows if (f := seeds_of(section, row, label, "used"))}
        if found:
            yield _table("Rounds in which a sample is used", _OF_SAMPLES, found, SAMPLES)
            yield _table("Samples used in a round", _OF_ROUNDS, found, OF_ROUNDS)
            yield Figure("data-usage", "Use of the training samples", partial(_draw, section, found))


def _last_loss(run: FinishedRun) -> np.ndarray:
    """[N] on the upload of the client that trained on the sample, in the last audited round with it; NaN of the others."""
    found = np.full(len(run.pool), np.nan)
    for k in np.unique(run.pool[run.pool >= 0]):
        own = run.signals["loss"][:, run.rows.index(int(k))][:, run.pool == k]
        there = np.flatnonzero(~np.isnan(own).any(axis=1))
        if len(there):
            found[run.pool == k] = own[there[-1]]
    return found


def _thirds(share: np.ndarray, loss: np.ndarray) -> list[float | None]:
    """Means of ``share`` over the thirds of lowest, middle and highest loss; None of one without samples."""
    order = np.argsort(loss[~np.isnan(loss)], kind="stable")
    parts = np.array_split(share[~np.isnan(loss)][order], 3)
    return [float(p.mean()) if len(p) else None for p in parts]


def _share(run: FinishedRun, counts: np.ndarray, who: list[int]) -> np.ndarray:
    """[T] of all training samples of these clients, those that ``counts`` [T, K] says of each round."""
    return counts[:, who].sum(axis=1) / run.sizes[who].sum()


def _table(title: str, caption: Words, found: Mapping[str, list[Findings]], names: tuple[str, ...]) -> Table:
    columns = (words("defense"), *(numbers(name, unit="%", scale=100, digits=1) for name in names))
    rows: tuple[tuple[Content, ...], ...] = tuple(
        (label, *(over_seeds(f.numbers[name].value for f in every if name in f.numbers) for name in names))
        for label, every in found.items()
    )
    return Table(title=title, caption=caption, columns=columns, rows=rows)


def _draw(section: Section, found: Mapping[str, Sequence[Findings]], style: Style) -> Canvas:
    """Left: samples by the share of rounds they are used in, all seeds together. Right: shares of each round, over seeds."""
    figure = style.new_figure(7.2, 1.7 * len(found) + 0.9)
    axes = figure.subplots(len(found), 2, squeeze=False, sharex="col")
    for (label, every), (left, right) in zip(found.items(), axes, strict=True):
        for i, what in enumerate(("used", "protected")):
            shares = np.concatenate([f.arrays[what] for f in every])
            counts = np.histogram(shares, _BINS)[0] / max(1, len(shares))
            left.stairs(counts, _BINS, color=style.colour(i), ls=style.dashes(i), lw=1.3, label=what)
        for i, (name, shown) in enumerate(_LINES.items()):
            course = np.mean([f.arrays[name] for f in every], axis=0)
            right.plot(1 + np.arange(len(course)), 100 * course, color=style.colour(i), ls=style.dashes(i), lw=1.3, label=shown)
        right.set_ylim(0, 105)
        left.set_ylabel(style.literal(label, 24), fontsize=8)
        right.set_ylabel("samples, %", fontsize=8)
    axes[-1][0].set_xlabel("share of the rounds")
    axes[-1][1].set_xlabel("round")
    for axis in axes[0]:
        axis.legend(frameon=False, fontsize=7)
    figure.suptitle(f"Use of the training samples, {style.literal(section.where, 90)}", fontsize=10)
    return figure
