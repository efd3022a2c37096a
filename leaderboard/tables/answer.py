"""Which defense of a section to use, in sentences, and what changes the reading of all tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedbench.core.contract.board import Block, Note, Part, Text, Value, Words
from fedbench.core.contract.section import RowSummary
from fedbench.core.store.record import Utility
from fedbench.leaderboard.columns import BY_KEY, column_for, delta_for, with_utility
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.statistics.tf01 import ALIGNED_SEEDS
from fedbench.leaderboard.statistics.verdict import Difference
from fedbench.leaderboard.tables.common import amount, joined, named, no_attack, sentence
from fedbench.leaderboard.tables.differential_privacy import refutations

WITHIN = 0.01
"""test accuracy below the undefended federation's: "one point"; of another utility its share"""
MOST_NAMED = 4
"""defenses in a sentence"""
MUCH = 0.03
"""AUC that canaries add to the undefended leak"""
ALIKE, FEWEST_ALIKE = 0.8, 5
"""correlation of leakage and accuracy over rows, from so many on"""

Outcome = Literal[
    "found",
    "none lower",
    "none within",
    "none here",
    "nothing leaks",
    "no errors",
    "no scores",
    "no undefended run",
]
_WORST = BY_KEY["worst"].heading
_TF01 = BY_KEY["tf01"].heading


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Which defense to use, of the rows with a rank."""

    outcome: Outcome
    """``found``: the defense leaks significantly less than the undefended federation and costs at
    most one point as measured, 1 % of another utility than accuracy. ``none lower``: of those
    within that none leaks less, the defense is the lowest. ``none within``: all cost more, the
    defense costs least. Otherwise there is no defense: no row but floors has a rank (``none
    here``), no attack beats chance, no AUC has an error (``no errors``), no attack has all its
    scores, or there is no undefended run.
    """
    undefended: RowSummary | None = None
    defense: RowSummary | None = None
    difference: Difference | None = None
    """worst case of the defense minus the undefended one's"""
    unsure: bool = False
    """whether the interval of the defense's delta-accuracy holds a loss of one point"""
    within: tuple[str, ...] = ()
    """rows within one point, the lowest first"""
    tied: tuple[str, ...] = ()
    """rows of those that are statistically tied with the defense"""
    margin: float = WITHIN
    """the cost that one point, or 1 %, is"""


def _loss(change: float, utility: Utility | None) -> float:
    """Return by how much a change of the utility is for the worse."""
    return change if utility is not None and utility.direction == "lower" else -change


def answer(section: BoardSection) -> Answer:
    """Return which defense to use; floors and rows with missing scores are left out."""
    base, pairwise = section.base, section.comparison.pairwise
    if base is None:
        return Answer(outcome="no undefended run")
    if not any(entry.complete for entry in base.entries.values()):
        return Answer(outcome="no scores")
    undefended = section.summaries[base.label]
    if section.comparison.worst_cases.untested:
        return Answer(outcome="no errors")
    if undefended.worst is None or not section.comparison.worst_cases.eligible:
        return Answer(outcome="nothing leaks")
    costs = {
        label: summary.delta_accuracy
        for label, summary in section.summaries.items()
        if label in pairwise.ranked and summary.delta_accuracy is not None
    }
    if not costs:
        return Answer(outcome="none here", undefended=undefended)
    # rows are in the order of their worst cases
    utility = section.utility
    losses = {label: _loss(cost.mean, utility) for label, cost in costs.items()}
    margin = WITHIN
    if not section.measures_accuracy and undefended.accuracy is not None:
        margin = WITHIN * abs(undefended.accuracy.mean)
    within = [label for label, loss in losses.items() if loss <= margin]
    against = pairwise.against(base.label)
    outcome, label = _chosen(losses, within, against)
    tied = pairwise.tied(label)
    ends = [_loss(end, utility) for end in (costs[label].low, costs[label].high)]
    return Answer(
        outcome=outcome,
        undefended=undefended,
        defense=section.summaries[label],
        difference=against.get(label),
        unsure=not (max(ends) <= margin or min(ends) > margin),
        within=tuple(within),
        tied=tuple(name for name in within if name in tied),
        margin=margin,
    )


def _chosen(
    losses: Mapping[str, float], within: Sequence[str], against: Mapping[str, Difference]
) -> tuple[Outcome, str]:
    """Return the outcome and the label of the defense."""
    for label in within:
        difference = against.get(label)
        if difference is not None and difference.shown and difference.interval.mean < 0:
            return "found", label
    if within:
        return "none lower", within[0]
    return "none within", min(losses, key=losses.__getitem__)


# -- sentences -------------------------------------------------------------------------------------

_WITHOUT: Mapping[Outcome, str] = {
    "no undefended run": "There is no undefended run to compare with, so the effect and the cost "
    "of a defense are not known.",
    "nothing leaks": "{} beats chance on the undefended federation: there is no leak to rank "
    "defenses by.",
    "no errors": "One training, in which a target has a single member or non-member, gives no AUC "
    "an error, so what the undefended federation leaks is not known.",
    "no scores": "No attack has all its scores on the undefended federation, so what it leaks is "
    "not known.",
    "none here": "No defense with all its scores can be compared with the undefended federation.",
}
_LEADS: Mapping[Outcome, str] = {
    "found": "The strongest defense within one point of the undefended accuracy is {}",
    "none lower": "No defense within one point of the undefended accuracy is shown to leak less "
    "than none; the lowest is {}",
    "none within": "No defense is within one point of the undefended accuracy; the nearest is {}",
}


def sentences(section: BoardSection) -> tuple[Text, ...]:
    """Say the refuted rows, the strongest defense within one point of the undefended accuracy, the
    leak of the undefended federation, the differences that can be seen, and the attacks that no
    rank counts.
    """
    best = answer(section)
    texts = refutations(section)
    if best.defense is not None:
        texts.append(strongest(section, best, best.defense))
    elif not (section.is_recorded and best.outcome == "none here"):  # it has no defenses to compare
        texts.append(Words(_WITHOUT[best.outcome].format(no_attack(section))))
    if best.undefended is not None:
        texts.append(_leak(section, best.undefended))
    texts += _power(section)
    for attack in section.left_out:
        lacking = [row.label for row in section.rows if row.entries[attack].broken]
        why = "In no mean, worst case or rank: {}, which lacks scores of {}."
        texts.append(sentence(why, attack, named(lacking, MOST_NAMED)))
    return tuple(texts)


def strongest(section: BoardSection, best: Answer, defense: RowSummary) -> Text:
    """Say the leak and the cost of the answer's defense."""
    cost = defense.delta_accuracy
    assert cost is not None
    delta = delta_for(section.utility)
    seeds = len(section.seeds)
    in_points = delta.unit == "pp"
    text = f"{_LEADS[best.outcome]}: {{}}"
    if best.difference is not None:
        less = amount(best.difference.interval, replace(_WORST, signed=True))
        text += f", {less} against the undefended one"
    unit = "points" if in_points else delta.unit
    text += f", at a change of accuracy of {amount(cost, delta)} {unit}".rstrip()
    if best.unsure:
        lead = "one seed does" if seeds == 1 else f"{seeds} seeds do"
        text += f", which {lead} not distinguish from one point"
    elif seeds > 1 and cost.half_width > best.margin:
        text += ", with an interval wider than that point"
    if seeds == 1:
        text += "; one seed shows no differences"
    ties: Text = ()
    if best.tied:
        ties = sentence("; statistically tied with {}", named(best.tied, MOST_NAMED))
    if not in_points:
        text = with_utility(text, section.utility)
        text = text.replace("one point", "1 %").replace("that point", "that")
    return sentence(f"{text}{{}}.", defense.label, _auc(defense), ties)


def _leak(section: BoardSection, row: RowSummary) -> Text:
    lacking = "not enough non-members for TF01"
    if len(section.seeds) < ALIGNED_SEEDS:
        trainings = "recordings" if section.is_recorded else "seeds"
        lacking = f"TF01 takes {ALIGNED_SEEDS} {trainings}, or 999 non-members of each client and "
        lacking += "1,999 together"
    tf01 = sentence(f"; {lacking}")
    if row.tf01 is not None:
        tf01 = sentence(f", and a TF01 of {amount(row.tf01, _TF01)} % ({{}})", row.tf01_attack)
    federation = "recorded" if section.is_recorded else "undefended"
    return sentence(f"The {federation} federation leaks a {{}}{{}}.", _auc(row), tf01)


def _auc(row: RowSummary) -> tuple[Part, ...]:
    if row.worst is None:
        return sentence("worst case AUC that is not known")
    return sentence(f"worst case AUC of {amount(row.worst, _WORST)} ({{}})", row.attack)


def _power(section: BoardSection) -> list[Text]:
    """Say the differences that are shown with a power of 80 %."""
    auc, accuracy = section.comparison.pairwise.smallest_difference, section.smallest_difference
    differences = []
    if auc:
        differences.append(f"{auc:.3f} between two worst case AUCs, all pairs tested together")
    if accuracy:
        delta = delta_for(section.utility)
        size = amount(Value(mean=accuracy), replace(delta, signed=False))
        name = column_for("delta", section.utility).title
        differences.append(" ".join(filter(None, (size, delta.unit, f"in {name}"))))
    if not differences:
        return []
    lead = f"With {len(section.seeds)} seeds, a power of 80 % takes a difference of "
    return [Words(f"{lead}{', or '.join(differences)}.")]


# -- caveats ---------------------------------------------------------------------------------------


def caveats(sections: Sequence[BoardSection]) -> list[Block]:
    """Say whether canaries carry much of the undefended leak, and whether leakage and accuracy
    order the rows alike.
    """
    leads = {
        "**Mislabelled candidates carry much of the leak**: undefended worst case AUC on all, on "
        "clean ones": _canaries,
        "**Privacy and utility are nearly one thing here**: correlation of worst case AUC and "
        "accuracy over rows": _alike,
    }
    notes: list[Block] = []
    for lead, caveat in leads.items():
        texts = [text for text in map(caveat, sections) if text]
        if texts:
            lead = with_utility(lead, sections[0].utility)
            notes.append(Note(sentence(f"{lead} {{}}.", joined(texts, "; "))))
    return notes


def _canaries(section: BoardSection) -> Text:
    """Return ``.792, .724 (digits, pair, ...: 30 % canaries)``; empty where clean candidates leak
    as much.
    """
    base, comparison = section.base, section.comparison
    canaries = sum(s.n_members for s in section.scores("canary"))
    if base is None or not canaries:
        return ()
    members = sum(s.n_members for s in section.scores("mix"))
    cases = comparison.worst_cases.of(base.label).worst, comparison.clean_base
    mixed, clean = (0.5 if case is None else case.interval.mean for case in cases)
    if mixed - clean < MUCH:
        return ()
    share = f"{100 * canaries / members:.0f} % canaries"
    return sentence(f"{mixed:.3f}, {clean:.3f} ({{}}: {share})", section.where)


def _alike(section: BoardSection) -> Text:
    """Return ``.93 (digits, pair, server view)``; empty with fewer than five ranked rows, or where
    they are not alike.
    """
    ranked = [section.summaries[label] for label in section.comparison.pairwise.ranked]
    points = np.array([(s.worst.mean, s.accuracy.mean) for s in ranked if s.worst and s.accuracy])
    if len(points) < FEWEST_ALIKE or not points.std(axis=0).all():
        return ()
    correlation = -_loss(float(np.corrcoef(points.T)[0, 1]), section.utility)
    if correlation < ALIKE:
        return ()
    return sentence(f"{correlation:.2f} ({{}})", section.where)
