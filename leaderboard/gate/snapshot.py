"""The cells of a results folder as the gate compares them: values by seed, and the identities that
make them comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedbench.core import UserError
from fedbench.core.run.resume import differences
from fedbench.core.store.reading import LoadedRecord
from fedbench.core.store.run_file import digest_of_arrays
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.gate.measures import ACCURACY, Values, accuracy_of, values_of
from fedbench.leaderboard.statistics.rows import adversary_of

Identity = dict[str, Any]
"""``run``, ``attack`` and ``signals`` of a record's identity, as JSON values; of a run alone
without attack and signals
"""
_MADE = (
    "fedbench",
    "python",
    "torch",
    "numpy",
    "scipy",
    "scikit_learn",
    "cpu_type",
    "device",
    "dtype",
    "threads",
    "deterministic",
)


class Key(NamedTuple):
    """A cell over all its seeds. ``attack`` and ``view`` are empty for the run itself, which has an
    accuracy and no scores; ``adversary``: the active attack inside of the training.
    """

    setting: str
    coalition: str
    defense: str
    attack: str
    view: str
    adversary: str = ""

    def __str__(self) -> str:
        inside = f" under {self.adversary}" if self.adversary else ""
        against = f" vs {self.attack} ({self.view})" if self.attack else ""
        return f"{self.setting}/{self.coalition} {self.defense}{inside}{against}"


@dataclass(frozen=True)
class Cell:
    """``identities`` and ``digests`` by seed; digests are of the candidates and their scores, or of
    a run's test answers.
    """

    key: Key
    identities: Mapping[int, Identity]
    digests: Mapping[int, str]
    values: Values


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """``made``: versions and machines; ``unscored``: why a cell has no scores, by seed (of a
    folder; a file holds none).
    """

    suite: str
    made: Mapping[str, Sequence[str]]
    cells: Mapping[Key, Cell]
    unscored: Mapping[Key, Mapping[int, str]] = field(default_factory=dict)

    @property
    def seeds(self) -> list[int]:
        """All of them."""
        return sorted({seed for cell in self.cells.values() for seed in cell.identities})


def snapshot_of(results: Path) -> Snapshot:
    """The cells of the folder's last plan. Raises ``UserError`` for records that cannot be used, or
    of several suites.
    """
    records = source_of(results).newest[0]
    suites = sorted({r.record.suite for r in records})
    if len(suites) > 1:
        raise UserError(
            f"{results}: holds records of the suites {', '.join(suites)}; a baseline is of one"
        )
    scored = _by_key((r for r in records if r.record.outcome == "ok"), _key)
    cells = {
        key: Cell(
            key,
            {s: _identity(r) for s, r in own.items()},
            {s: _digest(r) for s, r in own.items()},
            values_of(own),
        )
        for key, own in scored.items()
    }
    runs = _by_key(
        (r for own in scored.values() for r in own.values()),
        lambda r: _key(r)._replace(attack="", view=""),
    )
    for key, own in runs.items():
        identities = {seed: {"run": _identity(r)["run"]} for seed, r in own.items()}
        answers = {seed: _short({"test_correct": r.test_correct()}) for seed, r in own.items()}
        cells[key] = Cell(
            key,
            identities,
            answers,
            {ACCURACY: {seed: accuracy_of(r) for seed, r in sorted(own.items())}},
        )
    unscored = _by_key((r for r in records if r.record.outcome != "ok"), _key)
    return Snapshot(
        suite=suites[0],
        cells=dict(sorted(cells.items())),
        made={
            name: sorted({str(getattr(r.record.provenance, name)) for r in records})
            for name in _MADE
        },
        unscored={key: {seed: _why(r) for seed, r in own.items()} for key, own in unscored.items()},
    )


def failures(snapshot: Snapshot) -> list[str]:
    """Cells that ought to have scores: not those that an attack does not apply to, nor those that
    diverged.
    """
    return [
        f"{key} seed {seed} {why}"
        for key, seeds in snapshot.unscored.items()
        for seed, why in seeds.items()
        if why.startswith(("failed", "timeout"))
    ]


def _key(loaded: LoadedRecord) -> Key:
    r = loaded.record
    return Key(
        r.setting, r.coalition, r.defense.label, r.attack.label, r.view, adversary_of(loaded) or ""
    )


def _by_key(
    records: Iterable[LoadedRecord], key_of: Callable[[LoadedRecord], Key]
) -> dict[Key, dict[int, LoadedRecord]]:
    found: dict[Key, dict[int, LoadedRecord]] = {}
    for loaded in records:
        found.setdefault(key_of(loaded), {}).setdefault(loaded.record.seed, loaded)
    return found


def _identity(loaded: LoadedRecord) -> Identity:
    """What the scores of a cell depend on: not its analyses."""
    return loaded.record.identity.model_dump(exclude={"analyses"})


def _digest(loaded: LoadedRecord) -> str:
    """Unlike that of the record, not of its analyses and test answers, which are no part of the
    scores.
    """
    by_target = loaded.candidates_of([t.target for t in loaded.record.targets])
    return _short(
        {f"{target}/{name}": a for target, c in by_target.items() for name, a in vars(c).items()}
    )


def _short(arrays: Mapping[str, np.ndarray]) -> str:
    return digest_of_arrays(arrays)[:16]


def _why(loaded: LoadedRecord) -> str:
    return f"{loaded.record.outcome}: {loaded.record.reason or 'no reason given'}"


# -- what differs between two identities -----------------------------------------------------------

_COMPONENTS = ("dataset", "model", "defense", "attacker")
# of a component; its name and params are the protocol
_CODE = dict.fromkeys(("digest", "target", "distribution"), "")
_NO_ATTACK = {"name": "", "params": {}, **_CODE}


def changes(old: Identity, new: Identity, same_seed: bool) -> tuple[list[str], list[str]]:
    """(protocol and data, code) that differ, in words. ``same_seed``: False leaves out what a seed
    decides.
    """
    before, now = (_comparable(identity, same_seed) for identity in (old, new))
    if before == now:
        return [], []
    protocol = differences(_without_code(before), _without_code(now))
    return protocol, [what for what in differences(before, now) if what not in protocol]


def _comparable(identity: Identity, same_seed: bool) -> Identity:
    """Without the machine and, where asked for, the seed."""
    run = {
        **identity["run"],
        "device": "",
        "provenance": {"dtype": identity["run"]["provenance"]["dtype"]},
    }
    if not same_seed:
        run |= {"seed": 0, "digests": {"engine": run["digests"]["engine"]}}
    return {"attack": _NO_ATTACK, "signals": {}, **identity, "run": run, "analyses": {}}


def _without_code(identity: Identity) -> Identity:
    run = identity["run"]
    data = {name: digest for name, digest in run["digests"].items() if name != "engine"}
    run = {
        **run,
        **{kind: _bare(run[kind]) for kind in _COMPONENTS},
        "contract": 0,
        "digests": data,
    }
    signals = {name: _bare(use) for name, use in identity["signals"].items()}
    return {**identity, "run": run, "attack": _bare(identity["attack"]), "signals": signals}


def _bare(use: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if use is None:
        return None
    then = {"then": [_bare(part) for part in use["then"]]} if use.get("then") else {}
    return {**use, **_CODE, **then}
