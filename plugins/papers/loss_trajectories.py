"""Loss of members and of non-members along the rounds under the target's own model.

CoFedMID (Bai et al.), Figures 1 and 7a.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

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
    grid,
    members_of,
    numbers,
    outsiders_of,
    over_seeds,
    stroke,
    table,
    words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
        """Return ``rounds`` [R], ``defends`` [K] and ``<part> <side>`` [R x K], round after round.

        NaN where not known. The last and the largest gap of the defending clients (of all, where
        none defends) to either kind of non-members. None where no client has members and outsiders
        among the audited samples.
        """
        clients = clients_of(run)
        if not clients or not len(run.rounds):
            return None
        canary = run.pool_canary if len(run.pool_canary) else np.zeros(len(run.pool), bool)
        arrays: dict[str, ndarray] = {}
        for part, mask in zip(Courses.PARTS, (~canary, canary), strict=True):
            if part == Courses.PARTS[0] or mask.any():
                arrays |= {f"{part} {side}": _course(run, side, mask) for side in Courses.SIDES}
        units = dict.fromkeys(arrays, "nats") | {"rounds": "", "defends": ""}
        defends = np.isin(np.arange(run.clients), run.members)
        arrays |= {"rounds": run.rounds.astype(float), "defends": defends.astype(float)}
        return Findings(_numbers(arrays, defends if run.members else ~defends), arrays, units)

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw the three lines, a panel a defense and kind of sample; and a table of the gaps."""
        courses = Courses.of(section, label)
        rows = tuple(filter(None, map(_line, courses)))
        if rows:
            yield _table(rows)
            yield Figure("loss-trajectories", "Loss trajectories", partial(_draw, section, courses))


def _course(run: FinishedRun, side: str, part: ndarray) -> ndarray:
    """Mean loss [R x K] of each client's samples of a side, of which ``part`` [N] counts."""
    course = np.full((len(run.rounds), run.clients), np.nan)
    for k in clients_of(run):
        mask = _side(run, side, k) & part
        if mask.any():
            loss = run.signals["loss"][:, run.rows.index(k)]
            course[:, k] = np.asarray(loss[:, mask], np.float64).mean(axis=1)
    return course.ravel()


def _side(run: FinishedRun, side: str, client: int) -> ndarray:
    """Mask [N] of the client's members, other clients' samples, or outsiders."""
    if side == "members":
        return members_of(run, client)
    if side == "outside":
        return outsiders_of(run, client)
    return (run.pool >= 0) & (run.pool != client)


def _numbers(arrays: dict[str, ndarray], clients: ndarray) -> dict[str, Number]:
    """Gaps, non-members' loss minus members', of ``clients`` [K]: above 0 members are easier."""
    numbers = {}
    rounds = arrays["rounds"]
    for part in Courses.PARTS:
        if f"{part} members" not in arrays:
            continue
        means = {}
        for side in Courses.SIDES:
            course = arrays[f"{part} {side}"].reshape(len(rounds), -1)
            means[side] = Courses.over_clients(course, clients)
        for side in Courses.SIDES[1:]:
            last, largest, _ = _gaps(means[side] - means["members"], rounds)
            numbers[f"{part} last gap {side}"] = Number(last, unit="nats")
            numbers[f"{part} largest gap {side}"] = Number(largest, unit="nats")
    return numbers


def _gaps(gap: ndarray, rounds: ndarray) -> tuple[float | None, float | None, float | None]:
    """Return the last gap, the largest one, and the round of the largest one."""
    finite = np.flatnonzero(~np.isnan(gap))
    if not len(finite):
        return None, None, None
    top = finite[gap[finite].argmax()]
    return float(gap[finite[-1]]), float(gap[top]), float(rounds[top])


def _line(course: Courses) -> tuple[Content, ...] | None:
    """Cells of a row of the table; None where a side has no loss."""
    cells: list[Content] = [course.label, Words(course.part)]
    for side in Courses.SIDES:
        ends = np.concatenate([seed[~np.isnan(seed)][-1:] for seed in course.sides[side]])
        if not len(ends):
            return None
        cells.append(over_seeds(ends))
    for side in Courses.SIDES[1:]:
        gaps = course.sides[side] - course.sides["members"]
        last, largest, rounds = zip(*[_gaps(gap, course.rounds) for gap in gaps], strict=True)
        top_rounds = [r for r in rounds if r is not None]
        top_round = Value(mean=float(np.mean(top_rounds))) if top_rounds else None
        cells += [over_seeds(last), over_seeds(largest), top_round]
    return tuple(cells)


def _table(rows: tuple[tuple[Content, ...], ...]) -> Table:
    columns = [words("defense"), words("samples")]
    columns += [numbers(f"{side}, last round") for side in Courses.SIDES]
    for side in Courses.SIDES[1:]:
        columns += [
            numbers(f"last gap, {side}", direction="lower", signed=True),
            numbers(f"largest gap, {side}", direction="lower", signed=True),
            numbers("in round", digits=0),
        ]
    caption = (
        ": mean cross-entropy (nats) on the uploaded models of the coalition's clients, in the "
        "undefended row of the same clients; inside: other clients' training samples; outside: of "
        "no client. A gap is non-members minus members: above 0 members are easier. Means over "
        "seeds with their 95 % interval; the largest gap is chosen on the answers"
    )
    return table("Loss of members and non-members", caption, columns, rows)


def _draw(section: Section, courses: Sequence[Courses], style: Style) -> Canvas:
    """Draw small multiples on one scale, kind of sample by kind of sample."""
    courses = sorted(courses, key=lambda course: Courses.PARTS.index(course.part))
    across = min(ACROSS, len(courses))
    down = math.ceil(len(courses) / across)
    figure = style.new_figure(2.5 * across + 0.6, 2.0 * down + 0.9)
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axis, course in zip(axes.ravel(), courses, strict=False):
        _panel(axis, style, course)
    for axis in axes.ravel()[len(courses) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("loss (nats)", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("round", fontsize=8)
    return framed(figure, axes[0][0], style, section, "Loss on the target's model")


def _panel(axis: Axes, style: Style, course: Courses) -> None:
    """Draw means over seeds of the three sides."""
    for i, (side, name) in enumerate(NAMES.items()):
        losses = course.sides[side]
        finite = ~np.isnan(losses)
        n = finite.sum(axis=0)
        mean = np.where(finite, losses, 0.0).sum(axis=0) / np.maximum(n, 1)
        axis.plot(course.rounds[n > 0], mean[n > 0], lw=1.4, label=name, **stroke(style, i))
    title = style.literal(course.label, 24)
    if course.part != Courses.PARTS[0]:
        title += f" ({course.part})"
    axis.set_title(title, fontsize=8)
    grid(axis)
