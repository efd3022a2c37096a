"""The table of checks: name, function and kinds of component. The docstring of a function says what
it checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from fedbench.core.registry.kinds import KINDS

if TYPE_CHECKING:
    from fedbench.testing.subject import Subject


@dataclass(frozen=True)
class Check:
    """Check, by the name of its function."""

    module: str
    name: str
    kinds: tuple[str, ...]
    """kinds of component, or active or passive attack"""
    after_run: bool
    """whether it is skipped where the small run fails"""

    @property
    def function(self) -> Callable[[Subject], str | None]:
        """Returns None or a note; raises Failed, Skipped or Warned."""
        return getattr(import_module(f"fedbench.testing.checks.{self.module}"), self.name)  # type: ignore[no-any-return]

    @property
    def doc(self) -> str:
        """Description in a sentence. Imports torch."""
        return " ".join((self.function.__doc__ or "").split())

    @property
    def kinds_text(self) -> str:
        """The kinds, comma-separated."""
        return "all" if self.kinds == KINDS else ", ".join(self.kinds)


def _checks(module: str, names: str, *kinds: str, after_run: bool = True) -> tuple[Check, ...]:
    return tuple(Check(module, name, kinds or KINDS, after_run) for name in names.split())


CHECKS: tuple[Check, ...] = (
    *_checks(
        "component",
        "announced documented parameters_documented parameters_bounded defaults_construct "
        "known_methods signatures",
        after_run=False,
    ),
    *_checks("component", "declares_known_signals", "attack", "analysis", after_run=False),
    *_checks("other", "licence_stated", "dataset", after_run=False),
    *_checks("component", "runs", after_run=False),
    *_checks("component", "deterministic_under_seed global_state_unchanged no_state_between_runs"),
    *_checks(
        "component",
        "inputs_not_mutated",
        "defense",
        "attack",
        "model",
        "signal",
        "analysis",
    ),
    *_checks(
        "defense",
        "members_kept_apart order_of_clients refuses_with_a_reason",
        "defense",
    ),
    *_checks("attack", "order_of_candidates", "attack"),
    *_checks("attack", "one_and_many_targets", "passive attack"),
    *_checks("attack", "scores_or_refuses finds_nothing_in_nothing", "attack"),
    *_checks("attack", "crafts_or_refuses", "active attack"),
    *_checks("other", "splits_disjoint other_seed_other_split", "dataset"),
    *_checks("other", "answers_logits samples_first gradient_of_every_parameter", "model"),
    *_checks("other", "chunk_independent declares_of_update", "signal"),
    *_checks("component", "runs_end_to_end", "defense", "dataset", "model", "signal"),
    *_checks("component", "runs_on_cuda", "defense", "active attack", "model", "signal"),
)


def checks_of(subject: Subject) -> tuple[Check, ...]:
    """Return the checks that apply to a component."""
    return tuple(check for check in CHECKS if set(check.kinds) & set(subject.kinds))
