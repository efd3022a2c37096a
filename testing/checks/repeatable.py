"""The same seed gives the same bits: where chance comes from, and what stays behind between runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fedbench.testing.results import Failed, Skipped, Warned
from fedbench.testing.subject import Subject
from fedbench.testing.trials.trial import difference, prints, reference, require_same, trial
from fedbench.testing.watch.generators import Unseeded, engine_leaves_torch_alone, global_state, module_generators
from fedbench.testing.watch.hooks import hooked, state_of
from fedbench.testing.watch.own import Own
from fedbench.testing.watch.prints import print_of

_KEYED = "draw from ctx.rng, ctx.generator or ctx.randn, which the engine keys"
_TORCH = "torch's default generator"


def _drawn_from(subject: Subject) -> str:
    """What is at hand to draw from, in words."""
    ways = {
        "defense": _KEYED, "attack": "draw from audit.rng or audit.generator (knowledge.rng in craft), which the engine keys",
        "dataset": "make a generator of the seed that load is given", "analysis": "draw from run.rng(purpose)",
        "model": "draw from torch's default generator, which the engine keys before build",
    }  # fmt: skip
    return ways.get(subject.kind, "it has nothing to draw for")


def deterministic_under_seed(subject: Subject) -> None:
    """Two runs of one seed answer the same, bit by bit."""
    if unseeded(subject):
        raise Skipped("it makes generators that nobody seeded: `seeded_generators` names them")
    require_same(
        reference(subject), prints(trial(subject)), "in a second run of the same seed",
        f"no clock, no process id, no counter that outlives the run; {_drawn_from(subject)}",
    )  # fmt: skip


def no_global_randomness(subject: Subject) -> None:
    """It leaves the global generators of Python, numpy and torch alone, and does not depend on them."""
    reference(subject)
    moved: dict[str, None] = {}
    torch_allowed = subject.kind == "model"  # the engine keys it there, for ordinary initialisers

    def around(name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        before = global_state()
        answer = call(*args)
        after = global_state()
        others = (g for g in before if before[g] != after[g] and not (torch_allowed and g == _TORCH))
        moved.update({f"{name} draws from or seeds {g}": None for g in others})
        return answer

    made = around("its constructor", subject.make, ())
    with engine_leaves_torch_alone():
        one = prints(trial(subject, hooked(made, subject.kind, around), seed=1))
        if moved:
            raise subject.failed(
                f"{', '.join(moved)}; expected every global generator as it was: {_drawn_from(subject)}"
            )
        if unseeded(subject) or torch_allowed:
            return
        two = prints(trial(subject, seed=2))
    if (name := difference(one, two)) and not difference(one, reference(subject)):
        raise Failed(f"{name} depends on how Python's, numpy's or torch's global generators were seeded; {_drawn_from(subject)}")


def unseeded(subject: Subject) -> list[str]:
    """Where it makes generators without a seed or asks the system for chance; asked once for all checks."""
    if "unseeded" not in subject.notes:
        reference(subject)
        own = Own(subject.cls)
        before, watch = module_generators(own, subject.cls), Unseeded(own)
        with watch.watching():
            trial(subject)
        after = module_generators(own, subject.cls)
        kept = [f"the generator {n}, which outlives the run" for n in after if before.get(n, after[n]) != after[n]]
        subject.notes["unseeded"] = [*watch.found, *kept]
    return subject.notes["unseeded"]


def seeded_generators(subject: Subject) -> None:
    """It makes no random generator without a seed and asks the system for no chance."""
    if found := unseeded(subject):
        raise Failed(
            f"it draws from {', '.join(found)}; expected generators that follow from the run's seed: {_drawn_from(subject)}"
        )


def steady(subject: Subject) -> None:
    """Raise :class:`Skipped` where its answers differ without any reason: another check says so, and no other can compare."""
    if "steady" not in subject.notes:
        subject.notes["steady"] = ""
        for check in (seeded_generators, deterministic_under_seed, no_global_randomness):
            try:
                check(subject)
            except Failed:
                subject.notes["steady"] = f"its answers differ from run to run, which `{check.__name__}` reports"
                break
    if subject.notes["steady"]:
        raise Skipped(subject.notes["steady"])


def no_state_between_runs(subject: Subject) -> None:
    """An instance that has served one run serves the next as a fresh one would."""
    reference(subject)
    made = subject.make()
    empty = print_of(state_of(made, subject.kind))
    trial(subject, made)
    second, left = prints(trial(subject, made)), print_of(state_of(made, subject.kind)) != empty
    if not difference(reference(subject), second):
        return
    steady(subject)
    names = ", ".join(f"self.{n}" for n in _changed(subject, made)) if left else "what it holds outside of itself"
    raise subject.failed(
        f"{difference(reference(subject), second)} is not the same where an instance serves a second run; {names} is left over "
        f"from the first: set it anew where a run begins{_where_it_begins(subject)}"
    )


def _changed(subject: Subject, made: Any) -> list[str]:
    fresh = state_of(subject.make(), subject.kind)
    now = state_of(made, subject.kind)
    return [n for n, value in now.items() if n not in fresh or print_of(fresh[n]) != print_of(value)]


def _where_it_begins(subject: Subject) -> str:
    return {"defense": ", in `begin`, or keep it in ctx.memory", "attack": ", or compute it in `score`"}.get(subject.kind, "")


def no_member_state_on_self(subject: Subject) -> None:
    """What one member learns stays in ctx.memory: `self` serves all members."""
    from fedbench.core.contract.phases import phases

    reference(subject)
    found: dict[str, None] = {}
    made, mine = subject.make(), phases(party=("member",))
    hooked(made, subject.kind, partial(_watched, made, mine, found))
    trial(subject, made)
    if found:
        raise Warned(
            f"{', '.join(found)}; one instance serves all members: what a member learns belongs in ctx.memory, which only it "
            f"sees [{subject.where()}]"
        )


def _watched(
    made: Any, mine: tuple[str, ...], found: dict[str, None], name: str, call: Callable[..., Any], args: tuple[Any, ...]
) -> Any:  # fmt: skip
    before = {n: print_of(v) for n, v in state_of(made, "defense").items()} if name in mine else {}
    answer = call(*args)
    if name in mine:
        after = {n: print_of(v) for n, v in state_of(made, "defense").items()}
        found.update({f"{name} changes self.{n}": None for n, v in after.items() if before.get(n) != v})
    return answer
