"""`fedbench audit`: judge federations that were trained elsewhere."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.options import debug_and_quiet, rerun_option
from fedbench.core.cli.output import say
from fedbench.core.cli.run import run_suite
from fedbench.core.contract.errors import UserError
from fedbench.core.words import DOCS

if TYPE_CHECKING:
    from fedbench.core.recorded.folder import Recording

ATTACKS = (
    "loss-series",
    "avg-cosine",
    "fedmia-i",
    "fedmia-ii",
    "fta-c",
    "fta-l",
    "blackbox-loss",
    "grad-cosine",
)
"""asked by default: the passive attacks that need neither training data nor shadow models"""
_OF_COALITION = ("loss-series", "avg-cosine", "fta-c", "fta-l")
_OF_CLIENT = "fta"
_MOST = 10_000  # non-members of a target
_EPILOG = f"""\b
Examples:
  fedbench audit my-federation --dry-run          check names, shapes and types; compute nothing
  fedbench audit my-federation                    board in results/my-federation/leaderboard
  fedbench audit run-1 run-2 run-3 --results results/ours       repeated recordings, as seeds
  fedbench audit my-federation --attacks loss-series,fedmia-ii --every 5
  fedbench audit my-federation --coalition hospital-a,hospital-b          their mean, too

\b
The folder (every field: {DOCS}/recorded.md):
  federation.yaml                       clients, rounds, model as module:function, ...
  data/CLIENT.npz, holdout.npz          x, y: what each client trained on, and what none did
  rounds/001/received.safetensors       the model that was sent
  rounds/001/CLIENT.safetensors         what came back
  rounds/001/round.json                 who replied; written last
The model's function is your own code, from an installed package or the current folder; nothing in
the recording is run.

\b
The same command again computes what is missing. Exit status: 0 fine, 1 some cell failed, 2 your
mistake, 130 interrupted."""


@click.command(epilog=_EPILOG)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--attacks",
    default=",".join(ATTACKS),
    show_default=True,
    metavar="NAME,...",
    help="Attacks that judge it, with their default parameters (`fedbench list attacks`).",
)
@click.option(
    "--coalition",
    metavar="CLIENT,...",
    help="Also judge the weighted mean of these clients' uploads, and what a client sees of the "
    "global models; the board then counts the samples of these clients alone.",
)
@click.option(
    "--every",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Judge every so many rounds, and the last one.",
)
@click.option(
    "--results", type=click.Path(path_type=Path), help="Results folder.  [default: results/FOLDER]"
)
@click.option("--workers", type=click.IntRange(1), help="Recordings side by side.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@rerun_option
@click.option(
    "--dry-run", is_flag=True, help="Check the files and print the plan; compute nothing."
)
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw figures.")
@debug_and_quiet
def command(folders: tuple[Path, ...], attacks: str, coalition: str | None, **options: Any) -> None:
    """Judge a recorded federation: which client's training samples do its models give away?

    Each FOLDER is one recording; several are repeated recordings of one federation, the seeds of a
    board. The records name the source `recorded` and are `claimed`: what was recorded is for its
    owner to answer for.
    """
    clients = coalition.split(",") if coalition else []
    if not audit_folders(folders, attacks.split(","), clients, **options)[1]:
        sys.exit(1)


def audit_folders(
    folders: Sequence[Path],
    attacks: Sequence[str] = ATTACKS,
    coalition: Sequence[str] = (),
    *,
    every: int = 1,
    results: Path | None = None,
    **options: Any,
) -> tuple[Path, bool]:
    """Judge recordings and write the board. Returns the results folder, and whether no cell failed.

    Args:
        options: those of `fedbench run` on workers, device, rerun, dry run and plots.

    Raises:
        UserError: for files that cannot be used, and for a mistake in an argument.
    """
    from fedbench.core.recorded.folder import open_recording

    recordings = [open_recording(folder) for folder in folders]
    lone: set[int] = set()
    for recording in recordings:
        lone.update(_check(recording, recordings[0]))
    name = _name_of(folders[0])
    text = suite_text(name, recordings, attacks, coalition, every, lone)
    with tempfile.TemporaryDirectory(prefix="fedbench-") as folder:  # results keep a copy
        suite = Path(folder) / f"{name}.yaml"
        suite.write_text(text)
        try:
            return run_suite(str(suite), results=results, **options)
        except UserError as error:  # its lines are of a file that is gone
            place = re.compile(rf"{re.escape(str(suite))}(:\d+)*: ")
            raise UserError(*(place.sub("", line) for line in error.messages)) from error


def _check(recording: Recording, first: Recording) -> list[int]:
    """Return the clients with too few samples.

    Raises:
        UserError: rounds cannot be judged; before anything is computed.
    """
    from fedbench.core.process.ask import ask

    descriptions = (recording.description, first.description)
    for field in ("model", "classes", "clients", "rounds", "server_sees"):
        values = [getattr(description, field) for description in descriptions]
        if values[0] != values[1]:
            raise UserError(
                f"{recording.folder}: its {field} is not that of {first.folder}: recordings of one "
                "audit repeat one federation; audit them one by one"
            )

    def lone() -> list[int]:
        from fedbench.core.recorded.components import lone_clients, misfits_of

        if lines := misfits_of(recording):
            raise UserError(*lines)
        return lone_clients(recording)

    clients: list[int] = ask(lone)
    rounds = recording.numbers
    replies = sum(len(recording.replies(number)) for number in rounds)
    say(
        f"{recording.folder}: {len(recording.clients)} clients, rounds {rounds[0]} to "
        f"{rounds[-1]}, {replies} uploads; names and shapes fit {recording.description.model}"
    )
    return clients


def _name_of(folder: Path) -> str:
    """Return a name as suites take it."""
    words = re.findall(r"[a-z0-9]+", folder.absolute().name.lower())
    return "-".join(words)[:80].strip("-") or "recorded"


def suite_text(
    name: str,
    recordings: Sequence[Recording],
    attacks: Sequence[str],
    coalition: Sequence[str],
    every: int,
    lone: Collection[int],
) -> str:
    """Return the suite that judges recordings. Raises ``UserError`` for an unknown client."""
    first = recordings[0]
    uses: list[Any] = list(attacks)
    coalitions: list[Any] = ["none"]
    ids = [*range(len(first.clients))]
    if coalition:
        ids = [_client(first, client) for client in coalition]
        coalitions.append({"name": "coalition", "clients": sorted(ids)})
        uses += [_seen_by(attack, "coalition") for attack in _OF_COALITION]
        uses.append(_OF_CLIENT)
    folders = [str(recording.folder) for recording in recordings]
    sizes = {"clients": len(first.clients), "rounds": len(first.numbers)}
    audit: dict[str, Any] = {"every": every, "nonmembers": _MOST, "outside": _MOST}
    judged = _judged(recordings, ids, every, lone)
    if coalition or len(judged) < len(ids):
        audit["targets"] = judged
    setting = {
        "name": name,
        "dataset": {"name": "recorded", "params": {"folders": folders}},
        "model": {"name": "recorded", "params": _model(first)},
        "partition": "given",
        "federation": {**sizes, "batch_size": 1, "optimizer": {"lr": 1.0}},
        "audit": audit,
    }
    suite = {
        "schema": 1,
        "name": name,
        "title": f"Recorded federation {first.folder.name}",
        "seeds": list(range(len(recordings))),
        "settings": [setting],
        "coalitions": coalitions,
        "defenses": ["none"],
        "floors": [],
        "attacks": uses,
    }
    lines = [f"{field}: {json.dumps(value)}" for field, value in suite.items()]
    note = "# made by `fedbench audit`; batch_size and optimizer are not used, nothing is trained"
    return "\n".join([note, *lines, ""])


def _model(recording: Recording) -> dict[str, str]:
    """Return the parameters of the model of a recording."""
    from fedbench.core.recorded.components import code_digest

    function = recording.description.model
    params = {"function": function, "code": code_digest(function)}
    if recording.base.is_file():
        params["base"] = str(recording.base)
    return params


def _judged(
    recordings: Sequence[Recording],
    clients: Sequence[int],
    every: int,
    lone: Collection[int],
) -> list[int]:
    """Return those of the clients that sent something in an audited round of each recording and
    are not ``lone``, and name the others. Raises ``UserError`` where there are none.
    """
    first = recordings[0]
    if first.is_aggregate:
        return [*clients]
    of_coalition = "" if len(clients) == len(first.clients) else "of the coalition "
    judged = set(clients)
    for recording in recordings:
        audited = [*recording.numbers[every - 1 :: every], recording.numbers[-1]]
        judged &= {reply.client for number in audited for reply in recording.replies(number)}
    if not judged:
        raise UserError(
            f"{first.folder}: no client {of_coalition}sent anything in an audited round of each "
            "recording: record their replies"
        )
    if judged <= set(lone):
        raise UserError(
            f"{first.folder}: every client {of_coalition}that sent something has a single sample "
            "or hold-out sample, and so an AUC without an error: give `data` and `holdout` more"
        )
    _name_left_out(first, set(clients) - judged, "they sent nothing in an audited round")
    reason = "an AUC of a single sample or hold-out sample has no error"
    _name_left_out(first, judged & set(lone), reason)
    return sorted(judged - set(lone))


def _name_left_out(recording: Recording, clients: Collection[int], reason: str) -> None:
    names = [recording.clients[client] for client in sorted(clients)]
    if names:
        say(
            f"not judged, since {reason}: {len(names)} of {len(recording.clients)} clients "
            f"({', '.join(names)[:200]})"
        )


def _seen_by(attack: str, view: str) -> dict[str, Any]:
    return {"name": attack, "label": f"{attack}-{view}", "params": {"view": view}}


def _client(recording: Recording, name: str) -> int:
    if name not in recording.clients:
        raise UserError(
            f"--coalition {name}: no such client; there are {', '.join(recording.clients)[:200]}"
        )
    return recording.clients.index(name)
