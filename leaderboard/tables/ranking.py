"""The ranking of a section in its two widths, on each kind of candidates, and every defense across
settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fedbench.core.contract.board import (
    Block,
    Column,
    Content,
    Heading,
    Note,
    Quote,
    Table,
    Text,
    Value,
    Words,
    value,
)
from fedbench.leaderboard.columns import (
    COLUMNS,
    RankingColumn,
    columns_for,
    delta_for,
    with_utility,
)
from fedbench.leaderboard.statistics.intervals import bounded
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.statistics.verdict import LeakStatistics
from fedbench.leaderboard.tables.answer import MOST_NAMED, answer, sentences
from fedbench.leaderboard.tables.common import (
    NAMED,
    RANK,
    TITLE,
    Declared,
    amount,
    is_first,
    joined,
    named,
    no_attack,
    numbers,
    rank_of,
    row_table,
    sentence,
    span,
    tf01_notes,
    words,
    worst_of,
)
from fedbench.leaderboard.tables.differential_privacy import claimed

Trust = Callable[[DefenseRow], Words] | None
"""trust mark of a row; None: every row is measured here"""

MOST_ROWS = 16
"""rows in the first table; of longer ones the first"""
MOST_TIED = 8
"""defenses in a cell of the ranking"""
MOST_REMARKS, LONGEST_REMARK = 4, 600
"""remarks of a row, characters of one"""
MOST_SECTIONS = 5
"""sections in one table of a page"""
READING = Note(
    sentence(
        "Lower AUC and TF01 are better; an AUC of 0.5 is guessing. Ranges of ranks (#) that "
        "overlap are no tie:\n"
        "the full ranking names the rows that the paired tests do not distinguish. `±` and "
        "brackets are 95 %.\n"
        "Utility (accuracy, unless a table names another) is the mean over the last three audited "
        "rounds, its delta against\n"
        "the undefended run of the same seed; runtime is over plain training, as each table says. "
        "Floors are rows for comparison,\n"
        "not defenses. On another type of CPU ranks may move by a place."
    )
)


# -- columns ---------------------------------------------------------------------------------------


def references(section: BoardSection, row: DefenseRow) -> dict[str, int]:
    """Return key of a column -> number of a row that the others' are relative to."""
    fixed_numbers = {}
    if row is section.base:
        fixed_numbers["delta"] = 0
    if row is section.plain:
        fixed_numbers["runtime"] = 1
    return fixed_numbers


def ranking_columns(section: BoardSection, trust: Trust = None) -> dict[str, Declared]:
    """Return key -> column of the ranking, in their order."""
    pairwise = section.comparison.pairwise
    columns: dict[str, Declared] = {
        "rank": (RANK, partial(rank_of, section.comparison)),
        "defense": NAMED,
    }
    for column in columns_for(section.utility):
        columns[column.key] = column.heading, partial(_number, section, column)
        if column.key == "worst":
            heading = numbers("largest of all", direction="lower")
            columns["largest"] = heading, partial(_largest, section)
    columns["tied"] = (
        words("tied with"),
        lambda row: named(pairwise.tied(row.label), MOST_TIED),
    )
    claims = partial(claimed, section)
    if any(map(claims, section.rows)):
        columns["claims"] = words("claims"), claims
    if trust:
        columns["trust"] = words("trust"), trust
    return columns


def _number(section: BoardSection, column: RankingColumn, row: DefenseRow) -> Content:
    reference = references(section, row).get(column.key)
    if reference is not None:
        return Words(str(reference))
    summary = section.summaries[row.label]
    interval, attack = column.number(summary), column.attack(summary)
    if interval is None:
        return None
    best = column.key == "worst" and is_first(section.comparison, row)
    suffix = attack and sentence(" {}", attack)
    return replace(value(interval, suffix), best=best)


def _largest(section: BoardSection, row: DefenseRow) -> Content:
    largest = section.summaries[row.label].largest
    return largest and Value(mean=largest[1], suffix=sentence(" {}", largest[0]))


# -- the first table -------------------------------------------------------------------------------


def front_table(section: BoardSection, rows: Sequence[DefenseRow], trust: Trust) -> Table:
    """Return leak and costs of these rows, and how far each can be trusted."""
    declared = ranking_columns(section, trust)
    tf01 = replace(declared["tf01"][0], name=Words("TF01"))
    declared["tf01"] = tf01, lambda row: value(section.summaries[row.label].tf01)
    declared["delta"] = delta_for(section.utility), declared["delta"][1]
    keys = ["rank", "defense", *(c.key for c in COLUMNS if c.terminal), "trust"]
    columns = [declared[key] for key in keys if key in declared]
    place = section.setting, section.coalition, section.view
    footnotes = _notes(section)
    if len(rows) < len(section.rows):
        more = len(section.rows) - len(rows)
        footnotes.insert(0, Words(f"{more} more rows are in the full board."))
    caption = sentence(": {}, coalition {}, {} view", *place)
    return row_table(TITLE, caption, rows, columns, footnotes=tuple(footnotes))


def front_blocks(section: BoardSection, trust: Trust, most: int = MOST_ROWS) -> list[Block]:
    """Return the sentences of one section and the table that they are about, of at most ``most``
    rows.
    """
    table = front_table(section, first_rows(section, most), trust)
    return [Note(joined(sentences(section), " ")), table]


def first_rows(section: BoardSection, most: int) -> list[DefenseRow]:
    """Return the rows by rank. Of more than ``most``: the undefended row, those that the sentences
    name, the first by rank, and floors where there is room.
    """
    ranks = section.comparison.pairwise.ranks
    last = (len(section.rows), len(section.rows))
    rows = sorted(section.rows, key=lambda row: (row.floor, ranks.get(row.label, last)))
    if len(rows) <= most:
        return rows
    best = answer(section)
    wanted = set(best.tied[:MOST_NAMED])
    if best.defense:
        wanted.add(best.defense.label)
    by_need = sorted(rows, key=lambda row: (not row.undefended, row.label not in wanted, row.floor))
    labels = {row.label for row in by_need[:most]}
    return [row for row in rows if row.label in labels]


# -- the full ranking ------------------------------------------------------------------------------


def ranking_table(section: BoardSection, trust: Trust = None) -> Table:
    """Return a row a defense, by the worst case; ranks are ranges."""
    caption = (
        ": AUC of an adversary who picks attack and sign on the other seeds, against outside "
        "non-members. A range lists the ranks the tests leave open; tied: not distinguished by the "
        "paired test"
    )
    share = with_utility("accuracy minus that", section.utility)
    if section.free_rider is None:
        share = "n/a, since there is no run"
    footnotes = (
        Words(f"Members' share: {share} with members that upload nothing."),
        *_notes(section),
        *_remarks(section),
    )
    columns = list(ranking_columns(section, trust).values())
    return row_table("Ranking", caption, section.rows, columns, footnotes=footnotes)


def _notes(section: BoardSection) -> list[Text]:
    """Return the footnotes that both widths have."""
    notes = [*_unranked(section), *_runtime(section), *tf01_notes(section)]
    return notes + _not_adaptive(section)


def _unranked(section: BoardSection) -> list[Text]:
    """Name the rows with a worst case over fewer attacks than other rows'."""
    notes: list[Text] = []
    for row in section.rows:
        attacks = section.comparison.worst_cases.inapplicable(row.label)
        if row.complete and not row.floor and attacks:
            why = "Without a rank, since its worst case does not count {}: {}."
            notes.append(sentence(why, joined(attacks), row.label))
    return notes


def _remarks(section: BoardSection) -> list[Text]:
    """Return a footnote a remark, led by the rows that it is made of."""
    rows: dict[str, list[str]] = {}
    for row in section.rows:
        for text in row.remarks[:MOST_REMARKS]:
            rows.setdefault(text, []).append(row.label)
    return [
        sentence("{}: {}", joined(labels), Quote(text, LONGEST_REMARK))
        for text, labels in rows.items()
    ]


def _not_adaptive(section: BoardSection) -> list[Text]:
    """Name the defenses that no attack of the section knows, where it has one that knows any."""
    rows = [row for row in section.rows if not (row.undefended or row.floor or row.adaptive)]
    if not section.adaptive or not rows:
        return []
    names = joined([row.label for row in rows])
    return [sentence("No attack that knows the defense was run against: {}.", names)]


def _runtime(section: BoardSection) -> list[Text]:
    """Say what runtime is relative to, or why it is not known."""
    if section.plain is None or len(section.rows) == 1:
        return []
    if all(summary.runtime is None for summary in section.summaries.values()):
        return [Words("Runtime: n/a, since the runs were on machines that differ, or were busy.")]
    text = "Runtime: training CPU time over that of {}, seed by seed."
    return [sentence(text, section.plain.label)]


def canary_table(section: BoardSection) -> list[Table]:
    """Return worst case and mean of each defense on clean samples and on canaries; nothing where a
    setting has samples of one kind only.
    """
    kinds = section.comparison.by_kind
    if not section.scores("canary") or not all(kind.leaks.parts for kind in kinds):
        return []

    def mean(kind: LeakStatistics, row: DefenseRow) -> Content:
        return value(bounded(kind.worst_cases.of(row.label).mean))

    columns = [NAMED]
    for name, kind in zip(("clean", "canaries"), kinds, strict=True):
        columns += [
            (words(f"{name}: #"), partial(rank_of, kind)),
            (numbers(f"{name}: worst case AUC", direction="lower"), partial(worst_of, kind)),
            (numbers(f"{name}: mean AUC", direction="lower"), partial(mean, kind)),
        ]
    caption = (
        " (worst case and mean as in the ranking, where members and outside non-members alike are "
        "clean, or alike are canaries; attacks count that beat chance on that kind, undefended; a "
        "range of ranks for each)"
    )
    empty = Words(f"{no_attack(section).lower()} beats chance on either kind, undefended")
    title = "Clean samples and canaries"
    return [row_table(title, caption, section.rows, columns, empty=empty)]


# -- every defense in every section ----------------------------------------------------------------

_ACROSS = (
    " (each place: worst case AUC as in the section's ranking, then the range of ranks among the "
    "rows of that section and "
    "delta-accuracy in pp. Can be first: the range reaches 1. Less than undefended: significantly "
    "below the undefended row on "
    "the same candidates, at 95 % for all rows of the section together; out of the sections where "
    "both have scores)"
)


def across_settings(
    sections: Sequence[BoardSection], most: int | None = None, places: bool = True
) -> list[Block]:
    """Return a row a defense that is in several settings, of which the first ``most``; nothing
    where there is one setting only. ``places``: with a column a section.

    The undefended row is the first; then rows by the share of sections in which they beat it, and
    in which they can be the first.
    """
    rows = _rows_of_several_settings(sections)
    if all(row.undefended for row in rows):
        return []
    first, less = _can_be_first(sections), _less_than_undefended(sections)

    def order(row: DefenseRow) -> tuple[bool, float, float, str]:
        label = row.label
        return not row.undefended, -_share(less, label), -_share(first, label), label

    def tally(counts: dict[str, list[bool]], row: DefenseRow) -> Content:
        flags = counts.get(row.label)
        if row.undefended and counts is less:
            return ""
        return Words(f"{sum(flags)} of {len(flags)}") if flags else None

    columns = [NAMED]
    if places:
        for section, name in zip(sections, _names(sections), strict=True):
            columns.append((Column(name=name, direction="lower"), partial(_place, section)))
    columns += [
        (numbers("can be first in"), partial(tally, first)),
        (numbers("less than undefended in"), partial(tally, less)),
    ]
    table = row_table("Across settings", _ACROSS, sorted(rows, key=order)[:most], columns)
    return [Heading(2, Words("Across settings")), table]


def _rows_of_several_settings(sections: Sequence[BoardSection]) -> list[DefenseRow]:
    """Return the rows, as their first sections have them, but floors and rows of one setting."""
    rows: dict[str, DefenseRow] = {}
    settings: dict[str, set[tuple[str, str]]] = {}
    for section in sections:
        for row in section.rows:
            rows.setdefault(row.label, row)
            settings.setdefault(row.label, set()).add((section.suite, section.setting))
    return [row for row in rows.values() if len(settings[row.label]) > 1 and not row.floor]


def _can_be_first(sections: Sequence[BoardSection]) -> dict[str, list[bool]]:
    """Return label -> whether its range of ranks reaches 1, of each section where it has one."""
    flags: dict[str, list[bool]] = {}
    for section in sections:
        for label, (low, _) in section.comparison.pairwise.ranks.items():
            flags.setdefault(label, []).append(low == 1)
    return flags


def _less_than_undefended(sections: Sequence[BoardSection]) -> dict[str, list[bool]]:
    """Return label -> whether it leaks significantly less than the undefended row, of each section
    where both have scores.
    """
    flags: dict[str, list[bool]] = {}
    for section in sections:
        if section.base is not None:
            against = section.comparison.pairwise.against(section.base.label)
            for label, difference in against.items():
                less = difference.shown and difference.interval.mean < 0
                flags.setdefault(label, []).append(less)
    return flags


def _share(counts: dict[str, list[bool]], label: str) -> float:
    flags = counts.get(label)
    return sum(flags) / len(flags) if flags else -1.0


def _place(section: BoardSection, row: DefenseRow) -> Content:
    summary = section.summaries.get(row.label)
    if summary is None:
        return Words("-")
    if summary.worst is None:
        return None
    notes = []
    if rank := section.comparison.pairwise.ranks.get(row.label):
        notes.append(f"#{span(rank)}")
    if summary.delta_accuracy is not None:
        delta = delta_for(section.utility)
        change = amount(Value(mean=summary.delta_accuracy.mean), delta)
        notes.append(f"{change} {delta.unit}".rstrip())
    return value(summary.worst, Words(f" ({', '.join(notes)})") if notes else ())


def _names(sections: Sequence[BoardSection]) -> list[Text]:
    """Return the setting of every section, and suite, coalition and view where there are
    several.
    """
    forms = {"suite": "{}", "setting": "{}", "coalition": "{}", "view": "{} view"}
    parts = [p for p in forms if p == "setting" or len({getattr(s, p) for s in sections}) > 1]
    return [joined([sentence(forms[p], getattr(s, p)) for p in parts]) for s in sections]
