"""What the strongest attack finds after calibration by federations that share a pool."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np

from fedbench.core.contract.board import Block, Content, Note, Value, Words, value
from fedbench.core.metrics import t_interval
from fedbench.core.words import DOCS
from fedbench.leaderboard.statistics.audits import shared
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import FEWEST_FEDERATIONS, BoardSection
from fedbench.leaderboard.statistics.verdict import LeakStatistics
from fedbench.leaderboard.tables.common import (
    NAMED,
    RANK,
    Declared,
    numbers,
    rank_of,
    row_table,
    sentence,
    words,
    worst_of,
)

_CAPTION = (
    " over {} federations of one pool: each candidate is a member by a coin, and an attack's score "
    f"in one federation is judged by those in the others (LiRA, RMIA; {DOCS}/auditing.md). Found: "
    "the share of federations with a candidate in which the strongest attack passes the "
    "candidate's own threshold of 1 % false positives, mean, the most vulnerable tenth and the "
    "mislabelled candidates. "
    "\u03b5 at least: by guesses in one run (Steinke et al. 2023)"
)


def auditors_table(section: BoardSection) -> list[Block]:
    """Return worst cases of the attacks as they are and calibrated, with both ranks; nothing where
    seeds do not share a pool, and a note where they are too few.
    """
    if not section.shares_pool:
        return []
    if not section.calibrates:
        return [Note(Words(f"Calibrated attacks: {too_few(section)}."))]
    caption = sentence(_CAPTION, str(len(section.seeds)))
    columns = [NAMED, *_columns(section), *epsilon_columns(section)]
    return [row_table("Calibrated attacks", caption, section.rows, columns)]


def too_few(section: BoardSection) -> str:
    """Say how many federations of one pool there are, and how many are needed."""
    needed = f"{FEWEST_FEDERATIONS} federations of one pool are needed"
    if not section.shares_pool:
        return f"n/a: {needed} (data_seed, test_by: coin), the seeds of this setting are not"
    return f"n/a: {needed}, there are {len(section.seeds)}"


def epsilon_columns(section: BoardSection) -> list[Declared]:
    """Return the columns of bounds and claims."""
    return [
        (words("\u03b5 at least"), partial(_epsilon, section)),
        (words("\u03b5 claimed"), partial(_claimed, section)),
    ]


def _columns(section: BoardSection) -> list[Declared]:
    general, strongest = section.comparison, section.comparison.calibrated
    found = partial(_found, general)
    return [
        (RANK, partial(rank_of, general)),
        (words("# calibrated"), partial(rank_of, strongest)),
        (numbers("worst case AUC", direction="lower"), partial(worst_of, general)),
        (numbers("calibrated", direction="lower"), partial(worst_of, strongest)),
        (numbers("difference", signed=True), partial(_difference, general, strongest)),
        (numbers("TF01", digits=2, unit="%"), partial(_tf01, general)),
        (numbers("TF01 calibrated", digits=2, unit="%"), partial(_tf01, strongest)),
        (numbers("found", digits=1, unit="%"), partial(found, "all")),
        (numbers("found, a tenth", digits=1, unit="%"), partial(found, "tenth")),
        (numbers("found, canaries", digits=1, unit="%"), partial(found, "canaries")),
    ]


def _tf01(statistics: LeakStatistics, row: DefenseRow) -> Content:
    rate = statistics.worst_cases.of(row.label).worst_tf01
    return None if rate is None else value(rate.interval)


def _difference(general: LeakStatistics, strongest: LeakStatistics, row: DefenseRow) -> Content:
    """Return the calibrated worst case minus the general one over seeds, with Student's t."""
    sides = [_by_seed(statistics, row.label) for statistics in (strongest, general)]
    seeds = sorted(set(sides[0]) & set(sides[1]))
    if len(seeds) < 2:
        return None
    worst = strongest.worst_cases.of(row.label).worst
    assert worst is not None, "it has seeds"
    interval = t_interval([sides[0][seed] - sides[1][seed] for seed in seeds])
    return value(replace(interval, half_width=shared(worst.attack) * interval.half_width))


def _by_seed(statistics: LeakStatistics, label: str) -> dict[int, float]:
    """Return seed -> mean AUC over targets of the attack that the other seeds pick."""
    worst = statistics.worst_cases.of(label).worst
    return statistics.leaks.by_seed(label, worst.picks) if worst else {}


def _found(
    general: LeakStatistics, which: Literal["all", "tenth", "canaries"], row: DefenseRow
) -> Content:
    finds = general.found(row.label)
    if finds is None:
        return None
    mean = float(finds.shares.mean())
    share = {"all": mean, "tenth": finds.tenth, "canaries": finds.canaries}[which]
    return None if np.isnan(share) else Value(mean=100 * share)


def _epsilon(section: BoardSection, row: DefenseRow) -> Content:
    bound = section.privacy_audits[row.label].bound
    if bound is None:
        return None
    return sentence(f"{bound.epsilon:.2f} of {bound.limit:.2f} ({{}})", bound.attack)


def _claimed(section: BoardSection, row: DefenseRow) -> Content:
    """Return the claim that the bound is compared with; empty without one."""
    audit = section.privacy_audits[row.label]
    if audit.claimed is None:
        return ""
    mark = " **refuted**" if audit.refuted else ""
    return sentence(f"{audit.claimed:.4g} at \u03b4 = {audit.delta:g}{mark}")
