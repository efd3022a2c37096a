"""The first screen of a board: what adversaries get, what each defense costs, and what that comes to in two sentences."""

from __future__ import annotations

from fedbench.core.contract.board import Block, Column, Content, Note, Part, Table, Text, Value, Words, value
from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.answer import WITHIN, Answer, answer
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import RowSummary, Section
from fedbench.leaderboard.tables.common import DEFENSE, RANK, joined, name_of, rank_of
from fedbench.leaderboard.tables.tf01 import tf01_notes

TITLE = "At a glance"
READING = Note((
    Words(
        "Lower AUC and TF01 are better; an AUC of 0.5 is guessing. Rows that share places (#) are not told apart, whatever their "
        "order; "
    ),
    Words("±", "code"), Words(" and brackets are 95 %.\n"),
    Words(
        "Accuracy and runtime are against the undefended run of the same seed. "
    ),
    Words("free-rider", "code"), Words(" and "), Words("placebo", "code"), Words(" are floors, not defenses."),
))  # fmt: skip
MOST_ROWS = 16  # in a table; of longer ones those ahead
MOST_NAMED = 4  # defenses in a sentence
_COLUMNS = (
    RANK, DEFENSE, Column(name=Words("worst case AUC"), direction="lower"), Column(name=Words("mean AUC"), direction="lower"),
    Column(name=Words("TF01"), unit="%", direction="lower", digits=2),
    Column(name=Words("delta-accuracy"), unit="pp", direction="higher", digits=1, scale=100, signed=True),
    Column(name=Words("runtime"), direction="lower", digits=2),
)  # fmt: skip


def front_blocks(section: Section) -> list[Block]:
    """The table of one section and the two sentences under it."""
    found = answer(section)
    shown = _shown(section, found)
    left = len(section.rows) - len(shown)
    more: list[Text] = [Words(f"{left} more rows stand in the full ranking below.")] if left else []
    others = [section.compared[row.label] for row in section.rows if not row.undefended]
    if section.base is not None and others and all(found.runtime is None for found in others):
        more.append(Words("Runtime: n/a, since the runs were on machines that differ, or were busy."))
    where = joined([section.setting, (Words("coalition "), section.coalition), (section.view, Words(" view"))])
    return [
        Table(
            title=TITLE, caption=(Words(": "), *where),
            columns=_COLUMNS, rows=tuple(_row(section, row) for row in shown), footnotes=(*more, *tf01_notes(section)),
        ),
        Note(joined(sentences(found), " ")),
    ]  # fmt: skip


def _shown(section: Section, found: Answer) -> list[Row]:
    """In the order of their ranges of ranks. Of many: the first, what the sentences name, the undefended row and the floors."""
    ranks = section.comparison.ranks
    order = {row.label: i for i, row in enumerate(section.rows)}
    last = (len(order), len(order))
    rows = sorted(section.rows, key=lambda row: (row.floor, ranks.get(row.label, last), order[row.label]))
    if len(rows) <= MOST_ROWS:
        return rows
    named = {found.defense.label if found.defense else None, *found.tied[:MOST_NAMED]}
    kept = {row.label for row in rows if row.undefended or row.floor or row.label in named}
    ahead = [row.label for row in rows if row.label not in kept][: max(MOST_ROWS - len(kept), 0)]
    return [row for row in rows if row.label in kept or row.label in ahead]


def _row(section: Section, row: Row) -> tuple[Content, ...]:
    contest, compared = section.comparison, section.compared[row.label]
    worst, rate = contest.worst(row.label), contest.worst_tf01(row.label)
    first = contest.ranks.get(row.label) == (1, 1) and len(contest.ranked) > 1
    return (
        rank_of(section, row), name_of(row),
        None if worst is None else Value(
            mean=worst.found.mean, half_width=worst.found.half_width, best=first, suffix=(Words(" "), worst.attack)
        ),
        value(contest.mean(row.label)), None if rate is None else value(rate.found),
        Words("0") if row.undefended else value(compared.delta_accuracy),
        Words("1") if row.undefended else value(compared.runtime, Words("x")) if compared.runtime else None,
    )  # fmt: skip


# ---------------------------------------------------------------- in words


def sentences(found: Answer) -> tuple[Text, ...]:
    """The strongest defense within one point of the undefended accuracy, and what the undefended federation leaks."""
    if found.outcome == "no undefended run":
        return (Words("Nobody ran undefended here, so what a defense costs, or spares, cannot be said."),)
    if found.outcome == "nothing leaks":
        return (Words("No attack beats chance on the undefended federation: there is no leak for a defense to stop."),)
    return _strongest(found), _leak(found)


def _strongest(found: Answer) -> Text:
    defense = found.defense
    if defense is None:
        return Words("No defense with all its scores stands here beside the undefended federation.")
    name, leak = defense.label, _auc(defense)
    if found.outcome == "none within":
        return (
            Words("No defense is within one point of the undefended accuracy: the nearest, "), name,
            Words(f", costs {_points(defense, -1)} points{_perhaps_within(found)} and has a "), *leak, Words("."),
        )  # fmt: skip
    if found.outcome == "none told":
        told = "one seed tells nothing apart" if found.seeds == 1 else "that is not told from the undefended federation's"
        return (
            Words("No defense within one point of the undefended accuracy is shown to leak less than no defense: the lowest is "),
            name, Words(" with a "), *leak, Words(f"; {told}"), *_cost(found), Words("."),
        )  # fmt: skip
    less = "" if found.difference is None else f", {_number(found.difference.found, 3, -1)} below the undefended federation's"
    return (
        Words("The strongest defense within one point of the undefended accuracy is "), name, Words(": "), *leak, Words(less),
        *_cost(found), *_ties(found), Words("."),
    )  # fmt: skip


def _perhaps_within(found: Answer) -> str:
    """Of a row that costs more as measured."""
    delta = None if found.defense is None else found.defense.delta_accuracy
    if delta is None or delta.half_width != delta.half_width or delta.high < -WITHIN:
        return ""
    return f", which {_seeds(found)} not tell from one point,"


def _seeds(found: Answer) -> str:
    return "one seed does" if found.seeds == 1 else f"{found.seeds} seeds do"


def _cost(found: Answer) -> tuple[Part, ...]:
    assert found.defense is not None
    said = f", at a measured change of accuracy of {_points(found.defense, 1)} points"
    if not found.surely_within:
        said += f", which {_seeds(found)} not tell from a loss of more than one point"
    return (Words(said),)


def _ties(found: Answer) -> tuple[Part, ...]:
    if not found.tied:
        return ()
    more = len(found.tied) - MOST_NAMED
    names = joined(found.tied if more <= 1 else found.tied[:MOST_NAMED])
    return (Words("; not told apart from "), *names, *([Words(f" and {more} more")] if more > 1 else []))


def _leak(found: Answer) -> Text:
    undefended = found.undefended
    if undefended is None:
        return ()
    rate = undefended.tf01
    tf01: tuple[Part, ...] = (Words("; TF01 cannot be said"),)
    if rate is not None:
        tf01 = (Words(f", and a TF01 of {_number(rate, 2)} % ("), undefended.tf01_attack, Words(")"))
    return (Words("The undefended federation leaks a "), *_auc(undefended), *tf01, Words("."))


def _auc(standing: RowSummary) -> tuple[Part, ...]:
    if standing.worst is None:
        return (Words("worst case AUC that is not known"),)
    return Words(f"worst case AUC of {_number(standing.worst, 3)} ("), standing.attack, Words(")")


def _points(standing: RowSummary, sign: int) -> str:
    return "n/a" if standing.delta_accuracy is None else _number(standing.delta_accuracy, 1, sign * 100, signed=sign > 0)


def _number(found: Interval, digits: int, scale: float = 1.0, signed: bool = False) -> str:
    """``0.568 ± 0.023``, or with ends ``0.10 [0.00, 1.20]``."""
    mean = f"{round(found.mean * scale, digits) + 0.0:{'+' if signed else ''}.{digits}f}"
    if found.ends is not None:
        return f"{mean} [{found.ends[0] * scale:.{digits}f}, {found.ends[1] * scale:.{digits}f}]"
    return mean if found.half_width != found.half_width else f"{mean} ± {found.half_width * abs(scale):.{digits}f}"
