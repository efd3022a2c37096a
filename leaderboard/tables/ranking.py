"""The ranking of a section, its first screen in a table and two sentences, and every defense across settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedbench.core.contract.board import Block, Column, Content, Heading, Note, Part, Quote, Table, Text, Words, value
from fedbench.core.metrics import Interval
from fedbench.core.metrics.intervals import LEVEL
from fedbench.leaderboard.statistics.intervals import holm
from fedbench.leaderboard.statistics.rows import PrivacyClaim, Row, privacy_claims
from fedbench.leaderboard.statistics.sections import RowSummary, Section
from fedbench.leaderboard.statistics.verdict import Comparison, Difference
from fedbench.leaderboard.tables.common import DEFENSE, RANK, joined, name_of, rank_of, tf01_notes, with_attack, worst_of

WITHIN = 0.01  # of test accuracy below the undefended federation's: "one point"
MOST_ROWS = 16  # in the first table; of longer ones the first
MOST_NAMED = 4  # defenses in a sentence
MOST_REMARKS, LONGEST_REMARK = 4, 600  # footnotes of a row, characters of one
MOST_SECTIONS = 5  # in one table across settings, with the sums: eight columns
TITLE = "At a glance"
READING = Note((
    Words(
        "Lower AUC and TF01 are better; an AUC of 0.5 is guessing. Rows that share places (#) are statistically tied, whatever "
        "their order; "
    ),
    Words("±", "code"), Words(" and brackets are 95 %.\n"),
    Words(
        "Accuracy and runtime are against the undefended run of the same seed. "
    ),
    Words("free-rider", "code"), Words(" and "), Words("placebo", "code"), Words(" are floors, not defenses."),
))  # fmt: skip
_WORST = Column(name=Words("worst case AUC"), direction="lower")
_MEAN = Column(name=Words("mean AUC"), direction="lower")
_RUNTIME = Column(name=Words("runtime"), direction="lower", digits=2)


def _delta(digits: int) -> Column:
    return Column(name=Words("delta-accuracy"), unit="pp", direction="higher", digits=digits, scale=100, signed=True)


# -- the first screen -------------------------------------------------------------------------------------------------------

_FRONT = (RANK, DEFENSE, _WORST, _MEAN, Column(name=Words("TF01"), unit="%", direction="lower", digits=2), _delta(1), _RUNTIME)


def front_table(section: Section, rows: Sequence[Row]) -> Table:
    """Leak and costs of these rows."""
    more: list[Text] = []
    if left := len(section.rows) - len(rows):
        more.append(Words(f"{left} more rows stand in the full ranking below."))
    others = [section.compared[row.label] for row in section.rows if not row.undefended]
    if section.base is not None and others and all(found.runtime is None for found in others):
        more.append(Words("Runtime: n/a, since the runs were on machines that differ, or were busy."))
    where = joined([section.setting, (Words("coalition "), section.coalition), (section.view, Words(" view"))])
    return Table(
        title=TITLE, caption=(Words(": "), *where), columns=_FRONT, rows=tuple(_front_row(section, row) for row in rows),
        footnotes=(*more, *tf01_notes(section)),
    )  # fmt: skip


def front_blocks(section: Section) -> list[Block]:
    """The table of one section and the two sentences under it."""
    found = answer(section)
    return [front_table(section, _first_rows(section, found)), Note(joined(sentences(found), " "))]


def _first_rows(section: Section, found: Answer) -> list[Row]:
    """By rank. Of many: the first, the rows that the sentences name, the undefended row and the floors."""
    ranks = section.comparison.ranks
    last = (len(section.rows), len(section.rows))
    rows = sorted(section.rows, key=lambda row: (row.floor, ranks.get(row.label, last)))
    if len(rows) <= MOST_ROWS:
        return rows
    named = {found.defense.label if found.defense else None, *found.tied[:MOST_NAMED]}
    kept = {row.label for row in rows if row.undefended or row.floor or row.label in named}
    first = [row.label for row in rows if row.label not in kept][: max(MOST_ROWS - len(kept), 0)]
    return [row for row in rows if row.label in kept or row.label in first]


def _front_row(section: Section, row: Row) -> tuple[Content, ...]:
    comparison, rate = section.comparison, section.comparison.worst_tf01(row.label)
    delta, runtime = _delta_and_runtime(section, row)
    mean, tf01 = value(comparison.mean(row.label)), None if rate is None else value(rate.found)
    return rank_of(comparison, row), name_of(row), worst_of(comparison, row), mean, tf01, delta, runtime


def _delta_and_runtime(section: Section, row: Row) -> tuple[Content, Content]:
    if row.undefended:
        return Words("0"), Words("1")
    found = section.compared[row.label]
    return value(found.delta_accuracy), value(found.runtime, Words("x")) if found.runtime else None


# -- the two sentences ------------------------------------------------------------------------------------------------------

Outcome = Literal["found", "none told", "none within", "none here", "nothing leaks", "no undefended run"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Which defense to use. ``outcome``: ``found``: the ``defense`` leaks significantly less than the undefended
    federation and costs at most one point as measured. ``none told``: of those within one point none does;
    ``defense`` is the lowest. ``none within``: every defense costs more; ``defense`` is the one that costs least.
    Otherwise there is no ``defense``: no row but floors has a rank (``none here``), no attack beats chance (``nothing
    leaks``), or there is no undefended run.

    ``difference``: the defense's worst case minus the undefended one's. ``unsure``: whether the interval of its
    delta-accuracy holds a loss of one point. ``tied``: the other rows within one point that are statistically tied
    with it, the lowest first."""

    outcome: Outcome
    undefended: RowSummary | None = None
    defense: RowSummary | None = None
    difference: Difference | None = None
    unsure: bool = False
    tied: tuple[str, ...] = ()
    seeds: int = 0


def answer(section: Section) -> Answer:
    """Of rows with a rank: floors and rows with missing scores are left out."""
    comparison, base, seeds = section.comparison, section.base, len(section.seeds)
    undefended = None if base is None else section.standing(base.label)
    if base is None or undefended is None:
        return Answer(outcome="no undefended run", seeds=seeds)
    if undefended.worst is None or not comparison.eligible:
        return Answer(outcome="nothing leaks", undefended=undefended, seeds=seeds)
    ranked = [row.label for row in section.rows if row.label in comparison.ranked and row is not base]
    costs = {s.label: s for label in ranked if (s := section.standing(label)) is not None and s.delta_accuracy is not None}
    if not costs:
        return Answer(outcome="none here", undefended=undefended, seeds=seeds)
    within = [label for label, s in costs.items() if _cost(s) <= WITHIN]
    against = comparison.against(base.label)
    less = [label for label in within if label in against and against[label].shown and against[label].found.mean < 0]
    lowest = less or within or [min(costs, key=lambda label: _cost(costs[label]))]
    first, apart = costs[lowest[0]], significant_pairs(comparison)  # rows are in the order of their worst cases
    return Answer(
        outcome="found" if less else "none told" if within else "none within", undefended=undefended, defense=first,
        difference=against.get(first.label), unsure=_unsure(first), seeds=seeds,
        tied=tuple(label for label in within if label != first.label and frozenset((label, first.label)) not in apart),
    )  # fmt: skip


def significant_pairs(comparison: Comparison) -> set[frozenset[str]]:
    """The pairs of rows with ranks that differ where all are tested together, as for the ranges of ranks."""
    differences, p_values = comparison.tests_among(comparison.ranked)
    return {frozenset(pair) for pair, p in holm(p_values).items() if p <= 1 - LEVEL and differences[pair] != 0}


def _cost(row: RowSummary) -> float:
    return -row.delta_accuracy.mean if row.delta_accuracy is not None else float("inf")


def _unsure(row: RowSummary) -> bool:
    """Whether the interval of its delta-accuracy holds a loss of one point, or is not known."""
    found = row.delta_accuracy
    return found is None or not (found.low >= -WITHIN or found.high < -WITHIN)


def sentences(found: Answer) -> tuple[Text, ...]:
    """The strongest defense within one point of the undefended accuracy, and the leak of the undefended
    federation."""
    if found.outcome == "no undefended run":
        return (Words("There is no undefended run, so the effect and the cost of a defense are not known."),)
    if found.outcome == "nothing leaks":
        return (Words("No attack beats chance on the undefended federation: there is no leak for a defense to stop."),)
    return _strongest(found), _leak(found)


_LEADS = {
    "found": "The strongest defense within one point of the undefended accuracy is ",
    "none told": "No defense within one point of the undefended accuracy is shown to leak less than no defense; the lowest is ",
    "none within": "No defense is within one point of the undefended accuracy; the nearest is ",
}


def _strongest(found: Answer) -> Text:
    defense = found.defense
    if defense is None or defense.delta_accuracy is None:
        return Words("No defense with all its scores can be compared with the undefended federation.")
    less = "" if found.difference is None else f", {_number(found.difference.found, 3, signed=True)} against the undefended one"
    cost = f", at a change of accuracy of {_number(defense.delta_accuracy, 1, 100, signed=True)} points"
    seeds = "one seed does" if found.seeds == 1 else f"{found.seeds} seeds do"
    unsure = f", which {seeds} not distinguish from one point" if found.unsure else ""
    alone = "; one seed shows no differences" if found.seeds == 1 else ""
    detail = Words(less + cost + unsure + alone)
    return Words(_LEADS[found.outcome]), defense.label, Words(": "), *_auc(defense), detail, *_ties(found), Words(".")


def _ties(found: Answer) -> tuple[Part, ...]:
    if not found.tied:
        return ()
    more = len(found.tied) - MOST_NAMED
    names = joined(found.tied if more <= 1 else found.tied[:MOST_NAMED])
    return (Words("; statistically tied with "), *names, *([Words(f" and {more} more")] if more > 1 else []))


def _leak(found: Answer) -> Text:
    row = found.undefended
    if row is None:
        return ()
    tf01: tuple[Part, ...] = (Words("; not enough non-members for TF01"),)
    if row.tf01 is not None:
        tf01 = (Words(f", and a TF01 of {_number(row.tf01, 2)} % ("), row.tf01_attack, Words(")"))
    return (Words("The undefended federation leaks a "), *_auc(row), *tf01, Words("."))


def _auc(row: RowSummary) -> tuple[Part, ...]:
    if row.worst is None:
        return (Words("worst case AUC that is not known"),)
    return Words(f"worst case AUC of {_number(row.worst, 3)} ("), row.attack, Words(")")


def _number(found: Interval, digits: int, scale: float = 1.0, signed: bool = False) -> str:
    """``0.568 ± 0.023``, or with ends ``0.10 [0.00, 1.20]``."""
    mean = f"{round(found.mean * scale, digits) + 0.0:{'+' if signed else ''}.{digits}f}"
    if found.ends is not None:
        return f"{mean} [{found.ends[0] * scale:.{digits}f}, {found.ends[1] * scale:.{digits}f}]"
    return mean if found.half_width != found.half_width else f"{mean} ± {found.half_width * abs(scale):.{digits}f}"


# -- the full ranking -------------------------------------------------------------------------------------------------------

_RANKING = (
    RANK, DEFENSE, _WORST, Column(name=Words("largest of all"), direction="lower"), _MEAN,
    Column(name=Words("worst TF01"), unit="%", direction="lower", digits=2), _delta(2),
    Column(name=Words("accuracy"), unit="%", direction="higher", digits=1, scale=100),
    Column(name=Words("members' share"), unit="pp", direction="higher", digits=2, scale=100, signed=True), _RUNTIME,
)  # fmt: skip


def ranking_table(section: Section, trust: Callable[[Row], Words] | None = None) -> Table:
    """A row a defense, by the worst case; ranks are ranges. ``trust``: how far a row can be trusted, where that
    differs."""
    further: list[tuple[str, Callable[[Row], Content]]] = [("trust", trust)] if trust is not None else []
    if any(privacy_claims(row) for row in section.rows):
        further.insert(0, ("claims", claimed))
    rows = tuple((*_ranking_row(section, row), *(cell(row) for _, cell in further)) for row in section.rows)
    caption = Words(
        ": AUC of an adversary who picks attack and sign on the other seeds, against outside non-members. A range lists the "
        "ranks the tests cannot distinguish"
    )
    return Table(
        title="Ranking", caption=caption, columns=(*_RANKING, *(Column(name=Words(n), align="left") for n, _ in further)),
        rows=rows, footnotes=(*_power(section), *tf01_notes(section), *_remarks(section)),
    )  # fmt: skip


def _ranking_row(section: Section, row: Row) -> tuple[Content, ...]:
    comparison, compared = section.comparison, section.compared[row.label]
    worst, rate = comparison.worst(row.label), comparison.worst_tf01(row.label)
    delta, runtime = _delta_and_runtime(section, row)
    return (
        rank_of(comparison, row), name_of(row), worst_of(comparison, row), with_attack(worst.largest if worst else None),
        value(comparison.mean(row.label)), None if rate is None else value(rate.found, (Words(" "), rate.attack)), delta,
        value(row.accuracy), value(compared.contribution), runtime,
    )  # fmt: skip


def claimed(row: Row) -> tuple[Part, ...]:
    """``ε = 8, δ = 1e-05, example``: differential privacy as the row's facts claim it; empty: nothing."""

    def shown(claim: PrivacyClaim) -> tuple[Part, ...]:
        epsilon, delta = (" to ".join(dict.fromkeys(map(form, ends))) for form, ends in (
            (short, claim.epsilon), ("{:.3g}".format, claim.delta)
        ))  # fmt: skip
        return Words(f"\u03b5 = {epsilon}, \u03b4 = {delta}, "), *joined(claim.units, " / ")

    return joined(map(shown, privacy_claims(row)), "; ")


def short(number: float) -> str:
    """Three significant digits; large numbers in full."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}" if number % 1 else f"{number:.0f}"


def _remarks(section: Section) -> list[Text]:
    """A footnote a remark, led by the rows that it is made of; of a row that has many, how many more there are."""
    rows: dict[str, list[str]] = {}
    more: list[Text] = []
    for row in section.rows:
        found = row.remarks
        for text in found[:MOST_REMARKS]:
            rows.setdefault(text, []).append(row.label)
        if len(found) > MOST_REMARKS:
            rest = Words(f": {len(found) - MOST_REMARKS} more of these, which ")
            more.append((row.label, rest, Words("fedbench show", "code"), Words(" prints")))
    return [*((*joined(labels), Words(": "), Quote(text, LONGEST_REMARK)) for text, labels in rows.items()), *more]


def _power(section: Section) -> tuple[Text, ...]:
    found = section.smallest_difference
    if found is None:
        return ()
    return (Words(
        f"Delta-accuracy: with {len(section.seeds)} seeds, differences below {100 * found:.1f} pp are shown with a chance of "
        "less than 80 %. Members' share: accuracy minus that with members that upload nothing."
    ),)  # fmt: skip


def canary_table(section: Section) -> list[Table]:
    """Worst case and mean of each defense on clean samples and on canaries; nothing where a setting has samples of
    one kind only."""
    kinds = section.comparison.by_kind
    if not section.scores("canary") or not all(kind.parts for kind in kinds):
        return []
    columns, rows = [DEFENSE], []
    for name in ("clean", "canaries"):
        columns += [Column(name=Words(f"{name}: #"), align="left"), *(
            Column(name=Words(f"{name}: {what}"), direction="lower") for what in ("worst case AUC", "mean AUC")
        )]  # fmt: skip
    for row in section.rows:
        cells = [(rank_of(kind, row), worst_of(kind, row), value(kind.mean(row.label))) for kind in kinds]
        rows.append((name_of(row), *cells[0], *cells[1]))
    caption = Words(
        " (worst case and mean as in the ranking, where members and outside non-members alike are clean, or alike are canaries; "
        "attacks count that beat chance on that kind, undefended; a range of ranks for each)"
    )
    return [Table(
        title="Clean samples and canaries", caption=caption, columns=tuple(columns), rows=tuple(rows),
        empty=Words("no attack beats chance on either kind, undefended"),
    )]  # fmt: skip


# -- every defense in every section ------------------------------------------------------------------------------------------

_SUMS = (Column(name=Words("can be first in")), Column(name=Words("less than undefended in")))
_ACROSS = (
    " (each place: worst case AUC as in the section's ranking, then the range of ranks among the rows of that section and "
    "delta-accuracy in pp. Can be first: the range reaches 1. Less than undefended: significantly below the undefended row on "
    "the same candidates, at 95 % for all rows of the section together; out of the sections where both have scores)"
)


@dataclass(frozen=True, kw_only=True)
class Across:
    """A row that stands in sections of several settings. ``places``: a cell a section, "-" where it is not there;
    ``first``: of each section in which it has a range of ranks, whether that reaches 1; ``less``: of each in which it
    can be compared with the undefended row, whether it leaks significantly less."""

    label: str
    undefended: bool
    places: tuple[Content, ...]
    first: tuple[bool, ...]
    less: tuple[bool, ...]


def across_settings(sections: Sequence[Section]) -> list[Block]:
    """A row a defense that stands in several settings; nothing where there is one setting only."""
    rows = _across(sections)
    if not rows:
        return []
    names, n = _names(sections), len(sections)
    heading = Heading(2, Words("Across settings"))
    if n <= MOST_SECTIONS:
        return [heading, _across_table("Across settings", rows, names, range(n), sums=True)]
    parts = [range(i, min(i + MOST_SECTIONS + 1, n)) for i in range(0, n, MOST_SECTIONS + 1)]
    tables = [_across_table(f"Across settings, part {i}", rows, names, part) for i, part in enumerate(parts, 1)]
    return [heading, _across_table("Across settings", rows, names, range(0), sums=True), *tables]


def _across(sections: Sequence[Section]) -> list[Across]:
    """The undefended row first, then by the share of sections in which a row beats it, and in which it can be the
    first. Floors, and rows of a single setting, are left out."""
    found = []
    for label in {r.label for s in sections for r in s.rows if not r.floor}:
        there = [(s, row) for s in sections if (row := s.row(label)) is not None]
        if len({(s.suite, s.setting) for s, _ in there}) > 1:
            against = [
                s.comparison.against(s.base.label).get(label) for s, row in there if s.base is not None and s.base is not row
            ]
            ranks = [s.comparison.ranks[label] for s, _ in there if label in s.comparison.ranks]
            found.append(Across(
                label=label, undefended=all(row.undefended for _, row in there), places=tuple(_cell(s, label) for s in sections),
                first=tuple(low == 1 for low, _ in ranks),
                less=tuple(d.shown and d.found.mean < 0 for d in against if d is not None),
            ))  # fmt: skip

    def share(of: Sequence[bool]) -> float:
        return sum(of) / len(of) if of else -1.0

    found.sort(key=lambda t: (not t.undefended, -share(t.less), -share(t.first), t.label))
    return found if any(not t.undefended for t in found) else []


def _cell(section: Section, label: str) -> Content:
    row, worst = section.row(label), section.comparison.worst(label)
    if row is None:
        return Words("-")
    if worst is None:
        return None
    low, high = section.comparison.ranks.get(label, (0, 0))
    notes = [Words(f"#{low}" if low == high else f"#{low}-{high}")] if low else []
    delta = section.compared[label].delta_accuracy
    notes += [] if delta is None else [Words(f"{round(100 * delta.mean, 1) + 0.0:+.1f} pp")]
    return value(worst.found, (Words(" ("), *joined(notes), Words(")")) if notes else ())


def _across_table(title: str, rows: Sequence[Across], names: Sequence[Text], part: range, sums: bool = False) -> Table:
    def of(found: Sequence[bool]) -> Words:
        return Words(f"{sum(found)} of {len(found)}" if found else "n/a")

    shown = []
    for t in rows:
        places = [t.places[i] for i in part]
        if sums or any(place != Words("-") for place in places):
            name: Text = (t.label, Words(" (undefended)")) if t.undefended else t.label
            shown.append((name, *places, *((of(t.first), "" if t.undefended else of(t.less)) if sums else ())))
    columns = (DEFENSE, *(Column(name=names[i], direction="lower") for i in part), *(_SUMS if sums else ()))
    return Table(title=title, caption=Words(_ACROSS) if sums else (), columns=columns, rows=tuple(shown))


def _names(sections: Sequence[Section]) -> list[Text]:
    """The setting of every section, and suite, coalition and view where there are several."""
    several = {part: len({getattr(s, part) for s in sections}) > 1 for part in ("suite", "coalition", "view")}
    return [
        joined([
            *([s.suite] if several["suite"] else []), s.setting, *([s.coalition] if several["coalition"] else []),
            *([(s.view, Words(" view"))] if several["view"] else []),
        ])
        for s in sections
    ]  # fmt: skip
