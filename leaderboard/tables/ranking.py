"""The ranking of a section, its first screen in a table and three sentences, and every defense
across settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedbench.core.contract.board import (
    Block,
    Column,
    Content,
    Heading,
    Note,
    Part,
    Quote,
    Table,
    Text,
    Words,
    value,
)
from fedbench.core.contract.section import RowSummary
from fedbench.leaderboard.columns import BY_KEY, COLUMNS, columns_for
from fedbench.leaderboard.statistics.intervals import bounded
from fedbench.leaderboard.statistics.rows import PrivacyClaim, Row, privacy_claims
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.statistics.verdict import Difference
from fedbench.leaderboard.tables.common import (
    DEFENSE,
    RANK,
    TITLE,
    amount,
    joined,
    name_of,
    numbers,
    rank_of,
    sentence,
    span,
    table_of,
    tf01_notes,
    with_attack,
    words,
    worst_of,
)

Trust = Callable[[Row], Words] | None
"""How far a row can be trusted; None: every row is measured here"""

WITHIN = 0.01  # of test accuracy below the undefended federation's: "one point"
MOST_ROWS = 16  # in the first table; of longer ones the first
MOST_NAMED = 4  # defenses in a sentence
MOST_TIED = 8  # in a cell of the ranking
MUCH = 0.03  # of an AUC that canaries add to the undefended leak
ALIKE, FEWEST_ALIKE = 0.8, 5  # correlation of leakage and accuracy over rows, from so many on
MOST_REMARKS, LONGEST_REMARK = 4, 600  # footnotes of a row, characters of one
MOST_SECTIONS = 5  # in one table across settings, with the sums: eight columns
READING = Note(
    sentence(
        "Lower AUC and TF01 are better; an AUC of 0.5 is guessing. Ranges of ranks (#) that "
        "overlap are no tie:\n"
        "the full ranking names the rows that the paired tests do not distinguish. `±` and "
        "brackets are 95 %.\n"
        "Accuracy is the mean over the last three audited rounds, against the undefended run of "
        "the same seed; runtime is over\n"
        "plain training, as each table says. Floors are rows for comparison, not defenses. On "
        "another type of CPU ranks may move\n"
        "by a place."
    )
)


# -- numbers of a row, for every table and page that shows them ------------------------------------

_WORST = BY_KEY["worst"].heading
_POINTS = replace(BY_KEY["delta"].heading, digits=1)
PLAIN = "Runtime is over plain training's, that of the row with 1."


def references(section: Section, row: Row) -> dict[str, int]:
    """Return key of a column -> number of a row that the others' are relative to."""
    numbers_of_row = {"delta": 0} if row is section.base else {}
    return numbers_of_row | ({"runtime": 1} if row is section.plain else {})


def _cells(section: Section, row: Row, trust: Trust) -> dict[str, Content]:
    """Return key of a column -> cell of the row."""
    comparison, summary = section.comparison, section.summaries[row.label]
    cells: dict[str, Content] = {"rank": rank_of(comparison, row), "defense": name_of(row)}
    for column in COLUMNS:
        number = column.number(summary)
        suffix = sentence(" {}", summary.tf01_attack) if column.key == "tf01" else ()
        cells[column.key] = None if number is None else value(number, suffix)
    cells["worst"] = worst_of(comparison, row)
    cells["largest"] = with_attack(summary.largest)
    if trust:
        cells["trust"] = trust(row)
    return cells | {key: Words(str(n)) for key, n in references(section, row).items()}


# -- the first screen ------------------------------------------------------------------------------


def front_table(section: Section, rows: Sequence[Row], trust: Trust = None) -> Table:
    """Leak and costs of these rows, and how far each can be trusted."""
    more: list[Text] = []
    if left := len(section.rows) - len(rows):
        more.append(Words(f"{left} more rows are in the full board."))
    columns = {"rank": RANK, "defense": DEFENSE}
    columns |= {
        column.key: column.heading for column in columns_for(section.utility) if column.at_a_glance
    }
    columns["tf01"] = replace(columns["tf01"], name=Words("TF01"))
    columns["delta"] = replace(columns["delta"], digits=1)
    columns |= {"trust": words("trust")} if trust else {}
    made = [
        {**_cells(section, row, trust), "tf01": value(section.summaries[row.label].tf01)}
        for row in rows
    ]
    caption = sentence(
        ": {}, coalition {}, {} view", section.setting, section.coalition, section.view
    )
    shown = (tuple(cells[key] for key in columns) for cells in made)
    return table_of(
        TITLE,
        caption,
        columns.values(),
        shown,
        footnotes=(*more, *_runtime(section), *tf01_notes(section)),
    )


def front_blocks(section: Section, trust: Trust = None, most: int = MOST_ROWS) -> list[Block]:
    """The sentences of one section and the table that they are about, of at most ``most`` rows."""
    rows = first_rows(section, most)
    return [Note(joined(sentences(section), " ")), front_table(section, rows, trust)]


def first_rows(section: Section, most: int) -> list[Row]:
    """The rows by rank. Of more than ``most``: the undefended row, those that the sentences name,
    the first by rank, and floors where there is room.
    """
    ranks = section.comparison.pairwise.ranks
    last = (len(section.rows), len(section.rows))
    rows = sorted(section.rows, key=lambda row: (row.floor, ranks.get(row.label, last)))
    if len(rows) <= most:
        return rows
    best = answer(section)
    named = {best.defense.label if best.defense else None, *best.tied[:MOST_NAMED]}
    by_need = sorted(rows, key=lambda row: (not row.undefended, row.label not in named, row.floor))
    labels = {row.label for row in by_need[:most]}
    return [row for row in rows if row.label in labels]


# -- caveats: what changes the reading of all tables -----------------------------------------------


def caveats(sections: Sequence[Section]) -> list[Block]:
    """Whether canaries carry much of the undefended leak, and whether leakage and accuracy order
    the rows alike.
    """
    leads = {
        "**Mislabelled candidates carry much of the leak**: undefended worst case AUC on all, on "
        "clean ones": _canaries,
        "**Privacy and utility are nearly one thing here**: correlation of worst case AUC and "
        "accuracy over rows": _alike,
    }
    notes: list[Block] = []
    for lead, of in leads.items():
        shown = [found for section in sections if (found := of(section))]
        notes += [Note(sentence(f"{lead} {{}}.", joined(shown, "; ")))] if shown else []
    return notes


def _canaries(section: Section) -> Text:
    """``.792, .724 (digits, pair, ...: 30 % canaries)``; empty where clean candidates leak as
    much.
    """
    base, kinds = section.base, [section.comparison, section.comparison.by_kind[0]]
    odd, every = (sum(s.n_members for s in section.scores(group)) for group in ("canary", "mix"))
    if base is None or not odd:
        return ()
    cases = [kind.worst_cases.of(base.label).worst for kind in kinds]
    worst = [0.5 if case is None else case.found.mean for case in cases]
    if worst[0] - worst[1] < MUCH:
        return ()
    return sentence(
        f"{worst[0]:.3f}, {worst[1]:.3f} ({{}}: {100 * odd / every:.0f} % canaries)", section.where
    )


def _alike(section: Section) -> Text:
    """``.93 (digits, pair, server view)``; empty with fewer than five ranked rows, or where they
    are not alike.
    """
    rows = [
        s for label, s in section.summaries.items() if label in section.comparison.pairwise.ranked
    ]
    points = np.array([(s.worst.mean, s.accuracy.mean) for s in rows if s.worst and s.accuracy])
    if len(points) < FEWEST_ALIKE or not points.std(axis=0).all():
        return ()
    correlation = float(np.corrcoef(points.T)[0, 1])
    return sentence(f"{correlation:.2f} ({{}})", section.where) if correlation >= ALIKE else ()


# -- the sentences ---------------------------------------------------------------------------------

Outcome = Literal[
    "found", "none lower", "none within", "none here", "nothing leaks", "no undefended run"
]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Which defense to use. ``outcome``: ``found``: the ``defense`` leaks significantly less than
    the undefended federation and costs at most one point as measured. ``none lower``: of those
    within one point none does; ``defense`` is the lowest. ``none within``: every defense costs
    more; ``defense`` is the one that costs least. Otherwise there is no ``defense``: no row but
    floors has a rank (``none here``), no attack beats chance (``nothing leaks``), or there is no
    undefended run.

    ``difference``: the defense's worst case minus the undefended one's. ``unsure``: whether the
    interval of its delta-accuracy holds a loss of one point. ``within``: the rows within one point;
    ``tied``: those of them but the defense that are statistically tied with it; both the lowest
    first.
    """

    outcome: Outcome
    undefended: RowSummary | None = None
    defense: RowSummary | None = None
    difference: Difference | None = None
    unsure: bool = False
    within: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    seeds: int = 0


def answer(section: Section) -> Answer:
    """Of rows with a rank: floors and rows with missing scores are left out."""
    comparison, base = section.comparison, section.base
    if base is None:
        return Answer(outcome="no undefended run")
    undefended = section.summaries[base.label]
    if undefended.worst is None or not comparison.worst_cases.eligible:
        return Answer(outcome="nothing leaks")
    ranked = [
        s
        for label, s in section.summaries.items()
        if label in comparison.pairwise.ranked and label != base.label
    ]
    costs = {s.label: s.delta_accuracy for s in ranked if s.delta_accuracy is not None}
    if not costs:
        return Answer(outcome="none here", undefended=undefended)
    within = [label for label, cost in costs.items() if -cost.mean <= WITHIN]
    against = comparison.pairwise.against(base.label)
    less = [
        label
        for label in within
        if label in against and against[label].shown and against[label].found.mean < 0
    ]
    # rows are in the order of their worst cases
    first = (less or within or [max(costs, key=lambda label: costs[label].mean)])[0]
    tied = comparison.pairwise.tied(first)
    return Answer(
        outcome="found" if less else "none lower" if within else "none within",
        undefended=undefended,
        defense=section.summaries[first],
        difference=against.get(first),
        seeds=len(section.seeds),
        within=tuple(within),
        unsure=not (costs[first].low >= -WITHIN or costs[first].high < -WITHIN),
        tied=tuple(label for label in within if label in tied),
    )


_WITHOUT: Mapping[Outcome, str] = {
    "no undefended "
    "run": "There is no undefended run to compare with, so the effect and the cost of a defense "
    "are not known.",
    "nothing leaks": "No attack beats chance on the undefended federation: there is no leak for a "
    "defense to stop.",
    "none here": "No defense with all its scores can be compared with the undefended federation.",
}
_LEADS: Mapping[Outcome, str] = {
    "found": "The strongest defense within one point of the undefended accuracy is {}",
    "none lower": "No defense within one point of the undefended accuracy is shown to leak less "
    "than none; the lowest is {}",
    "none within": "No defense is within one point of the undefended accuracy; the nearest is {}",
}


def sentences(section: Section) -> tuple[Text, ...]:
    """The strongest defense within one point of the undefended accuracy, the leak of the undefended
    federation, and the differences that can be seen.
    """
    found = answer(section)
    first = Words(_WITHOUT[found.outcome]) if found.outcome in _WITHOUT else _strongest(found)
    leak = () if found.undefended is None else (_leak(found.undefended),)
    return (
        first,
        *leak,
        *_power(section),
        *(_left_out(section, attack) for attack in section.left_out),
    )


def _left_out(section: Section, attack: str) -> Text:
    rows = [row.label for row in section.rows if row.entries[attack].broken]
    why = "In no mean, worst case or rank: {}, which lacks scores of {}."
    return sentence(why, attack, named(rows, MOST_NAMED))


def _strongest(found: Answer) -> Text:
    defense = found.defense
    assert defense is not None and defense.delta_accuracy is not None
    worst = replace(_WORST, signed=True)
    less = (
        ""
        if found.difference is None
        else f", {amount(found.difference.found, worst)} against the undefended one"
    )
    cost = f", at a change of accuracy of {amount(defense.delta_accuracy, _POINTS)} points"
    seeds = "one seed does" if found.seeds == 1 else f"{found.seeds} seeds do"
    wide = (
        ", with an interval wider than that point"
        if defense.delta_accuracy.half_width > WITHIN and found.seeds > 1
        else ""
    )
    unsure = f", which {seeds} not distinguish from one point" if found.unsure else wide
    alone = "; one seed shows no differences" if found.seeds == 1 else ""
    ties = (
        sentence("; statistically tied with {}", named(found.tied, MOST_NAMED))
        if found.tied
        else ()
    )
    return sentence(
        f"{_LEADS[found.outcome]}: {{}}{less}{cost}{unsure}{alone}{{}}.",
        defense.label,
        _auc(defense),
        ties,
    )


def named(labels: Sequence[str], most: int) -> tuple[Part, ...]:
    """The first labels, and how many more there are."""
    more = len(labels) - most
    return joined(labels) if more <= 1 else sentence(f"{{}} and {more} more", joined(labels[:most]))


def _leak(row: RowSummary) -> Text:
    tf01 = sentence("; not enough non-members for TF01")
    if row.tf01 is not None:
        tf01 = sentence(
            f", and a TF01 of {amount(row.tf01, BY_KEY['tf01'].heading)} % ({{}})", row.tf01_attack
        )
    return sentence("The undefended federation leaks a {}{}.", _auc(row), tf01)


def _auc(row: RowSummary) -> tuple[Part, ...]:
    if row.worst is None:
        return sentence("worst case AUC that is not known")
    return sentence(f"worst case AUC of {amount(row.worst, _WORST)} ({{}})", row.attack)


# -- the full ranking ------------------------------------------------------------------------------


def ranking_table(section: Section, trust: Trust = None) -> Table:
    """A row a defense, by the worst case; ranks are ranges."""
    comparison = section.comparison
    cells = [
        {
            **_cells(section, row, trust),
            "claims": claimed(row),
            "tied": named(comparison.pairwise.tied(row.label), MOST_TIED),
        }
        for row in section.rows
    ]
    columns = {"rank": RANK, "defense": DEFENSE}
    for column in columns_for(section.utility):
        columns[column.key] = column.heading
        if column.key == "worst":
            columns["largest"] = numbers("largest of all", direction="lower")
    columns |= {"tied": words("tied with")}
    columns |= {"claims": words("claims")} if any(map(privacy_claims, section.rows)) else {}
    columns |= {"trust": words("trust")} if trust else {}
    caption = (
        ": AUC of an adversary who picks attack and sign on the other seeds, against outside "
        "non-members. A range lists the "
        "ranks the tests leave open; tied: not distinguished by the paired test"
    )
    footnotes = (_share(section), *_runtime(section), *tf01_notes(section), *_remarks(section))
    rows = (tuple(of[key] for key in columns) for of in cells)
    return table_of("Ranking", caption, columns.values(), rows, footnotes=footnotes)


def claimed(row: Row) -> tuple[Part, ...]:
    """``ε ≤ 8 (19.13 if replaced), δ = 1e-05: example without its gradient, shuffled, ...``:
    differential privacy as the row's facts claim it; empty: nothing.
    """

    def shown(claim: PrivacyClaim) -> tuple[Part, ...]:
        other = "" if claim.replaced is None else f" ({_above(claim.replaced)} if replaced)"
        return sentence(
            f"\u03b5 \u2264 {_above(claim.epsilon)}{other}, \u03b4 = {claim.delta:.3g}: {{}}",
            joined(claim.terms),
        )

    return joined(map(shown, privacy_claims(row)), "; ")


def _above(bound: float) -> str:
    """Four significant digits, rounded up: what is printed of an upper bound is one too."""
    unit = 10.0 ** (math.floor(math.log10(max(bound, 1e-9))) - 3)
    return f"{math.ceil(bound / unit - 1e-9) * unit:,.10g}"


def short(number: float) -> str:
    """Three significant digits; large numbers in full."""
    return (
        f"{number:,.0f}"
        if abs(number) >= 1000
        else f"{number:.3g}"
        if number % 1
        else f"{number:.0f}"
    )


def _remarks(section: Section) -> list[Text]:
    """A footnote a remark, led by the rows that it is made of; of a row that has many, how many
    more there are.
    """
    rows: dict[str, list[str]] = {}
    more: list[Text] = []
    for row in section.rows:
        found = row.remarks
        for text in found[:MOST_REMARKS]:
            rows.setdefault(text, []).append(row.label)
        if len(found) > MOST_REMARKS:
            more.append(
                sentence(
                    f"{{}}: {len(found) - MOST_REMARKS} more of these, which `fedbench show` "
                    f"prints",
                    row.label,
                )
            )
    return [
        *(
            sentence("{}: {}", joined(labels), Quote(text, LONGEST_REMARK))
            for text, labels in rows.items()
        ),
        *more,
    ]


def _power(section: Section) -> tuple[Text, ...]:
    """The differences that are shown with a power of 80 %."""
    auc, accuracy = section.comparison.pairwise.smallest_difference, section.smallest_difference
    found = [f"{auc:.3f} between two worst case AUCs, all pairs tested together"] if auc else []
    found += [f"{100 * accuracy:.1f} pp in delta-accuracy"] if accuracy else []
    text = (
        f"With {len(section.seeds)} seeds, a power of 80 % takes a difference of "
        f"{', or '.join(found)}."
    )
    return (Words(text),) if found else ()


def _share(section: Section) -> Words:
    what = "n/a, since there is no run" if section.free_rider is None else "accuracy minus that"
    return Words(f"Members' share: {what} with members that upload nothing.")


def _runtime(section: Section) -> tuple[Text, ...]:
    """What runtime is relative to, or why it is not known."""
    if section.plain is None or len(section.rows) == 1:
        return ()
    if all(found.runtime is None for found in section.summaries.values()):
        return (Words("Runtime: n/a, since the runs were on machines that differ, or were busy."),)
    return (
        sentence("Runtime: training CPU time over that of {}, seed by seed.", section.plain.label),
    )


def canary_table(section: Section) -> list[Table]:
    """Worst case and mean of each defense on clean samples and on canaries; nothing where a setting
    has samples of one kind only.
    """
    kinds = section.comparison.by_kind
    if not section.scores("canary") or not all(kind.cells.parts for kind in kinds):
        return []
    columns, rows = [DEFENSE], list[tuple[Content, ...]]()
    for name in ("clean", "canaries"):
        columns += [
            words(f"{name}: #"),
            numbers(f"{name}: worst case AUC", direction="lower"),
            numbers(f"{name}: mean AUC", direction="lower"),
        ]
    for row in section.rows:
        cells = [
            (
                rank_of(kind, row),
                worst_of(kind, row),
                value(bounded(kind.worst_cases.of(row.label).mean)),
            )
            for kind in kinds
        ]
        rows.append((name_of(row), *cells[0], *cells[1]))
    caption = (
        " (worst case and mean as in the ranking, where members and outside non-members alike are "
        "clean, or alike are canaries; "
        "attacks count that beat chance on that kind, undefended; a range of ranks for each)"
    )
    empty = Words("no attack beats chance on either kind, undefended")
    return [table_of("Clean samples and canaries", caption, columns, rows, empty=empty)]


# -- every defense in every section ----------------------------------------------------------------

_ACROSS = (
    " (each place: worst case AUC as in the section's ranking, then the range of ranks among the "
    "rows of that section and "
    "delta-accuracy in pp. Can be first: the range reaches 1. Less than undefended: significantly "
    "below the undefended row on "
    "the same candidates, at 95 % for all rows of the section together; out of the sections where "
    "both have scores)"
)


@dataclass(frozen=True, kw_only=True)
class Across:
    """A row, as its first section has it, that is in several settings. ``places``: a cell a
    section, "-" where it is not there; ``first``: of each section in which it has a range of ranks,
    whether that reaches 1; ``less``: of each in which it can be compared with the undefended row,
    whether it leaks significantly less.
    """

    row: Row
    places: tuple[Content, ...]
    first: tuple[bool, ...]
    less: tuple[bool, ...]


def across_settings(sections: Sequence[Section], most: int | None = None) -> list[Block]:
    """A row a defense that is in several settings, of which the first ``most``; nothing where there
    is one setting only.
    """
    rows = _across(sections)[:most]
    if not rows:
        return []
    names, n = _names(sections), len(sections)
    heading = Heading(2, Words("Across settings"))
    if n <= MOST_SECTIONS:
        return [heading, _across_table("Across settings", rows, names, range(n), sums=True)]
    parts = [range(i, min(i + MOST_SECTIONS + 1, n)) for i in range(0, n, MOST_SECTIONS + 1)]
    tables = [
        _across_table(f"Across settings, part {i}", rows, names, part)
        for i, part in enumerate(parts, 1)
    ]
    return [heading, _across_table("Across settings", rows, names, range(0), sums=True), *tables]


def _across(sections: Sequence[Section]) -> list[Across]:
    """The undefended row first, then by the share of sections in which a row beats it, and in which
    it can be the first. Floors, and rows of a single setting, are left out.
    """
    found = []
    for label in {r.label for s in sections for r in s.rows if not r.floor}:
        there = [(s, row) for s in sections if (row := s.row(label)) is not None]
        if len({(s.suite, s.setting) for s, _ in there}) > 1:
            against = [
                s.comparison.pairwise.against(s.base.label).get(label)
                for s, row in there
                if s.base is not None and s.base is not row
            ]
            ranks = [
                s.comparison.pairwise.ranks[label]
                for s, _ in there
                if label in s.comparison.pairwise.ranks
            ]
            found.append(
                Across(
                    row=there[0][1],
                    places=tuple(_cell(s, label) for s in sections),
                    first=tuple(low == 1 for low, _ in ranks),
                    less=tuple(d.shown and d.found.mean < 0 for d in against if d is not None),
                )
            )

    def share(of: Sequence[bool]) -> float:
        return sum(of) / len(of) if of else -1.0

    found.sort(key=lambda t: (not t.row.undefended, -share(t.less), -share(t.first), t.row.label))
    return found if any(not t.row.undefended for t in found) else []


def _cell(section: Section, label: str) -> Content:
    row, worst = section.row(label), section.comparison.worst_cases.of(label).worst
    if row is None:
        return Words("-")
    if worst is None:
        return None
    rank, delta = (
        section.comparison.pairwise.ranks.get(label),
        section.summaries[label].delta_accuracy,
    )
    notes = [f"#{span(rank)}"] if rank else []
    notes += [] if delta is None else [f"{round(100 * delta.mean, 1) + 0.0:+.1f} pp"]
    return value(bounded(worst.found), Words(f" ({', '.join(notes)})") if notes else ())


def _across_table(
    title: str, rows: Sequence[Across], names: Sequence[Text], part: range, sums: bool = False
) -> Table:
    def of(found: Sequence[bool]) -> Words:
        return Words(f"{sum(found)} of {len(found)}" if found else "n/a")

    columns = [DEFENSE, *(Column(name=names[i], direction="lower") for i in part)]
    columns += [numbers("can be first in"), numbers("less than undefended in")] if sums else []
    shown = (
        (
            name_of(t.row),
            *(t.places[i] for i in part),
            *((of(t.first), "" if t.row.undefended else of(t.less)) if sums else ()),
        )
        for t in rows
        if sums or any(t.places[i] != Words("-") for i in part)
    )
    return table_of(title, _ACROSS if sums else "", columns, shown)


def _names(sections: Sequence[Section]) -> list[Text]:
    """The setting of every section, and suite, coalition and view where there are several."""
    parts = {"suite": "{}", "setting": "{}", "coalition": "{}", "view": "{} view"}
    several = [p for p in parts if p == "setting" or len({getattr(s, p) for s in sections}) > 1]
    return [joined(sentence(parts[p], getattr(s, p)) for p in several) for s in sections]
