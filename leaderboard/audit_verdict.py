"""The result of an auditor's page: its row, how much that row leaks, and the sentences on it."""

from __future__ import annotations

from collections.abc import Iterator

from fedbench.core.contract.board import Interval, Text, Value, Words
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.columns import BY_KEY
from fedbench.leaderboard.statistics.intervals import Estimate, holm
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.answer import answer, strongest
from fedbench.leaderboard.tables.common import amount, sentence
from fedbench.leaderboard.tables.provenance import VIEWS

WORST, TF01 = BY_KEY["worst"].heading, BY_KEY["tf01"].heading


def subject(section: BoardSection) -> DefenseRow | None:
    """Return the undefended row or, where there is none, the first one but floors, with scores."""
    rows = [section.base, *(row for row in section.rows if not row.floor)]
    return next((r for r in rows if r and section.highest(r.label, "auc")), None)


def leak(section: BoardSection) -> float:
    """Return the AUC of the subject's worst case or, without one, of an attack that counts nowhere
    and beats chance; 0 where there is neither.
    """
    row = subject(section)
    assert row is not None
    worst = section.summaries[row.label].worst
    if worst is not None:
        return worst.mean
    uncounted = _uncounted(section, row)
    return uncounted[1].mean if uncounted else 0.0


def _uncounted(section: BoardSection, row: DefenseRow) -> tuple[str, Interval] | None:
    """Return the attack with the largest lower end on a row, of those that count nowhere since
    another row lacks scores of them, and its AUC; None where none beats chance, all together.
    """
    leaks = section.comparison.leaks
    estimates: dict[str, Estimate] = {}
    for attack in section.left_out:
        estimate = leaks.estimate(row.label, leaks.of(row.label, attack).picks)
        if estimate is not None:
            estimates[attack] = estimate
    adjusted = holm({attack: estimate.p_of_chance for attack, estimate in estimates.items()})
    shown: dict[str, Interval] = {}
    for attack, p in adjusted.items():
        auc = leaks.of(row.label, attack).auc
        if auc is not None and auc.mean > 0.5 and p <= 1 - LEVEL:
            shown[attack] = auc
    return max(shown.items(), key=lambda item: item[1].low, default=None)


def verdict(section: BoardSection) -> Iterator[Text]:
    """Yield a sentence with the leak, one on the lowest row, and what intervals cover."""
    row = subject(section)
    assert row is not None
    summary = section.summaries[row.label]
    worst = summary.worst
    who: Text = Words("without a defense")
    if not row.undefended:
        who = sentence("with the defense {}", row.label)
    if worst is None:
        yield from _without_worst_case(section, row, who)
        return
    shown = "**is not shown to be leaked**"
    if worst.low > 0.5:
        shown = "**is leaked**"
    text = f"Membership in the audited training data {shown} {{}}: by {{}}, an adversary that {{}} "
    text += "ranks a member above a non-member with a probability (AUC) of "
    text += f"{amount(interval_value(worst), WORST)}, where guessing has 0.5"
    if summary.tf01 is not None:
        share = amount(interval_value(summary.tf01), TF01)
        text += f"; at one false alarm in a thousand it finds {share} % of members"
    sees = Words(VIEWS.get(section.view, f"has the view {section.view}"))
    yield sentence(f"{text}.", who, summary.attack, sees)
    best = answer(section)
    if best.defense is not None:
        yield strongest(section, best, best.defense)
    yield _covered(section, worst)


def _without_worst_case(section: BoardSection, row: DefenseRow, who: Text) -> Iterator[Text]:
    """Yield what attacks find on a row on which none that counts beats chance."""
    highest = section.highest(row.label, "auc")
    assert highest is not None
    attack, auc = highest
    if section.comparison.worst_cases.untested:
        text = "**What is leaked is not known** {}: one training, in which a client or group has a "
        text += "single member or non-member, gives no AUC an error."
        yield sentence(text, who)
        return
    if uncounted := _uncounted(section, row):
        attack, auc = uncounted
        text = "Membership in the audited training data **is leaked** {}: by {}, with an AUC of "
        text += f"{amount(interval_value(auc), WORST)}, where guessing has 0.5. "
        text += "It is in no worst case, since a row lacks scores of it."
        yield sentence(text, who, attack)
    else:
        count = "that count " if section.left_out else ""
        text = f"**No leak was shown** {{}}: of {len(section.comparison.attacks)} attacks {count}"
        text += "none is above guessing at 95 %, all together; the highest AUC that the intervals "
        text += (
            f"allow is that of {{}}, {amount(interval_value(auc), WORST)}, where guessing has 0.5."
        )
        yield sentence(text, who, attack)
    yield _covered(section, auc)


def _covered(section: BoardSection, interval: Interval) -> Text:
    covers = "candidates of one training alone"
    if interval.between:
        covers = "trainings and candidates"
    n = f"trainings: {len(section.seeds)}; audits of a client or group: {len(section.units)}"
    return Words(f"Intervals are 95 % and cover {covers} ({n}).")


def interval_value(interval: Interval, suffix: Text = ()) -> Value:
    """Return a number with its interval, also that of candidates alone."""
    ends = interval.ends
    return Value(mean=interval.mean, half_width=interval.half_width, ends=ends, suffix=suffix)
