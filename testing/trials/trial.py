"""One small run of a component, whatever its kind, and everything that it answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedbench.core.apart.channel import pass_on_interrupt
from fedbench.core.contract.errors import SkipCell
from fedbench.core.registry.hooks_of import misfits
from fedbench.testing.results import Failed, Skipped
from fedbench.testing.subject import Subject
from fedbench.testing.watch.generators import seed_globals
from fedbench.testing.watch.prints import print_of

ENDED = "ended"  # of a subject's notes: the check in which it ended the process, or had to be stopped


def trial(subject: Subject, made: Any = None, seed: int = 1) -> dict[str, Any]:
    """What ``made``, by default a fresh instance, answers: name -> value. ``seed``: where the global generators stand.

    Raises :class:`Skipped` where it does not apply to the small run, and what the engine makes of its mistakes.
    """
    from fedbench.testing.trials import attack, defense, finished, small

    made = subject.make() if made is None else made
    require_declared(subject, made)
    seed_globals(seed)
    try:
        if subject.kind == "defense":
            return defense.run(made)
        if subject.kind == "attack":
            return attack.run(made)
        if subject.kind == "dataset":
            return small.load(subject, made)
        if subject.kind == "model":
            return small.build(subject, made)
        if subject.kind == "signal":
            return small.measure(subject, made)
        return finished.analyse(made) if subject.kind == "analysis" else finished.write(made)
    except SkipCell as why:
        raise Skipped(f"it does not apply to the small federation of the checks: {why}") from None


def require_declared(subject: Subject, made: Any) -> None:
    """Raise :class:`Skipped` where what it says of itself is wrong: nothing can be asked of it."""
    from fedbench.testing.trials.world import declared_mistake

    if misfits(type(made)):
        raise Skipped("a hook does not take what the engine hands to it, which `signatures` reports")
    if subject.kind in ("attack", "analysis") and _wrong(declared_mistake, made):
        check = "declares_known_signals" if subject.kind == "attack" else "declares_what_it_reads"
        raise Skipped(f"what it says of itself is wrong, which `{check}` reports")


def _wrong(ask: Callable[[Any], str], made: Any) -> bool:
    """Whether there is a mistake, or no answer."""
    try:
        return bool(ask(made))
    except Exception:  # a property of somebody's
        return True


def prints(said: dict[str, Any]) -> dict[str, str]:
    """Name -> print."""
    return {name: print_of(value) for name, value in said.items()}


def reference(subject: Subject) -> dict[str, str]:
    """The prints of a fresh instance's answers; made once for all checks of a component. What it raised, it raises again."""
    if subject.notes.get(ENDED) == "runs":
        raise Skipped("it does not get through one small run, which `runs` reports")
    if "reference" not in subject.notes:
        try:
            subject.notes["reference"] = prints(trial(subject))
        except Skipped as why:
            subject.notes["reference"] = why
        except BaseException as error:  # somebody's code
            pass_on_interrupt(error)
            subject.notes["reference"] = error
    found = subject.notes["reference"]
    if isinstance(found, Skipped):
        raise Skipped(str(found))
    if isinstance(found, BaseException):
        raise Skipped(f"it does not get through one small run, which `runs` reports ({type(found).__name__})")
    return found


def difference(before: dict[str, str], after: dict[str, str]) -> str:
    """The first answer that is not the same; empty where all are."""
    return next((name for name in {**before, **after} if before.get(name) != after.get(name)), "")


def require_same(before: dict[str, str], after: dict[str, str], what: str, remedy: str) -> None:
    """Raise :class:`Failed` where two runs answered differently. ``what``: how the second differs."""
    if name := difference(before, after):
        raise Failed(f"{name} is not the same {what}; expected the same bits: {remedy}")
