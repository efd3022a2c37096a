"""A recorded federation as files (docs/recorded.md): its description, its rounds, its replies."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from fedbench.core.contract.errors import UserError
from fedbench.core.spec import bounds, messages
from fedbench.core.spec.base import FUNCTION_PATTERN, SpecModel, mistake
from fedbench.core.spec.document import read
from fedbench.core.store.files import CLIENT_NAMES, names_client
from fedbench.core.store.json_file import parse_json
from fedbench.core.words import DOCS

DESCRIPTION = "federation.yaml"
ROUND = "round.json"
AGGREGATE = "aggregate"
"""the client that stands for all where the server sees their aggregate alone"""
_MOST_BYTES = 64 << 20  # of round.json
_MOST_WEIGHT = 1e30  # the weights of a round are added in float32
_EXAMPLE = f"{DOCS}/recorded.md has the format and an example"
_RECORD_AGAIN = "record the round again, or leave it out of `rounds`"
_Round = Annotated[int, Field(ge=0, le=bounds.ROUNDS)]


class Description(SpecModel):
    """Content of ``federation.yaml``."""

    format: Literal[1] = Field(description="version of the format")
    task: Literal["classification"] = Field(description="the clients' task")
    model: str = Field(pattern=FUNCTION_PATTERN, max_length=200, description="module:function")
    classes: int = Field(ge=2, le=1_000_000, description="number of classes")
    clients: list[str] = Field(
        min_length=1, max_length=bounds.CLIENTS, description="names, in the order of the board"
    )
    rounds: (
        Annotated[int, Field(ge=1, le=bounds.ROUNDS)]
        | Annotated[list[_Round], Field(min_length=1, max_length=bounds.ROUNDS)]
    ) = Field(description="how many there are, or the number of each")
    uploads: Literal["model", "delta"] = Field(description="what a reply holds")
    server_sees: Literal["uploads", "aggregate"] = Field(description="what the server learns")
    holdout: Literal["common", "sites", "both"] = Field(description="which hold-outs there are")
    weights: Literal["recorded", "samples", "equal", "other"] = Field(
        "recorded", description="how the server weighs replies"
    )
    framework: str = Field("", max_length=100, description="what recorded it")

    @model_validator(mode="after")
    def _names_are_safe(self) -> Description:
        for name in self.clients:
            if not names_client(name):
                raise mistake(
                    f"the client's name {name!r:.80} cannot name a file: use {CLIENT_NAMES}"
                )
        name, n = Counter(name.lower() for name in self.clients).most_common(1)[0]
        if n > 1:
            raise mistake(f"two clients are named '{name}': give each a name of its own")
        if isinstance(self.rounds, list) and sorted({*self.rounds}) != self.rounds:
            raise mistake("rounds are numbers that ascend: sort them, and name each once")
        return self


@dataclass(frozen=True)
class Reply:
    """An upload of a round."""

    client: int
    weight: float | None
    is_delta: bool
    path: Path


@dataclass(frozen=True)
class Recording:
    """A folder with a recorded federation."""

    folder: Path
    description: Description

    @property
    def clients(self) -> list[str]:
        """Names of those that are judged."""
        return [AGGREGATE] if self.is_aggregate else self.description.clients

    @property
    def is_aggregate(self) -> bool:
        """Whether the server sees no client's upload."""
        return self.description.server_sees == AGGREGATE

    @cached_property
    def numbers(self) -> list[int]:
        """Numbers of the rounds."""
        rounds = self.description.rounds
        if isinstance(rounds, list):
            return rounds
        first = 0 if (self.folder / "rounds" / "000").is_dir() else 1
        return list(range(first, first + rounds))

    @property
    def base(self) -> Path:
        """File of the tensors that rounds leave out, where there is one."""
        return self.folder / "base.safetensors"

    def round_folder(self, number: int) -> Path:
        """Return the folder of a round."""
        return self.folder / "rounds" / f"{number:03d}"

    def received(self, number: int) -> Path:
        """Return the model that a round's clients received."""
        return self.round_folder(number) / "received.safetensors"

    def model_after(self, number: int) -> Path | None:
        """Return the model after a round; None where it was not recorded."""
        if number + 1 in self.numbers:
            return self.received(number + 1)
        final = self.folder / "final.safetensors"
        is_last = number == self.numbers[-1] and not self.round_folder(number + 1).exists()
        return final if is_last and final.is_file() else None

    def replies(self, number: int) -> list[Reply]:
        """Return the uploads of a round, by client. Raises ``UserError`` for a round that cannot be
        used.
        """
        path = self.round_folder(number) / ROUND
        rows = self._rows(path, number)
        if self.is_aggregate:
            return []
        replies = [self._reply(path, row) for row in rows if "failed" not in row]
        for client, n in Counter(reply.client for reply in replies).items():
            if n > 1:
                raise UserError(
                    f"{path}: {n} replies of client '{self.clients[client]}': let each client have "
                    "a name of its own"
                )
        without = [reply.client for reply in replies if reply.weight is None]
        if 0 < len(without) < len(replies):
            raise UserError(
                f"{path}: client '{self.clients[without[0]]}' has no weight, and others have one: "
                "give every reply a weight, or none"
            )
        return sorted(replies, key=lambda reply: reply.client)

    def _rows(self, path: Path, number: int) -> list[dict[str, Any]]:
        """Return the replies in ``round.json``."""
        if not path.parent.is_dir():
            raise UserError(
                f"{path.parent}: missing, and `rounds` in {DESCRIPTION} is "
                f"{self.description.rounds}: record the round, or list there the rounds that exist"
            )
        if not path.is_file():
            raise UserError(f"{path}: missing, so that the round was cut off; {_RECORD_AGAIN}")
        content = parse_json(path, _MOST_BYTES, _RECORD_AGAIN)
        rows = content.get("replies") if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(f"{path}: expected an object with a list of `replies`; {_RECORD_AGAIN}")
        if content.get("round") != number:
            stated = content.get("round")
            raise UserError(f"{path}: it is of round {stated!r:.20}; {_RECORD_AGAIN}")
        return rows

    def _reply(self, path: Path, row: dict[str, Any]) -> Reply:
        name = row.get("client")
        weight = row.get("weight")
        kind = row.get("kind", self.description.uploads)
        if name not in self.clients:
            raise UserError(
                f"{path}: client {name!r:.80} is none of `clients` in {DESCRIPTION}: add it there "
                "with its data, or mark the reply as failed"
            )
        if kind not in ("model", "delta"):
            raise UserError(f"{path}: kind {kind!r:.20} of client '{name}': expected model, delta")
        if weight is not None and not _is_weight(weight):
            raise UserError(f"{path}: weight {weight!r:.20} of client '{name}': expected a number")
        file = path.with_name(f"{name}.safetensors")
        if not file.is_file():
            raise UserError(
                f"{file}: missing, though round.json names it{self._strays(path.parent)}; "
                f"{_RECORD_AGAIN}"
            )
        return Reply(self.clients.index(name), weight, kind == "delta", file)

    def _strays(self, folder: Path) -> str:
        """Name the first file of a round that is of no client."""
        stems = {path.stem for path in folder.glob("*.safetensors")}
        strays = sorted(stems - {"received", *self.clients})
        if not strays:
            return ""
        return f", and {strays[0]}.safetensors is of no client in {DESCRIPTION} (renamed?)"

    def data(self, name: str) -> Path:
        """Return the samples of a client."""
        return self.folder / "data" / f"{name}.npz"

    def holdouts(self) -> Iterator[tuple[int, Path]]:
        """Yield (client, or -1 for no site; its file) of each hold-out. Raises ``UserError``."""
        wanted = self.description.holdout
        for k, name in enumerate(self.description.clients if wanted != "common" else ()):
            path = self.folder / "holdout" / f"{name}.npz"
            if path.is_file():
                yield k, path
            elif wanted == "sites":
                raise UserError(
                    f"{path}: missing; `holdout: sites` wants one of every client, `holdout: both` "
                    "takes holdout.npz for those without"
                )
        if wanted != "sites":
            yield -1, self.folder / "holdout.npz"

    def files(self) -> Iterator[tuple[Path, bool]]:
        """Yield every file with a model of a round, and whether it holds a change of it. Raises
        ``UserError`` for rounds that cannot be used.
        """
        for number in self.numbers:
            replies = self.replies(number)
            received = self.received(number)
            if not received.is_file():
                raise UserError(f"{received}: missing; {_RECORD_AGAIN}")
            yield received, False
            for reply in replies:
                yield reply.path, reply.is_delta
        final = self.folder / "final.safetensors"
        if final.is_file():
            yield final, False

    def digest(self) -> str:
        """Return the hex sha256 of the description and of all files but samples."""
        files = [path for path, _ in self.files()]
        files += [self.round_folder(number) / ROUND for number in self.numbers]
        if self.base.is_file():
            files.append(self.base)
        h = hashlib.sha256(self.description.model_dump_json().encode())
        for path in files:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            h.update(f"{path.relative_to(self.folder)}:{content};".encode())
        return h.hexdigest()


def _is_weight(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= _MOST_WEIGHT


def open_recording(folder: Path) -> Recording:
    """Return a recorded federation. Raises ``UserError`` with file, line and reason."""
    path = folder / DESCRIPTION
    if not path.is_file():
        raise UserError(f"{path}: missing, so that this is no recorded federation; {_EXAMPLE}")
    document = read(path, f"a federation; {_EXAMPLE}")
    try:
        return Recording(folder, Description.model_validate(document.data))
    except ValidationError as error:
        mistakes = messages.problems(error, Description, document.data)
        raise document.error(mistakes) from error
