"""What a board's JSON document may hold: one that comes as a file may be anybody's, so it is bounded, checked, and stays data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fedbench.core import UserError
from fedbench.core.store.json_file import parse_json
from fedbench.core.words.explain import one_line
from fedbench.leaderboard.site.cells import BINS
from fedbench.leaderboard.site.fields import Command, Digits, Index, Interval, Key, Number, Only, OrNone, Packed, Pair, Text

MAX_BYTES = 32 << 20
REMEDY = "make it again: `fedbench leaderboard RESULTS --html DIR` writes RESULTS/leaderboard/board.json"


class Part(BaseModel):
    """Of a document: what it does not know is refused."""

    model_config = ConfigDict(extra="forbid")


class Setting(Part):
    suite: Text
    name: Text
    described: list[Pair]


class Use(Part):
    label: Text
    name: Text
    package: Text
    digest: Key
    params: list[Pair]
    only: Only


class Runs(Part):
    key: list[Key]
    setting: list[Index]
    coalition: list[Text]
    members: list[list[int]]
    defense: list[Index]
    adversary: list[Text]
    seed: list[int]
    only: list[Index]
    machine: list[Index]
    started: list[Text]
    times: list[list[Number | None]]
    accuracy: list[Number | None]
    rounds: list[OrNone]
    history: list[tuple[list[Number | None], list[Number | None]]]
    facts: list[list[Index]]


class Cells(Part):
    key: list[Key]
    run: list[Index]
    attack: list[Index]
    outcome: list[Index]
    reason: list[Index]
    sample: list[Index]
    targets: list[OrNone]
    auc: list[Digits]
    error: list[Digits]
    tf01: list[list[Number | None]]
    range: list[tuple[Number, Number] | None]
    scores: list[Packed]
    cpu_s: list[Number | None]


class Section(Part):
    setting: Index
    coalition: Text
    view: Text
    seeds: list[int]
    units: int
    attacks: list[Index]
    eligible: list[Index]
    fpr_from: Index
    power: Number | None
    sentences: list[Text]
    rows: list[Index]


class Entry(Part):
    auc: Interval
    tf01: Interval
    turned: bool
    roc: Packed
    cells: list[OrNone]


class Row(Part):
    section: Index
    defense: Index
    label: Text
    packages: list[Text]
    rank: tuple[int, int] | None
    floor: bool
    undefended: bool
    complete: bool
    front: bool | None
    worst: Interval
    worst_attack: OrNone
    largest: Number | None
    largest_attack: OrNone
    mean: Interval
    tf01: Interval
    tf01_attack: OrNone
    delta: Interval
    accuracy: Interval
    contribution: Interval
    runtime: Interval
    outcomes: list[tuple[Index, int]]
    remarks: list[Text]
    claims: Text
    trust: Text
    entries: list[Entry]


class Beside(Part):
    quantity: Text
    defense: Text
    attack: Text
    group: Text
    paper: Number
    spread: Number | None
    ours: Interval
    difference: Number | None


class Published(Part):
    source: Text
    table: Text
    setting: Text
    coalition: Text
    run: bool
    differs: Text
    unlike: list[Text]
    pairs: list[Beside]


class Board(Part):
    """``SCHEMA.md`` says what each field is. Every position is that of something that is there."""

    fedbench_board: Literal[1]
    id: Text
    name: Text
    title: Text
    records: int
    left_out: int
    tuning: int
    notes: list[Text]
    provenance: list[Text]
    command: Command
    fpr: list[Number]
    settings: list[Setting]
    uses: list[Use]
    machines: list[list[Pair]]
    onlys: list[Only]
    reasons: list[Text]
    outcomes: list[Text]
    rounds: list[list[int]]
    targets: list[list[int]]
    samples: list[tuple[Literal["ofl", "mix"], int, int]]
    facts: list[Pair]
    runs: Runs
    cells: Cells
    sections: list[Section]
    rows: list[Row]
    published: list[Published]

    @model_validator(mode="after")
    def _whole(self) -> Board:
        runs, cells = _columns(self.runs), _columns(self.cells)
        _within("runs.setting", self.runs.setting, self.settings)
        _within("runs.defense", self.runs.defense, self.uses)
        _within("runs.only", self.runs.only, self.onlys)
        _within("runs.machine", self.runs.machine, self.machines)
        _within("runs.rounds", self.runs.rounds, self.rounds)
        _within("runs.facts", (fact for facts in self.runs.facts for fact in facts), self.facts)
        _within("cells.sample", self.cells.sample, self.samples)
        _within("cells.run", self.cells.run, range(runs))
        _within("cells.attack", self.cells.attack, self.uses)
        _within("cells.outcome", self.cells.outcome, self.outcomes)
        _within("cells.reason", self.cells.reason, self.reasons)
        _within("cells.targets", self.cells.targets, self.targets)
        _check_scores(self.cells, self.targets)
        for section in self.sections:
            _within("sections.setting", [section.setting], self.settings)
            _within("sections.attacks", section.attacks, self.uses)
            _within("sections.eligible", section.eligible, section.attacks)
            _within("sections.fpr_from", [section.fpr_from], self.fpr)
            _within("sections.rows", section.rows, self.rows)
        for row in self.rows:
            self._check_row(row, cells)
        return self

    def _check_row(self, row: Row, cells: int) -> None:
        _within("rows.section", [row.section], self.sections)
        section = self.sections[row.section]
        points = 3 * (len(self.fpr) - section.fpr_from)
        _within("rows.defense", [row.defense], self.uses)
        _within("rows.attacks", (row.worst_attack, row.largest_attack, row.tf01_attack), section.attacks)
        _within("rows.outcomes", (outcome for outcome, _ in row.outcomes), self.outcomes)
        if len(row.entries) != len(section.attacks):
            raise ValueError("rows.entries: one is needed for each of the section's attacks")
        for entry in row.entries:
            _within("rows.entries.cells", entry.cells, range(cells))
            if len(entry.cells) != len(section.seeds) or len(entry.roc) not in (0, 2 * points):
                raise ValueError("rows.entries: one cell is needed for each of the section's seeds, and one rate for each FPR")


def _columns(part: Part) -> int:
    """How many there are; ``ValueError`` for columns of several lengths."""
    lengths = {len(getattr(part, name)) for name in type(part).model_fields}
    if len(lengths) != 1:
        raise ValueError(f"{type(part).__name__.lower()}: its columns are of several lengths")
    return lengths.pop()


def _check_scores(cells: Cells, targets: Sequence[Sequence[int]]) -> None:
    for at, auc, error, tf01, scores in zip(cells.targets, cells.auc, cells.error, cells.tf01, cells.scores, strict=True):
        n = len(targets[at]) if at >= 0 else 0
        if (len(auc), len(error)) != (3 * n, 2 * n) or len(tf01) not in (0, n) or len(scores) not in (0, 4 * BINS):
            raise ValueError("cells: a number is needed for each of a cell's targets, and a count for each bin")


def _within(name: str, positions: Iterable[int], table: Sequence[Any]) -> None:
    if max(positions, default=-1) >= len(table):
        raise ValueError(f"{name}: names what is not there")


def validated(content: Any, name: str) -> Board:
    """The document. ``UserError``, led by ``name``, for anything else: the first mistake."""
    version = content.get("fedbench_board") if isinstance(content, dict) else None
    if type(version) is int and version != 1:
        raise UserError(f"{name}: a board of version {version}, this fedbench reads version 1; {REMEDY}")
    try:
        return Board.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        said = one_line(f"{where}: {first['msg'].removeprefix('Value error, ')}", 300)
        raise UserError(f"{name}: not a board that fedbench wrote ({said}); {REMEDY}") from None


def read_board(path: Path) -> Board:
    """A board from its file. Raises ``UserError``, with the reason and the remedy, for one that cannot be used."""
    return validated(parse_json(path, MAX_BYTES, REMEDY), str(path))
