"""Types of a board's JSON document. One that comes as a file may have any origin, so its texts and
commands are checked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)

from fedbench.core import UserError
from fedbench.core.store.integrity import digest_of
from fedbench.core.store.json_file import identified, parse_json, require_digest
from fedbench.core.words import one_line

VERSION = 3
MAX_BYTES = 32 << 20
REMEDY = (
    "make it again: `fedbench leaderboard RESULTS --html DIR` writes RESULTS/leaderboard/board.json"
)
_MOST = 200_000  # of anything
_LONGEST = 2_000
# people paste commands into a shell: words as shlex.quote writes them, without characters that a
# terminal acts on or hides
_QUOTED = r"""'[^'\p{C}\p{Zl}\p{Zp}]*'|"'\""""
_WORD = rf"(?:[A-Za-z0-9_@%+=:,./]|{_QUOTED})(?:[A-Za-z0-9_@%+=:,./-]|{_QUOTED})*"


Text = Annotated[
    str,
    StringConstraints(max_length=4 * _LONGEST),
    AfterValidator(lambda value: one_line(value, _LONGEST)),
]
Packed = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]*$", max_length=3_000)]
Number = int | FiniteFloat
Interval = tuple[Number, Number | None, Number | None] | None
Index = Annotated[int, Field(ge=0, lt=_MOST)]
OrNone = Annotated[int, Field(ge=-1, lt=_MOST)]
Pair = tuple[Text, Text]
# without the pattern: validators that are written in Python have no \p
_SHELL_WORDS = WithJsonSchema({"type": "string", "maxLength": 2_000})
Command = Annotated[
    str,
    StringConstraints(max_length=2_000, pattern=rf"^(fedbench run {_WORD}(?: --set {_WORD})*)?$"),
    _SHELL_WORDS,
]
Only = Annotated[str, StringConstraints(max_length=2_000, pattern=rf"^({_WORD})?$"), _SHELL_WORDS]


class Part(BaseModel):
    """A part of the document; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Setting(Part):
    suite: Text
    name: Text


class Use(Part):
    label: Text
    name: Text
    package: Text
    digest: Text
    params: list[Pair]
    only: Only


class Runs(Part):
    key: list[Text]
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
    key: list[Text]
    run: list[Index]
    attack: list[Index]
    outcome: list[Index]
    reason: list[Index]
    sample: list[Index]
    targets: list[OrNone]
    auc: list[Packed]
    error: list[Packed]
    tf01: list[list[Number | None]]
    range: list[tuple[Number, Number] | None]
    scores: list[Packed]
    cpu_s: list[Number | None]


class DocumentSection(Part):
    setting: Index
    coalition: Text
    view: Text
    seeds: list[int]
    attacks: list[Index]
    fpr_from: Index
    sentence: Text
    rows: list[Index]


class RankingColumn(Part):
    key: Text
    title: Text
    hover: Text
    unit: Text
    direction: Literal["lower", "higher"]
    digits: int = Field(ge=0, le=12)
    scale: Number
    signed: bool


class DocumentEntry(Part):
    auc: Interval
    tf01: Interval
    turned: bool
    roc: Packed
    cells: list[OrNone]


class DocumentRow(Part):
    section: Index
    defense: Index
    label: Text
    packages: list[Text]
    rank: tuple[int, int] | None
    better: list[Index]
    floor: bool
    undefended: bool
    complete: bool
    within: bool
    winner: bool
    front: bool | None
    numbers: dict[Text, Interval]
    worst_attack: OrNone
    tf01_attack: OrNone
    outcomes: list[tuple[Index, int]]
    remarks: list[Text]
    claims: Text
    trust: Text
    entries: list[DocumentEntry]


class Table(Part):
    title: Text
    caption: Text
    columns: list[Text]
    rows: list[list[Text]]
    best: list[tuple[Index, Index]]
    footnotes: list[Text]


class Fold(Part):
    place: list[Text]
    summary: Text
    blocks: list[Text | list[Text] | Table]


class Board(Part):
    """The fields are described in ``SCHEMA.md``."""

    fedbench_board: Literal[3]
    id: Text
    name: Text
    title: Text
    records: int
    left_out: int
    tuning: int
    notes: list[Text]
    command: Command
    columns: list[RankingColumn]
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
    sections: list[DocumentSection]
    rows: list[DocumentRow]
    folds: list[Fold]


class BoardFile(Board):
    """A document, as a file."""

    digest: str


def file_schema() -> dict[str, Any]:
    """Return the JSON schema of a board's file."""
    return identified("board", VERSION, BoardFile.model_json_schema())


def validated(content: Any, name: str) -> Board:
    """Return the document. Raises UserError, led by ``name``, with the first mistake."""
    version = content.get("fedbench_board") if isinstance(content, dict) else None
    if type(version) is int and version != VERSION:
        raise UserError(
            f"{name}: a board of version {version}, this fedbench reads version {VERSION}; {REMEDY}"
        )
    try:
        return Board.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise not_a_board(name, f"{place}: {first['msg']}") from None


def not_a_board(name: str, why: str) -> UserError:
    """Return the refusal of a document."""
    return UserError(f"{name}: not a board that fedbench wrote ({one_line(why, 300)}); {REMEDY}")


def read_board(path: Path) -> Board:
    """Return a board from its file. Raises UserError, with the reason and the remedy, for one that
    cannot be used.
    """
    content = parse_json(path, MAX_BYTES, REMEDY)
    fields = content
    if isinstance(content, dict):
        fields = {name: value for name, value in content.items() if name != "digest"}
    board = validated(fields, str(path))
    require_digest(content, path, REMEDY)
    return board


def document_file(board: Board) -> bytes:
    """Return the content of a document's file, with the digest that :func:`read_board` checks."""
    content = board.model_copy(update={"name": ""}).model_dump(mode="json")
    return _line(content | {"digest": digest_of(content)}).encode() + b"\n"


def as_json(board: Board, without: set[str]) -> str:
    """Return one line, only ASCII, always the same; ``without`` these fields."""
    return _line(board.model_dump(mode="json", exclude=without))


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)
