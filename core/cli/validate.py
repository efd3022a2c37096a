"""fedbench validate: is this suite right?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import click

from fedbench.core.cli.options import debug_option, examples, overrides_option, suites_argument
from fedbench.core.cli.say import say
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.ask import Ended
from fedbench.core.registry.facts import is_here

if TYPE_CHECKING:
    from fedbench.core.registry.components import Registry
    from fedbench.core.spec.load import LoadedSuite
    from fedbench.core.spec.resolve import Resolved

# Further checks, "module:function": called with (loaded, resolved), they raise UserError, or answer notes. Imported when needed.
CHECKS: tuple[str, ...] = ("fedbench.core.execution.plan:check_plan",)


@click.command(epilog=examples(
    "fedbench validate my_suite.yaml",
    "fedbench validate suites/*.yaml",
    "fedbench validate partial_defense --set settings.0.federation.rounds=5",
))  # fmt: skip
@suites_argument
@overrides_option
@click.option("--data/--no-data", default=True, show_default=True,
              help="Also load the data: partitions, audit sets, whether the model fits. All that `run` would refuse.")
@debug_option
def command(suites: tuple[str, ...], overrides: tuple[str, ...], data: bool) -> None:
    """Check suites without running them.

    SUITE is a file or the name of a shipped suite. The form of the file, names of components and their parameters,
    coalitions, and then what needs the data. All mistakes are printed at once, one a line, with the place.
    """
    from fedbench.core.registry.ask import ask_each
    from fedbench.core.registry.components import Registry

    registry, _ = Registry.discover(), list(_extra_checks() if data else ())  # imported once, not in every process
    mistakes: list[str] = []
    # In a process of their own: plugins may print, hang or leave, and only what they were asked for comes back.
    for suite, answer in zip(suites, ask_each(suites, lambda suite: _line(suite, registry, overrides, data)), strict=True):
        try:
            say(answer.get())
        except Ended as exc:
            mistakes += [m if m.startswith(f"{suite}:") else f"{suite}: {m}" for m in exc.messages]
        except UserError as exc:
            mistakes += exc.messages
    if mistakes:
        raise UserError(*mistakes)


def _line(suite: str, registry: Registry, overrides: tuple[str, ...], data: bool) -> str:
    """What is said of a suite without a mistake."""
    loaded, resolved, notes = check(suite, registry, overrides, data)
    absent = _absent(loaded, resolved) if data else []
    notes += [f"data not checked: {', '.join(absent)} not on this machine"] if absent else []
    return "; ".join([f"{loaded.path}: ok: {_summary(loaded, resolved)}", *notes])


def check(
    suite: str, registry: Registry, overrides: tuple[str, ...] = (), data: bool = True
) -> tuple[LoadedSuite, Resolved, list[str]]:
    """The suite, its components, and what is odd about its data; raises ``UserError`` with every mistake, with ``data``
    those of ``CHECKS`` too."""
    from fedbench.core.execution.misspelt import misspelt_in
    from fedbench.core.spec.resolve import load_and_check

    loaded, resolved = load_and_check(suite, registry, overrides)
    mistakes: list[str] = []
    notes = misspelt_in(resolved)
    for extra in _extra_checks() if data and not _absent(loaded, resolved) else ():
        try:
            notes += extra(loaded, resolved)
        except UserError as exc:
            mistakes += exc.messages
    if mistakes:
        raise UserError(*mistakes)
    return loaded, resolved, list(dict.fromkeys(notes))


def _absent(loaded: LoadedSuite, resolved: Resolved) -> list[str]:
    """The suite's datasets that are not on this machine: validating downloads nothing."""
    uses = {s.dataset.name: s.dataset for s in resolved.settings}
    try:
        return [name for name, use in uses.items() if is_here(use.load(), f"dataset {use}") is False]
    except UserError as exc:
        raise UserError(*(f"{loaded.path}: {message}" for message in exc.messages)) from exc


def _extra_checks() -> Iterator[Callable[[LoadedSuite, Resolved], Iterable[str]]]:
    for target in CHECKS:
        module, _, name = target.partition(":")
        yield getattr(import_module(module), name)


def _summary(loaded: LoadedSuite, resolved: Resolved) -> str:
    spec = loaded.spec
    parts = [
        (len(spec.settings), "setting"), (len(resolved.defenses), "defense"), (len(resolved.attacks), "attack"),
        (len(spec.all_seeds), "seed"),
    ]  # fmt: skip
    counts = [f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in parts]
    return f"{', '.join(counts)}, up to {spec.n_cells(len(resolved.floors)):,} cells"
