"""What an attack must hold: one number a candidate, from what it declares alone, and nothing where there is nothing to find."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fedbench.core.contract.attack import Colluder, Knowledge, Observations
from fedbench.core.contract.candidates import EXCLUDED, MEMBER
from fedbench.core.contract.errors import SkipCell, UserError
from fedbench.core.experiment.verdict import verdict
from fedbench.core.metrics import auc
from fedbench.core.numerics.rng import numpy_rng
from fedbench.testing.checks.runs import located
from fedbench.testing.results import Failed, Skipped
from fedbench.testing.subject import Subject
from fedbench.testing.trials.attack import (
    answers_of,
    asked,
    in_another_order,
    reversed_targets,
    some_rounds,
    trained_with,
    with_signals,
)
from fedbench.testing.trials.data import NormedNet
from fedbench.testing.trials.trial import reference, require_declared
from fedbench.testing.trials.world import declared_mistake, world
from fedbench.testing.watch.hooks import hooked

_NULL_SEEDS = (0, 1)
_DEVIATIONS = 4.5  # of the null's AUC: of a thousand sound attacks, none should fall outside


def declares_known_signals(subject: Subject) -> None:
    """`needs`, `view`, `colluders`, `knows_half` and `threshold` are of their kinds and go together, and every signal in `needs`
    is installed."""
    if mistake := declared_mistake(subject.make()):
        raise subject.failed(f"its {mistake}")


class _Noted(dict):  # type: ignore[type-arg]
    """Signals that note what they are asked for and do not hold."""

    def __init__(self, signals: Any, missing: dict[str, None]) -> None:
        super().__init__(signals)
        self.missing = missing

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) if name in self else self.__missing__(name)

    def __missing__(self, name: str) -> Any:
        self.missing[str(name)] = None
        raise KeyError(name)

    def get(self, name: Any, default: Any = None) -> Any:
        return super().__getitem__(name) if name in self else default

    def __contains__(self, name: object) -> bool:
        there = super().__contains__(name)
        if not there:
            self.missing[str(name)] = None
        return there


def reads_declared_signals(subject: Subject) -> None:
    """It asks for no signal beyond `needs`: what it is shown must not depend on the suite's other attacks."""
    made, missing = subject.make(), dict[str, None]()
    require_declared(subject, made)

    def shown(seen: Observations) -> Observations:
        return replace(seen, signals=_Noted(seen.signals, missing))

    def around(name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        first, *rest = args
        if isinstance(first, Observations):
            first = shown(first)
        elif isinstance(first, list) and all(isinstance(c, Colluder) for c in first):
            first = [replace(c, observations=shown(c.observations)) for c in first]
        return call(first, *rest)

    try:
        asked(hooked(made, "attack", around))
    except Exception:
        if not missing:
            reference(subject)  # where it gets nowhere, `runs` says so
            raise
    hidden = [n for n in missing if made.view == "external" or n in made.needs]
    if beyond := [n for n in missing if n not in hidden]:
        raise subject.failed(
            f"it asks for the signal{'s' * (len(beyond) > 1)} {', '.join(beyond)}, which its needs do not name; expected them in "
            "`needs`: it is shown no others"
        )


def one_score_a_candidate(subject: Subject) -> None:
    """`score` gives [n] finite numbers, `score_rounds` None or [R, n] whose last row is in `score`'s order."""
    reference(subject)
    if mistake := _mistake(subject):
        raise subject.failed(f"{mistake}")


def _mistake(subject: Subject) -> str:
    """What is wrong with its scores; asked once."""
    if "scores" not in subject.notes:
        answers, seen = asked(subject.make())
        subject.notes["scores"] = ""
        try:
            verdict(seen.job, seen.job.cells[0], seen.scene, seen.trained, answers)
        except UserError as error:
            subject.notes["scores"] = str(error)
        else:
            pairs = zip(answers.scores, answers.by_round, strict=True)
            if any(rounds is not None and _otherwise(rounds[-1], scores) for scores, rounds in pairs):
                subject.notes["scores"] = "the last row of score_rounds ranks the candidates otherwise than score; expected alike"
    return str(subject.notes["scores"])


def _otherwise(row: np.ndarray, scores: np.ndarray) -> bool:
    return not np.array_equal(row.argsort(kind="stable"), scores.argsort(kind="stable"))


def sound(subject: Subject) -> None:
    """Raise :class:`Skipped` where another check has said that its scores are none."""
    reference(subject)
    if _mistake(subject):
        raise Skipped("its scores are not one finite number a candidate, which `one_score_a_candidate` reports")


def finds_nothing_in_nothing(subject: Subject) -> None:
    """Where members and non-members are exchangeable, its AUC is 1/2 within its error: it knows no more than it is told."""
    sound(subject)
    found, members, others = [], 0, 0
    for seed in _NULL_SEEDS:
        answers, seen = asked(subject.make(), "holdout", seed=seed)
        ids: dict[bool, set[int]] = {True: set(), False: set()}
        for scores, audit in zip(answers.scores, seen.scene.audits, strict=True):
            keep = audit.kind != EXCLUDED
            member = audit.kind[keep] == MEMBER
            found.append(float(auc(scores[keep], member)))
            for is_member in (True, False):
                ids[is_member] |= set(audit.ids[keep][member == is_member].tolist())
        members, others = members + len(ids[True]), others + len(ids[False])
    mean, room = float(np.mean(found)), _DEVIATIONS * math.sqrt((members + others + 1) / (12 * members * others))
    if abs(mean - 0.5) > room:
        raise subject.failed(
            f"its AUC is {mean:.3f} where nobody trained on the members that it is asked about; expected 0.5 +- {room:.3f}: it "
            "tells them by something else than what training leaves behind"
        )


def order_of_candidates(subject: Subject) -> None:
    """A candidate's score does not depend on where in the list it stands."""
    sound(subject)
    answers, seen = asked(subject.make())
    orders = [numpy_rng(0, "order", client=i).permutation(len(audit.ids)) for i, audit in enumerate(seen.scene.audits)]
    again = answers_of(subject.make(), in_another_order(seen, orders))
    for before, after, order in zip(answers.scores, again.scores, orders, strict=True):
        off = np.abs(before[order] - after)
        if not np.allclose(before[order], after, rtol=1e-3, atol=1e-5 * max(1.0, float(np.ptp(before)))):
            raise subject.failed(
                f"the same candidates in another order get other scores (up to {off.max():.3g} apart); expected the same: score "
                "each by its own observations, not by its position"
            )


def one_and_many_targets(subject: Subject) -> None:
    """It answers about one target, and says the same of a target whatever others were asked about before."""
    sound(subject)
    _answers_or_refuses(subject, "one target alone", world(alone=True, needs=subject.make().needs))
    answers, seen = asked(subject.make())
    again = answers_of(subject.make(), reversed_targets(seen))
    for audit, one, two in zip(seen.scene.audits, answers.scores, again.scores[::-1], strict=True):
        if not np.array_equal(one, two):
            raise subject.failed(
                f"the scores of {audit.target.words()} depend on whether another target was asked about before; expected the "
                "same bits: keep nothing of a target on self"
            )


def _answers_or_refuses(subject: Subject, what: str, seen: Any) -> None:
    """Finite scores, or a reason."""
    try:
        answers = answers_of(subject.make(), seen)
    except (UserError, SkipCell) as why:
        if not str(why).strip():
            raise subject.failed(f"with {what} it refuses without a reason; expected SkipCell or UserError with one") from why
        return
    except Exception as error:
        raise Failed(f"with {what}: {located(error, subject)}; expected scores, or SkipCell with the reason") from error
    for scores, audit in zip(answers.scores, seen.scene.audits, strict=True):
        if scores.shape != (len(audit.ids),) or not np.isfinite(scores).all():
            raise subject.failed(
                f"with {what} it returns {list(scores.shape)} scores, {int((~np.isfinite(scores)).sum())} of them not finite; "
                f"expected [{len(audit.ids)}] finite ones, or SkipCell with the reason"
            )


def one_and_many_rounds(subject: Subject) -> None:
    """One audited round is enough, or it says why not."""
    sound(subject)
    _, seen = asked(subject.make())
    _answers_or_refuses(subject, "one audited round", some_rounds(seen, [-1]))


def constant_signals(subject: Subject) -> None:
    """Signals that are the same everywhere, and rounds in which nobody took part, do not break it."""
    sound(subject)
    _, seen = asked(subject.make())
    for value in (0.0, 1.0):
        flat = with_signals(seen, partial(np.full_like, fill_value=value))
        _answers_or_refuses(subject, f"signals that are {value:g} everywhere", flat)
    _answers_or_refuses(subject, "a round in which the clients were absent", with_signals(seen, _absent))


def _absent(a: np.ndarray) -> np.ndarray:
    """[R, M, n] without anybody in the first round."""
    a[0] = np.nan
    return a


def craft_shape(subject: Subject) -> None:
    """`craft` gives one finite row of P floats for each client that it controls, also where it controls two or is granted no
    more than it asks for."""
    reference(subject)
    made = subject.make()
    for what, adversary in (
        ("one client", {}), ("two clients", {"clients": 2}), (f"knowledge '{made.knowledge}'", {"knowledge": made.knowledge}),
    ):  # fmt: skip
        _crafts(subject, what, adversary)


def _crafts(subject: Subject, what: str, adversary: dict[str, Any]) -> None:
    wrong: list[str] = []

    def around(name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        answer = call(*args)
        if name == "craft" and (misfit := _misfit(answer, args[1])):
            wrong.append(misfit)
        return answer

    try:
        trained_with(hooked(subject.make(), "attack", around), adversary=adversary)
    except (SkipCell, UserError) as why:
        if not str(why).strip():
            raise subject.failed(f"with {what} it refuses without a reason") from why
    except Exception as error:
        if not wrong:
            raise Failed(f"with {what}: {located(error, subject)}; expected rows to submit") from error
    if wrong:
        raise subject.failed(f"with {what}: {wrong[0]}")


def _misfit(rows: Any, knowledge: Knowledge) -> str:
    expected = [len(knowledge.clients), len(knowledge.start)]
    if not isinstance(rows, torch.Tensor) or list(rows.shape) != expected or not rows.is_floating_point():
        found = f"{rows.dtype} {list(rows.shape)}" if isinstance(rows, torch.Tensor) else type(rows).__name__
        return f"craft returned {found}; expected floats {expected}, one row for each of knowledge.clients"
    finite = bool(torch.isfinite(rows).all())
    return "" if finite else "craft returned rows that are not finite, which the server drops; expected finite ones"


def batch_statistics_of_the_model(subject: Subject) -> None:
    """A model with batch normalisation in the federation that it attacks is served, or refused with a reason."""
    reference(subject)
    try:
        trained_with(subject.make(), model=NormedNet)
    except (SkipCell, UserError) as why:
        if not str(why).strip():
            raise subject.failed("it refuses a model with BatchNorm without a reason") from why
    except Exception as error:
        raise Failed(f"a model with BatchNorm: {located(error, subject)}; expected rows, or SkipCell with the reason") from error
