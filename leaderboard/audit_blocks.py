"""What an auditor's page says, as blocks: result, scope, threat models, numbers, what would change
them, and where they come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from fedbench.core import MEMBER, OFL, UserError
from fedbench.core.contract.board import (
    Block,
    Bullets,
    Content,
    Heading,
    Interval,
    Note,
    Table,
    Text,
    Value,
    Words,
)
from fedbench.core.metrics.intervals import exact_interval
from fedbench.core.population.audit import Target
from fedbench.core.words import DOCS
from fedbench.leaderboard.audit_verdict import TF01, WORST, interval_value, leak, subject, verdict
from fedbench.leaderboard.columns import BY_KEY, RankingColumn, column_for
from fedbench.leaderboard.document import Source, board_id, provisional_mark
from fedbench.leaderboard.statistics.rows import AttackEntry, DefenseRow, adversary_of
from fedbench.leaderboard.statistics.sections import FEWEST_FEDERATIONS, BoardSection
from fedbench.leaderboard.tables.answer import caveats
from fedbench.leaderboard.tables.auditors import epsilon_columns
from fedbench.leaderboard.tables.common import (
    NAMED,
    Declared,
    counts_note,
    joined,
    name_of,
    named,
    no_attack,
    numbers,
    row_table,
    sentence,
    table_of,
    tf01_notes,
    words,
)
from fedbench.leaderboard.tables.provenance import (
    VIEWS,
    origin_notes,
    packages,
    provenance_lines,
    series,
)
from fedbench.leaderboard.tables.ranking import Trust, first_rows, ranking_columns

MOST_ROWS, MOST_SECTIONS, MOST_ATTACKS = 8, 6, 8
_NUMBERS = ("worst", "tf01", "accuracy")
_FACTS: Mapping[str, Sequence[str]] = {
    "federation": (
        "clients",
        "rounds",
        "local_epochs",
        "batch_size",
        "participation",
        "test_by",
        "optimizer",
    ),
    "partition": ("name", "beta", "bias"),
    "audit": ("targets", "members_from"),
}
"""parts of a setting that a reader needs, and their fields"""


def audit_blocks(source: Source, n_records: int = 0) -> list[Block]:
    """Return the page of a results folder, with its ``n_records`` most exposed records.

    Raises:
        UserError: where no row has scores.
    """
    sections = [section for section in source.sections if subject(section) is not None]
    if not sections:
        raise UserError(
            "no row has scores, so there is nothing to say; `fedbench leaderboard RESULTS` says "
            "what is missing"
        )
    main = max(sections, key=leak)
    result, *beside = verdict(main)
    measured = [_leakage(main, source.trust), *_elsewhere(sections, main), *caveats([main])]
    parts: dict[str, list[Block]] = {
        "Result": [Note(result), Note(joined(beside, " ")), *origin_notes(sections)],
        "What was audited": [Bullets(tuple(_scope(main, len(sections))))],
        "Adversaries": [_adversaries(sections)],
        "Measurements": measured,
        "Differential privacy": _privacy(main),
        "Most exposed records": _exposed(main, n_records),
        "What would change the result": [Bullets(tuple(_limits(main)))],
        "Versions and digests": [Bullets(tuple(_origin(source)))],
    }
    blocks: list[Block] = [Heading(1, source.title), *provisional_mark(source)]
    for title, below in parts.items():
        if below:
            blocks += [Heading(2, Words(title)), *below]
    for section in sections:
        section.comparison.scores.forget()
    return blocks


# -- scope -----------------------------------------------------------------------------------------


def _scope(section: BoardSection, n_sections: int) -> Iterator[Text]:
    described = section.described
    source = str(described.get("source", f"simulated by fedbench, suite {section.suite}"))
    yield sentence("Setting: {}; source: {}.", section.where, source)
    for part in ("dataset", "model"):
        use = described.get(part, {})
        yield sentence(f"{part.capitalize()}: {{}}.", _facts(use, list(use)))
    for part, names in _FACTS.items():
        value = described.get(part)
        title = {"partition": "Division among clients"}.get(part, part.capitalize())
        text = _facts(value, names) if isinstance(value, dict) else str(value)
        if text:
            yield sentence(f"{title}: {{}}.", text)
    yield counts_note(section).text
    rounds = {row.round for loaded in section.records for row in loaded.record.history}
    text = f"Audited rounds: {series(rounds)}; trainings (seeds): {series(section.seeds)}"
    if n_sections > 1:
        text += f"; {n_sections - 1} more settings, coalitions or views below"
    yield Words(f"{text}.")


def _facts(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return ``clients 10, rounds 40``: fields that have a value, nested ones without names."""
    texts = []
    for name in names:
        value = values.get(name)
        if isinstance(value, dict):
            texts.append(_facts(value, list(islice(value, 4))))
        elif isinstance(value, list) and value:
            texts.append(f"{name} {' '.join(map(str, value))}")
        elif name == "name":
            texts.append(str(value))
        elif value not in (None, False, [], ""):
            texts.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(filter(None, texts))


# -- adversaries -----------------------------------------------------------------------------------


def _adversaries(sections: Sequence[BoardSection]) -> Table:
    """Return a line a threat model, with the attacks that were tried."""
    lines: list[tuple[Content, ...]] = []
    for view, sees in VIEWS.items():
        attacks = dict.fromkeys(a for s in sections if s.view == view for a in s.attacks)
        lines.append((sentence("{} view", view), Words(sees), *_tried(list(attacks))))
    records = chain.from_iterable(section.records for section in sections)
    inside = dict.fromkeys(filter(None, map(adversary_of, records)))
    active = Words("controls clients and sends what it crafts")
    lines.append((Words("active clients"), active, *_tried(list(inside))))
    calibrated = ["each attack, calibrated"] * any(s.shares_pool for s in sections)
    trains = Words("trains federations of the same recipe, with and without a record")
    lines.append((Words("attackers who train"), trains, *_tried(calibrated)))
    columns = map(words, ("adversary", "what it sees or does", "tried", "attacks"))
    return table_of("", "", columns, lines)


def _tried(attacks: Sequence[str]) -> tuple[Content, Content]:
    if not attacks:
        return Words("no", "strong"), ""
    return Words("yes"), named(attacks, MOST_ATTACKS)


# -- measurements ----------------------------------------------------------------------------------


def _leakage(section: BoardSection, trust: Trust) -> Table:
    """Return the rows by rank, each number with its interval."""
    rows = first_rows(section, MOST_ROWS)
    columns: list[Declared] = [NAMED]
    for key in _NUMBERS:
        column = column_for(key, section.utility)
        if any(_number(section, column, row) for row in rows):
            columns.append((column.heading, partial(_number, section, column)))
    if trust:
        columns.append((words("trust"), trust))
    notes = [*tf01_notes(section)]
    if more := len(section.rows) - len(rows):
        notes.insert(0, Words(f"{more} more rows are on the full board."))
    if any(row.floor for row in rows):
        text = "free-rider (members that upload nothing) and placebo are controls, not defenses."
        notes.insert(0, Words(text))
    caption = sentence(": {}", section.where)
    if not section.comparison.worst_cases.eligible:
        why = f"{no_attack(section)} beats chance"
        if section.comparison.worst_cases.untested:
            why = "No AUC has an error"
        text = f"{why}, so each row has the attack with the highest upper end of all."
        notes.insert(0, Words(text))
    return row_table("Leakage", caption, rows, columns, footnotes=tuple(notes))


def _number(section: BoardSection, column: RankingColumn, row: DefenseRow) -> Content:
    summary = section.summaries[row.label]
    interval = column.number(summary)
    attack = column.attack(summary)
    if interval is None and column.key == "worst":
        attack, interval = section.highest(row.label, "auc") or ("", None)
    if interval is None:
        return None
    return interval_value(interval, sentence(" {}", attack) if attack else ())


def _elsewhere(sections: Sequence[BoardSection], main: BoardSection) -> list[Block]:
    """Return the leak in the other settings, coalitions and views; nothing of one section."""
    lines: list[tuple[Content, ...]] = []
    beside = sorted((s for s in sections if s is not main), key=leak, reverse=True)
    for section in beside[:MOST_SECTIONS]:
        row = subject(section)
        assert row is not None
        cells = [_number(section, BY_KEY[key], row) for key in ("worst", "tf01")]
        lines.append((section.where, name_of(row), *cells))
    if not lines:
        return []
    columns = [words("setting, coalition, view"), words("row"), WORST, TF01]
    notes: tuple[Text, ...] = ()
    more = len(beside) - MOST_SECTIONS
    if more > 0:
        notes = (Words(f"{more} more are on the full board."),)
    return [table_of("Elsewhere", ": the undefended row", columns, lines, footnotes=notes)]


# -- differential privacy --------------------------------------------------------------------------


def _privacy(section: BoardSection) -> list[Block]:
    """Return bounds beside claims, or why there are none."""
    claims = ranking_columns(section).get("claims")
    columns = [claims] if claims else []
    rows = first_rows(section, MOST_ROWS)
    if section.calibrates:
        columns += epsilon_columns(section)
        caption = (
            ": one-sided 95 % bounds by guesses in one run (Steinke et al. 2023), of what right "
            "guesses alone could show, by their attack"
        )
        return [row_table("Claims and bounds", caption, rows, [NAMED, *columns])]
    text = f"No lower bound on epsilon was computed: it takes {FEWEST_FEDERATIONS} trainings on "
    text += f"one pool of data, each record a member by a fair coin ({DOCS}/auditing.md)."
    if claims is None:
        return [Note(Words(f"No row claims differential privacy. {text}"))]
    rows = [row for row in rows if claims[1](row)]
    return [row_table("Claims", ", which nothing here tested", rows, [NAMED, *columns]), Note(text)]


# -- records ---------------------------------------------------------------------------------------


def _counts(entry: AttackEntry, sign: int) -> dict[tuple[int, int], list[int]]:
    """Return (target, sample) of each member -> outside non-members below it, all of them, and
    trainings.
    """
    below: dict[tuple[int, int], list[int]] = {}
    for seed, targets in entry.targets.items():
        loaded = entry.ok(seed)
        if loaded is None:
            continue
        for target, c in loaded.candidates_of(targets).items():
            scores = sign * c.scores
            outside = np.sort(scores[c.kind == OFL])
            members = c.kind == MEMBER
            counts = np.searchsorted(outside, scores[members])
            for sample, count in zip(c.ids[members], counts, strict=True):
                total = below.setdefault((target, int(sample)), [0, 0, 0])
                total[:] = total[0] + int(count), total[1] + len(outside), total[2] + 1
    return {place: total for place, total in below.items() if total[1]}


def _exposed(section: BoardSection, n_records: int) -> list[Block]:
    """Return the members with scores above most outside non-members of their client, under
    the attack of the row's worst case; nothing where none is asked for.
    """
    if not n_records:
        return []
    row = subject(section)
    assert row is not None
    worst = section.comparison.worst_cases.of(row.label).worst
    attack, sign = next(iter(row.entries)), 1
    if worst is not None:
        attack, sign = worst.attack, worst.sign
    judged = _counts(row.entries[attack], sign)
    ends = {place: exact_interval(hits, n) for place, (hits, n, _) in judged.items()}
    groups = [group.name for group in section.groups]
    lines: list[tuple[Content, ...]] = []
    for place in sorted(judged, key=lambda place: (-ends[place][0], place))[:n_records]:
        hits, n, trainings = judged[place]
        target, sample = place
        share = Value(mean=hits / n, ends=ends[place])
        name = Target.of(target).words(groups)
        lines.append((name, str(sample), share, f"{n:,}", str(trainings)))
    columns = [
        *map(words, ("client or group", "record")),
        numbers("above non-members", unit="%", digits=1, scale=100),
        *map(numbers, ("non-members", "trainings")),
    ]
    text = ": {} of {} members, by {}; records by their positions in the data set. They are chosen "
    text += "as the highest, so some would stand here without a leak, too; intervals take the "
    text += "non-members of all trainings as independent, and leave out how far trainings differ"
    counts = str(len(lines)), f"{len(judged):,}", attack
    return [table_of("Records", sentence(text, *counts), columns, lines)]


# -- limits and origin -----------------------------------------------------------------------------


def _limits(section: BoardSection) -> Iterator[Text]:
    """Yield what would make the result another one, with the sizes that it would take."""
    row = subject(section)
    assert row is not None
    worst = section.summaries[row.label].worst
    highest = section.highest(row.label, "auc")
    if worst is None and highest is not None and not np.isnan(highest[1].high):
        yield Words(f"An AUC up to {highest[1].high:.3f} is not excluded.")
    if worst is not None:
        distance = worst.low - 0.5
        side = "below what would show a leak"
        if distance > 0:
            side = "above guessing"
        text = f"The lower end of the interval, {worst.low:.3f}, is {abs(distance):.3f} {side}"
        yield Words(f"{text}: {_more_trainings(worst, len(section.seeds))}.")
    if power := section.comparison.pairwise.smallest_difference:
        text = f"Differences between two rows below {power:.3f} of an AUC are missed with a chance "
        yield Words(f"{text}of 20 % or more.")
    yield Words(
        "Attacks bound leakage from below: an adversary that was not tried, or a stronger attack, "
        "can only raise it. Numbers hold for the data, clients and rounds above."
    )
    for attack in section.left_out:
        yield sentence("{} counts nowhere, since a row lacks scores of it.", attack)
    outcomes: Counter[str] = Counter()
    for row in section.rows:
        outcomes += row.outcomes
    counts = [f"{n} {outcome}" for outcome, n in outcomes.items() if outcome != "ok"]
    if counts:
        yield Words(f"Cells without scores: {', '.join(counts)}.")


def _more_trainings(interval: Interval, n: int) -> str:
    """Say what more than ``n`` trainings would do to an interval."""
    if not interval.between:
        return "how far trainings differ is in no interval here, and takes several of them"
    return f"with {4 * n} trainings in place of {n}, intervals would be about half as wide"


def _origin(source: Source) -> Iterator[Text]:
    records = source.newest[0]
    yield sentence(f"board `{board_id(records)}`, of {len(records)} records")
    yield packages(records)
    yield from provenance_lines(records)
    yield from source.marks.lines(records)[:1]
