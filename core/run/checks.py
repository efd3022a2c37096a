"""Is what a plugin made fit to be used? Asked before anything is trained."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from fedbench.core.contract.analysis import PLACES, Analysis
from fedbench.core.contract.attack import LEVELS, ActiveAttack, Attack, View
from fedbench.core.contract.components import Data
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import UserError
from fedbench.core.process.ask import ask, ask_apart, is_own, long_plugin_limits, plugin_limits
from fedbench.core.process.channel import at_work, pass_on_interrupt
from fedbench.core.registry.hooks_of import unknown_methods
from fedbench.core.registry.kinds import kind_of
from fedbench.core.registry.use import ComponentUse
from fedbench.core.spec import bounds
from fedbench.core.spec.resolve import Resolved
from fedbench.core.spec.setting import Setting
from fedbench.core.toolkit.arrays import check_data
from fedbench.core.words import explain


def declaration_mistake(made: Any) -> str:
    """What is wrong with the facts that a defense, an attack or an analysis states about itself, or
    nothing.
    """
    if isinstance(made, Defense) and not (type(made.n_models) is int and made.n_models >= 0):
        return f"n_models is {made.n_models!r}, expected an integer >= 1, or 0 for one a client"
    if isinstance(made, Defense) and not (
        type(made.root_samples) is int and made.root_samples >= 0
    ):
        return f"root_samples is {made.root_samples!r}, expected an integer >= 0"
    if isinstance(made, Attack | Analysis) and not _all_text(made.needs):
        return f"needs is {made.needs!r}, expected a frozenset of names of signals"
    if isinstance(made, Attack | Analysis) and made.view not in get_args(View):
        return f"view is {made.view!r}, expected one of {', '.join(get_args(View))}"
    if isinstance(made, Analysis) and not (
        _all_text(made.also) and {*made.also} <= {*get_args(View)}
    ):
        return f"also is {made.also!r}, expected a frozenset of {', '.join(get_args(View))}"
    if isinstance(made, Analysis) and made.place not in PLACES:
        return f"place is {made.place!r}, expected one of {', '.join(PLACES)}"
    if isinstance(made, Defense) and not (
        type(made.least_members) is int and made.least_members >= 1
    ):
        return f"least_members is {made.least_members!r}, expected an integer >= 1"
    if isinstance(made, Analysis) and type(made.needs_tuning_seeds) is not bool:
        return f"needs_tuning_seeds is {made.needs_tuning_seeds!r}, expected True or False"
    if isinstance(made, Attack):
        if not (type(made.colluders) is int and made.colluders >= 0):
            return f"colluders is {made.colluders!r}, expected an integer >= 0"
        if type(made.knows_half) is not bool:
            return f"knows_half is {made.knows_half!r}, expected True or False"
        if made.knows_half and made.colluders:
            return (
                f"knows_half with colluders = {made.colluders}: an attack learns from one of the "
                "two; expected colluders = 0"
            )
        if made.knows_half and made.threshold is not None:
            return (
                f"knows_half with threshold = {made.threshold!r:.60}: its scores are ranks within "
                "each half, where a threshold "
                "means nothing; expected None"
            )
        if made.threshold is not None and not (
            isinstance(made.threshold, int | float) and math.isfinite(made.threshold)
        ):
            return f"threshold is {made.threshold!r}, expected a finite number or None"
    if isinstance(made, ActiveAttack) and made.knowledge not in LEVELS:
        return f"knowledge is {made.knowledge!r}, expected one of {', '.join(LEVELS)}"
    return ""


def _all_text(names: Any) -> bool:
    return isinstance(names, frozenset | set | tuple | list) and all(
        isinstance(n, str) for n in names
    )


def require_data(data: Any, name: str) -> Data:
    """What a dataset loaded, if it can be trained on; ``UserError`` with what is wrong with it
    otherwise.
    """
    if not isinstance(data, Data):
        raise UserError(
            f"dataset '{name}': load returned {type(data).__name__}, expected fedbench.core.Data"
        )
    if type(data.n_classes) is not int or data.n_classes < 2:
        raise UserError(
            f"dataset '{name}': n_classes is {data.n_classes!r}, expected an integer >= 2"
        )
    for split in ("train", "test", "holdout"):
        x, y = getattr(data, f"{split}_x"), getattr(data, f"{split}_y")
        if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)) or x.dtype.hasobject:
            raise UserError(
                f"dataset '{name}': {split}_x and {split}_y must be numpy arrays of numbers"
            )
        if y.dtype != np.int64 or y.ndim != 1:
            raise UserError(
                f"dataset '{name}': {split}_y is {y.dtype} {list(y.shape)}, expected int64 [n]"
            )
        if x.dtype.kind not in "biu" and x.dtype != np.float32:
            raise UserError(
                f"dataset '{name}': {split}_x is {x.dtype}, expected float32, which models train "
                "in, or integers"
            )
        if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
            raise UserError(f"dataset '{name}': {split}_x holds values that are not finite")
    return check_data(data, name)


def repeated_share(data: Data, name: str) -> float:
    """The share of the hold-out that repeats a training sample and its label; ``UserError`` above
    one half.

    Such a candidate counts as a non-member although it was trained on. A few occur among small
    binary records; many are a mistake in the splits.
    """
    n, of = trained_on(data, data.holdout_x, data.holdout_y), len(data.holdout_y)
    if 2 * n > of:
        raise UserError(
            f"dataset '{name}': {n:,} of {of:,} hold-out samples are training samples too (same "
            "values, same label): they would "
            "be members that count as non-members; make the splits disjoint"
        )
    return n / of


def trained_on(data: Data, x: np.ndarray, y: np.ndarray) -> int:
    """How many of the samples ``x`` with labels ``y`` are training samples too."""
    trained = set(_rows(data.train_x, data.train_y))
    return sum(row in trained for row in _rows(x, y))


def _rows(x: np.ndarray, y: np.ndarray) -> Iterator[bytes]:
    """A hash of each sample with its label; 16 bytes, so that no two samples share one by
    chance.
    """
    flat = np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8)
    for row, label in zip(flat, y.tolist(), strict=True):
        yield hashlib.blake2b(
            row.data, digest_size=16, key=label.to_bytes(8, "little", signed=True)
        ).digest()


def require_room(targets: int, setting: Setting, n_train: int, n_holdout: int) -> None:
    """Raise ``UserError`` for audit lists that no machine can draw, told from their numbers
    alone.
    """
    clients, audit = setting.federation.clients, setting.audit
    if targets * clients > bounds.DRAWS:
        raise UserError(
            f"{targets:,} targets of {clients:,} clients: each is asked about against all others, "
            "which makes more than "
            f"{bounds.DRAWS:,} draws; name fewer clients in audit.targets"
        )
    asked = targets * min(audit.nonmembers + (audit.outside or 0), n_train + n_holdout) + n_train
    if asked > bounds.CANDIDATES:
        raise UserError(
            f"{targets:,} targets with up to {audit.nonmembers:,} non-members make {asked:,} "
            "candidates, at most "
            f"{bounds.CANDIDATES:,} can be asked about: lower audit.nonmembers or name fewer "
            "clients in audit.targets"
        )


@dataclass(frozen=True)
class Loaded:
    """Data with what a job keeps of it: its digest, and which share of the hold-out repeats
    training samples.
    """

    data: Data
    digest: str
    repeated: float


def load_data(dataset: ComponentUse, seed: int) -> Loaded:
    """A data set of one seed, if it can be trained on; raises ``UserError``."""
    made = dataset.make()[0]
    with at_work(f"dataset {dataset}", long_plugin_limits()):
        data = require_data(made.load(seed), dataset.name)
    return Loaded(data, data.digest(), repeated_share(data, dataset.name))


_LABELS = {
    "train_y": np.int64,
    "test_y": np.int64,
    "holdout_y": np.int64,
    "train_canary": bool,
    "holdout_canary": bool,
}


def load_outline(dataset: ComponentUse, seed: int) -> Loaded:
    """As :func:`load_data`; of another package's data set the labels alone, with one sample in
    place of all.
    """
    if is_own(dataset.distributions):
        return load_data(dataset, seed)
    answer = ask(lambda: _outline(load_data(dataset, seed)))
    sample = np.array(answer["sample"], answer["dtype"])
    arrays: dict[str, Any] = {}
    for name, dtype in _LABELS.items():
        arrays[name] = np.array(answer["labels"][name], dtype)
    for split in ("train", "test", "holdout"):
        arrays[f"{split}_x"] = np.broadcast_to(
            sample, (len(arrays[f"{split}_y"]), *sample.shape[1:])
        )
    return Loaded(
        Data(n_classes=answer["n_classes"], **arrays), answer["digest"], answer["repeated"]
    )


def _outline(loaded: Loaded) -> dict[str, Any]:
    data = loaded.data
    return {
        "labels": {name: getattr(data, name).tolist() for name in _LABELS},
        "sample": data.train_x[:1].tolist(),
        "dtype": data.train_x.dtype.str,
        "n_classes": data.n_classes,
        "digest": loaded.digest,
        "repeated": loaded.repeated,
    }


# --- public methods that are no hooks -------------------------------------------------------------


class Misspelt:
    """Asks each class once."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str], list[str]] = {}

    def of(self, uses: Iterable[ComponentUse]) -> list[str]:
        """The notes on these components and those that follow them, none twice."""
        parts = [part for use in uses for part in use.chain]
        return list(dict.fromkeys(note for part in parts for note in self._of(part)))

    def _of(self, part: ComponentUse) -> list[str]:
        at = (part.target, part.name)
        if at not in self._said:
            self._said[at] = ask_apart(str(part), [part.distribution], lambda: _misspelt(part))
        return self._said[at]


def _misspelt(part: ComponentUse) -> list[str]:
    cls = part.load()
    who = f"{kind_of(cls)} {part}"
    try:
        with at_work(who, plugin_limits()):
            return [f"{who}: {text}" for text in unknown_methods(cls)]
    except BaseException as error:  # a class can fail at being looked at
        pass_on_interrupt(error)
        return [f"{who}: its methods cannot be looked at: {explain(error)}"]


def misspelt_in(resolved: Resolved) -> list[str]:
    """The notes on all components that a suite names."""
    named = [use for setting in resolved.settings for use in (setting.dataset, setting.model)]
    return Misspelt().of(
        [
            *named,
            *resolved.defenses,
            *resolved.attacks,
            *resolved.analyses,
            *resolved.signals.values(),
        ]
    )
