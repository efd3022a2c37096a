"""A component leaves what it is handed as it is, and touches nothing else."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedbench.core.contract.contexts import MemberContext
from fedbench.core.toolkit.folders import data_folder
from fedbench.testing.results import Failed
from fedbench.testing.subject import Subject
from fedbench.testing.trials.trial import reference, trial
from fedbench.testing.watch.events import Events
from fedbench.testing.watch.hooks import hooked
from fedbench.testing.watch.own import Own
from fedbench.testing.watch.prints import print_of

# a rule's rows, the coalition's and a member's own update are copies that it may write to
_ITS_OWN = ("protect", "coordinate", "aggregate")
_LIVE = ("params", "model", "memory", "tools", "training", "logits", "train", "step", "sample_steps", "rule")


def inputs_not_mutated(subject: Subject) -> None:
    """What its hooks are handed is afterwards as it was."""
    reference(subject)
    found: dict[str, None] = {}

    def around(name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        before = _prints(name, args)
        try:
            return call(*args)
        finally:
            after = _prints(name, args)
            found.update({f"{name} changes {what}": None for what in before if before[what] != after[what]})

    trial(subject, hooked(subject.make(), subject.kind, around))
    if found:
        raise subject.failed(
            f"{', '.join(found)}; expected that it only reads it: work on a copy, .clone() of a tensor, .copy() of an array"
        )


def _prints(hook: str, args: tuple[Any, ...]) -> dict[str, str]:
    """Of every part of every argument that is not the hook's own to write to."""
    found = {}
    for i, arg in enumerate(args):
        if i == 0 and hook in _ITS_OWN:
            continue
        names = getattr(type(arg), "__dataclass_fields__", None)
        if names is None:
            found[f"its argument {i + 1} ({type(arg).__name__})"] = print_of(arg)
            continue
        live = _LIVE if isinstance(arg, MemberContext) or hasattr(arg, "memory") else ()
        found |= {f"{type(arg).__name__}.{n}": print_of(getattr(arg, n)) for n in names if n not in live}
    return found


def _events(subject: Subject) -> Events:
    """What it does beside answering; asked once for three checks."""
    if "events" not in subject.notes:
        reference(subject)
        made = subject.make()
        folders = {"dataset": (data_folder(),), "report": (Path(tempfile.gettempdir()),)}
        events = Events(Own(subject.cls), folders.get(subject.kind, ()))
        with events.watching():
            trial(subject, made)
        subject.notes["events"] = events
    return subject.notes["events"]


def pickles_nothing(subject: Subject) -> None:
    """It neither pickles nor unpickles: what comes from a pickle is somebody's code."""
    if found := _events(subject).pickles:
        raise Failed(f"{', '.join(found)}; expected plain data: JSON, or numpy arrays with allow_pickle=False")


def writes_no_files(subject: Subject) -> None:
    """It writes no files (data sets: below the data folder alone; reports: below the results), starts no process, opens no
    connection."""
    if found := _events(subject).writes:
        raise Failed(f"{', '.join(found)}; expected that it only answers: return facts (`report`) or findings instead")


def looks_at_nothing_else(subject: Subject) -> None:
    """It reads what it is handed, and does not search the interpreter for what its phase may not see."""
    if found := _events(subject).looks:
        raise Failed(
            f"it looks into others' variables: {', '.join(found)}; expected that it reads its arguments alone: who is a member, "
            "other clients' data and memories are not for it"
        )
