"""How the loss of members and of non-members goes along the rounds under the target's own model
(CoFedMID, Figures 1 and 7a).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number
from fedbench.core.report import (
    Block,
    Content,
    Courses,
    Figure,
    Section,
    Style,
    Table,
    Value,
    Words,
)
from fedbench.plugins.analyses.common import (
    clients_of,
    framed,
    members_of,
    numbers,
    outsiders_of,
    over_seeds,
    words,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

ACROSS = 4
NAMES = {"members": "members", "inside": "non-members, inside", "outside": "non-members, outside"}


class LossTrajectories(Analysis):
    """Mean loss on each client's uploaded model over the audited rounds: of its members, other
    clients' samples and outsiders.

    Samples with labels that are wrong on purpose (canaries) are apart from the others, where the
    data set has some. A section shows the means over the coalition's clients, of the undefended
    federation too; without a coalition over all clients.
    """

    needs = frozenset({"loss"})
    by_default = False

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``rounds`` [R], ``defends`` [K] and ``<part> <side>`` [R x K], round after round, NaN
        where not known; the last and the largest gap of the defending clients (of all, where none
        defends) to either kind of non-members. None where no client has members and outsiders among
        the audited samples.
        """
        clients = clients_of(run)
        if not clients or not len(run.rounds):
            return None
        arrays: dict[str, np.ndarray] = {}
        for part in Courses.PARTS if run.pool_canary.any() else Courses.PARTS[:1]:
            of_part = _of_part(run, part)
            for side in Courses.SIDES:
                found = np.full((len(run.rounds), run.clients), np.nan)
                for k in clients:
                    found[:, k] = _mean(
                        run.signals["loss"][:, run.rows.index(k)], _side(run, side, k) & of_part
                    )
                arrays[f"{part} {side}"] = found.ravel()
        units = dict.fromkeys(arrays, "nats") | {"rounds": "", "defends": ""}
        defends = np.isin(np.arange(run.clients), run.members).astype(float)
        arrays |= {"rounds": run.rounds.astype(float), "defends": defends}
        return Findings(
            _numbers(arrays, defends > 0 if run.members else np.ones(run.clients, bool)),
            arrays,
            units,
        )

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """The three lines, a panel a defense and kind of sample; last and largest gaps, a row a
        defense and kind.
        """
        shown = Courses.of(section, label)
        rows = tuple(line for found in shown for line in _lines(found))
        if rows:
            yield _table(rows)
            yield Figure("loss-trajectories", "Loss trajectories", partial(_draw, section, shown))


def _of_part(run: FinishedRun, part: str) -> np.ndarray:
    canary = run.pool_canary if len(run.pool_canary) else np.zeros(len(run.pool), bool)
    return canary if part == "canary" else ~canary


def _side(run: FinishedRun, side: str, client: int) -> np.ndarray:
    if side == "members":
        return members_of(run, client)
    return (
        outsiders_of(run, client) if side == "outside" else (run.pool >= 0) & (run.pool != client)
    )


def _mean(loss: np.ndarray, side: np.ndarray) -> np.ndarray:
    """[R] over the samples of the side; NaN without any, and in rounds without the client."""
    return (
        np.asarray(loss[:, side], np.float64).mean(axis=1)
        if side.any()
        else np.full(len(loss), np.nan)
    )


def _numbers(arrays: dict[str, np.ndarray], about: np.ndarray) -> dict[str, Number]:
    """Gaps are non-members' loss minus members': above 0 members are easier."""
    numbers, n_rounds = {}, len(arrays["rounds"])
    for part in (p for p in Courses.PARTS if f"{p} members" in arrays):
        means = {
            side: Courses.over_clients(arrays[f"{part} {side}"].reshape(n_rounds, -1), about)
            for side in Courses.SIDES
        }
        for side in Courses.SIDES[1:]:
            last, largest, _ = _gaps(means[side] - means["members"], arrays["rounds"])
            numbers[f"{part} last gap {side}"] = Number(last, unit="nats")
            numbers[f"{part} largest gap {side}"] = Number(largest, unit="nats")
    return numbers


def _gaps(gap: np.ndarray, rounds: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """(the last one known, the largest one, the round of the largest one)."""
    known = np.flatnonzero(~np.isnan(gap))
    if not len(known):
        return None, None, None
    top = known[gap[known].argmax()]
    return float(gap[known[-1]]), float(gap[top]), float(rounds[top])


def _lines(found: Courses) -> Iterator[tuple[Content, ...]]:
    ends = {
        side: [c[known[-1]] for c in course if len(known := np.flatnonzero(~np.isnan(c)))]
        for side, course in found.sides.items()
    }
    if not all(ends.values()):
        return
    cells: list[Content] = [over_seeds(ends[side]) for side in Courses.SIDES]
    for side in Courses.SIDES[1:]:
        gaps = [
            _gaps(n - m, found.rounds)
            for n, m in zip(found.sides[side], found.sides["members"], strict=True)
        ]
        last, largest, when = (
            [v for v in values if v is not None] for values in zip(*gaps, strict=True)
        )
        cells += [
            over_seeds(last),
            over_seeds(largest),
            Value(mean=float(np.mean(when))) if when else None,
        ]
    yield found.label, Words(found.part), *cells


def _table(rows: tuple[tuple[Content, ...], ...]) -> Table:
    columns = [
        words("defense"),
        words("samples"),
        *(numbers(f"{side}, last round") for side in Courses.SIDES),
    ]
    for side in Courses.SIDES[1:]:
        columns += [
            numbers(f"{what} gap, {side}", direction="lower", signed=True)
            for what in ("last", "largest")
        ]
        columns.append(numbers("in round", digits=0))
    caption = Words(
        ": mean cross-entropy (nats) on the uploaded models of the coalition's clients, in the "
        "undefended row of the same "
        "clients; inside: other clients' training samples; outside: of no client. A gap is "
        "non-members minus members: above 0 "
        "members are easier. Means over seeds with their 95 % interval; the largest gap is chosen "
        "on the answers"
    )
    return Table(
        title="Loss of members and non-members", caption=caption, columns=tuple(columns), rows=rows
    )


def _draw(section: Section, found: Sequence[Courses], style: Style) -> Canvas:
    """Small multiples on one scale, kind of sample by kind of sample."""
    found = sorted(found, key=lambda course: Courses.PARTS.index(course.part))
    across = min(ACROSS, len(found))
    down = -(-len(found) // across)
    figure = style.new_figure(2.5 * across + 0.6, 2.0 * down + 0.9)
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axis, course in zip(axes.ravel(), found, strict=False):
        for i, (side, name) in enumerate(NAMES.items()):
            known = ~np.isnan(course.sides[side])
            n = known.sum(axis=0)
            mean = np.where(known, course.sides[side], 0.0).sum(axis=0) / np.maximum(n, 1)
            axis.plot(
                course.rounds[n > 0],
                mean[n > 0],
                color=style.colour(i),
                ls=style.dashes(i),
                lw=1.4,
                label=name,
            )
        suffix = "" if course.part == Courses.PARTS[0] else f" ({course.part})"
        axis.set_title(style.literal(course.label, 24) + suffix, fontsize=8)
        axis.grid(True, color="0.92", lw=0.6)
    for axis in axes.ravel()[len(found) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("loss (nats)", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("round", fontsize=8)
    return framed(figure, axes[0][0], style, section, "Loss on the target's model")
