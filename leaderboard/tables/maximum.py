"""The papers' maximum over attacks and rounds, beside its null."""

from __future__ import annotations

from fedbench.core.contract.board import Column, Content, Table, Value, Words
from fedbench.leaderboard.statistics.maximum import Largest, looks_often, row_maximum
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import DEFENSE, name_of, spanned

_CAPTION = (
    " (the papers' statistic, against outside non-members: every target's largest auR (AUC) and, for itself, largest advantage\n"
    "TPR - FPR over all attacks of this view and all rounds; means over seeds x targets. A maximum of many looks is above\n"
    "chance without any leak. Its null is the same maximum under shuffled memberships: the mean and, in brackets, what 95 %\n"
    "of the shuffles stay below. Excess: above the null's mean)"
)


def maximum_table(section: Section) -> list[Table]:
    """A row a defense; nothing where fewer than two attacks score every round."""
    if not looks_often(section):
        return []
    columns = [DEFENSE]
    for name in ("auR", "Adv"):
        columns += [
            Column(name=Words(f"max {name}"), direction="lower"), Column(name=Words(f"null of {name}"), direction="none"),
            Column(name=Words(f"excess {name}"), direction="lower", signed=True),
        ]  # fmt: skip
    rows: list[tuple[Content, ...]] = []
    for row in section.rows:
        found = row_maximum(row)
        numbers = (None,) * 7 if found is None else (*_numbers(found.auc), *_numbers(found.advantage), spanned(found.looks))
        rows.append((name_of(row), *numbers))
    return [Table(
        title="Maximum over attacks and rounds", caption=Words(_CAPTION),
        columns=(*columns, Column(name=Words("looks"), align="right")), rows=tuple(rows),
        empty=Words("the records hold no maxima over rounds"),
        footnotes=(Words("within null: more than 5 % of the shuffles reach the maximum. Looks: attacks x rounds of a target."),),
    )]  # fmt: skip


def _numbers(found: Largest) -> tuple[Content, ...]:
    high = Words(f" ({found.null_high:.3f})")
    return (
        Value(mean=found.found.mean, half_width=found.found.half_width), Value(mean=found.null_mean, suffix=high),
        Value(mean=found.excess, suffix=Words(" within null") if found.within else ()),
    )  # fmt: skip
