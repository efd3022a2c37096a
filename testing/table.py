"""The table of checks: name, kinds, function; what each asks is the first line of its docstring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedbench.core.registry.kinds import KINDS
from fedbench.testing.checks import attacks, clean, declared, defenses, repeatable, replayed, runs, small, whole
from fedbench.testing.subject import Subject


@dataclass(frozen=True)
class Check:
    """``kinds``: of which kinds of component it asks, ``active attack`` among them; ``function``: returns nothing or a note, or
    raises Failed, Skipped or Warned."""

    name: str
    kinds: tuple[str, ...]
    function: Callable[[Subject], str | None]

    @property
    def doc(self) -> str:
        """What it asks, in a sentence."""
        return " ".join((self.function.__doc__ or "").split())


def _check(function: Callable[[Subject], str | None], *kinds: str) -> Check:
    return Check(function.__name__, kinds or KINDS, function)


CHECKS: tuple[Check, ...] = (
    _check(declared.announced),
    _check(declared.documented),
    _check(declared.parameters_documented),
    _check(declared.parameters_bounded),
    _check(declared.defaults_construct),
    _check(declared.known_methods),
    _check(declared.signatures),
    _check(attacks.declares_known_signals, "attack"),
    _check(small.declares_what_it_reads, "analysis"),
    _check(small.licence_stated, "dataset"),
    _check(runs.runs),
    _check(repeatable.deterministic_under_seed),
    _check(repeatable.seeded_generators),
    _check(repeatable.no_global_randomness),
    _check(repeatable.no_state_between_runs),
    _check(clean.inputs_not_mutated, "defense", "attack", "model", "signal", "analysis", "report"),
    _check(clean.pickles_nothing),
    _check(clean.writes_no_files),
    _check(clean.looks_at_nothing_else),
    _check(repeatable.no_member_state_on_self, "defense"),
    _check(defenses.members_kept_apart, "defense"),
    _check(defenses.order_of_clients, "defense"),
    _check(defenses.update_shape_and_dtype, "defense"),
    _check(defenses.answers_each_sample_alone, "defense"),
    _check(defenses.one_and_many_members, "defense"),
    _check(defenses.refuses_with_a_reason, "defense"),
    _check(defenses.batch_statistics, "defense"),
    _check(replayed.replays_the_same, "defense"),
    _check(attacks.reads_declared_signals, "attack"),
    _check(attacks.one_score_a_candidate, "attack"),
    _check(attacks.order_of_candidates, "attack"),
    _check(attacks.one_and_many_targets, "passive attack"),
    _check(attacks.one_and_many_rounds, "attack"),
    _check(attacks.constant_signals, "attack"),
    _check(attacks.finds_nothing_in_nothing, "attack"),
    _check(attacks.craft_shape, "active attack"),
    _check(attacks.batch_statistics_of_the_model, "active attack"),
    _check(small.splits_disjoint, "dataset"),
    _check(small.other_seed_other_split, "dataset"),
    _check(small.answers_logits, "model"),
    _check(small.samples_first, "model"),
    _check(small.gradient_of_every_parameter, "model"),
    _check(small.refuses_inputs_with_a_reason, "model"),
    _check(small.chunk_independent, "signal"),
    _check(small.varies, "signal"),
    _check(whole.runs_end_to_end),
    _check(runs.runs_on_cuda, "defense", "active attack", "model", "signal"),
    _check(runs.cost, "defense", "attack"),
)


def kinds_words(check: Check) -> str:
    """Of which kinds it asks, in words."""
    return "all" if check.kinds == KINDS else ", ".join(check.kinds)


def checks_of(subject: Subject) -> tuple[Check, ...]:
    """Those that ask of components like this one."""
    return tuple(check for check in CHECKS if set(check.kinds) & set(subject.kinds))
