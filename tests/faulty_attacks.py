"""Attacks with one mistake each, for the checks to find."""

from __future__ import annotations

import sys

import numpy as np

from fedbench.core import ActiveAttack, Attack


class SoundAttack(Attack):
    """Minus the loss, averaged over the rounds."""

    needs = frozenset({"loss"})

    def score(self, observations, audit):
        return -np.nanmean(observations.of_target("loss").astype(np.float64), axis=0)


class SoundHalf(Attack):
    """A linear model of the logits and the loss, fitted to the half that it knows."""

    needs = frozenset({"logits", "loss"})
    knows_half = True

    def _x(self, seen):
        last = seen.of_target("logits")[-1].astype(np.float64)
        x = np.column_stack([last, seen.of_target("loss")[-1], np.ones(len(last))])
        return np.where(np.isnan(x), 0, x)

    def fit(self, shadows, audit):
        x = self._x(shadows[0].observations)
        self._weights = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ shadows[0].member)

    def score(self, observations, audit):
        return self._x(observations) @ self._weights


class TwoTeachers(SoundHalf):
    """Knows half and has a colluder as well."""

    colluders = 1


class UnknownSignal(SoundAttack):
    """A signal that nobody announces."""

    needs = frozenset({"loss", "marjin"})


class UnknownView(SoundAttack):
    """A view that there is none of."""

    view = "everything"


class Undeclared(SoundAttack):
    """Uses the margin where the suite happens to measure it."""

    def score(self, observations, audit):
        if "margin" in observations.signals:
            return observations.of_target("margin")[-1].astype(np.float64)
        return super().score(observations, audit)


class UndeclaredOutright(SoundAttack):
    """Reads the margin without having declared it."""

    def score(self, observations, audit):
        return observations.of_target("margin")[-1].astype(np.float64)


class OneTooFew(SoundAttack):
    """Forgets the last candidate."""

    def score(self, observations, audit):
        return super().score(observations, audit)[:-1]


class NotANumber(SoundAttack):
    """The logarithm of what may be negative."""

    def score(self, observations, audit):
        return np.log(super().score(observations, audit))


class OtherRounds(SoundAttack):
    """Its rounds are those of somebody else."""

    def score_rounds(self, observations, audit):
        return observations.of_target("loss").astype(np.float64)


class ByPosition(SoundAttack):
    """Counts the candidates."""

    def score(self, observations, audit):
        return super().score(observations, audit) + 0.01 * (np.arange(len(audit.ids)) % 7)


class KnowsTheAnswers(SoundAttack):
    """Reads who is a member from the engine's frames."""

    def score(self, observations, audit):
        frame = sys._getframe()
        while frame is not None:
            kind = getattr(frame.f_locals.get("audit"), "kind", None)
            if kind is not None and len(kind) == len(audit.ids):
                return (kind == 0).astype(np.float64)
            frame = frame.f_back
        return super().score(observations, audit)


class ComparesTargets(SoundAttack):
    """Compares with the targets that it was asked about before."""

    seen = 0.0

    def score(self, observations, audit):
        scores = super().score(observations, audit)
        self.seen += float(scores.mean())
        return scores * (1 + self.seen**2)


class TwoRounds(SoundAttack):
    """Needs a second round and does not say so."""

    def score(self, observations, audit):
        loss = observations.of_target("loss").astype(np.float64)
        return np.nan_to_num(loss[0] - loss[1])


class NeedsVariance(SoundAttack):
    """Fails where nothing varies."""

    def score(self, observations, audit):
        scores = super().score(observations, audit)
        if np.ptp(scores) == 0:
            raise ZeroDivisionError("no variance")
        return scores / np.ptp(scores)


class WritesToSignals(SoundAttack):
    """In place, past the lock."""

    def score(self, observations, audit):
        scores, loss = super().score(observations, audit), observations["loss"]
        kept = loss if loss.base is None else loss.base
        kept.flags.writeable = True
        kept.flat[0] += 1
        return scores


class SoundActive(ActiveAttack):
    """What its clients would honestly send, larger."""

    needs = frozenset({"loss"})
    view = "client"
    knowledge = "own"

    def craft(self, round, knowledge):
        return knowledge.own * 1.5

    def score(self, observations, audit):
        return -observations["loss"][-1, 0].astype(np.float64)


class OneRow(SoundActive):
    """One row for all of its clients."""

    def craft(self, round, knowledge):
        return knowledge.own[:1]


class WantsMore(SoundActive):
    """Says that its own rows are enough, and reads the honest ones."""

    def craft(self, round, knowledge):
        return knowledge.own + knowledge.honest.mean(0)


class NoBuffersInside(SoundActive):
    """Fails where the model has running statistics."""

    def craft(self, round, knowledge):
        if list(knowledge.model.buffers()):
            raise RuntimeError("shape mismatch")
        return knowledge.own


# class -> the checks that must fail, and no others
FAILED = {
    SoundAttack: (),
    SoundHalf: (),
    TwoTeachers: ("declares_known_signals",),
    UnknownSignal: ("declares_known_signals",),
    UnknownView: ("declares_known_signals",),
    Undeclared: ("reads_declared_signals",),
    UndeclaredOutright: ("reads_declared_signals",),
    OneTooFew: ("one_score_a_candidate",),
    NotANumber: ("one_score_a_candidate",),
    OtherRounds: ("one_score_a_candidate",),
    ByPosition: ("order_of_candidates",),
    KnowsTheAnswers: ("looks_at_nothing_else", "finds_nothing_in_nothing"),
    ComparesTargets: ("no_state_between_runs", "one_and_many_targets"),
    TwoRounds: ("one_and_many_rounds",),
    NeedsVariance: ("constant_signals",),
    WritesToSignals: ("inputs_not_mutated",),
    SoundActive: (),
    OneRow: ("craft_shape",),
    WantsMore: ("craft_shape",),
    NoBuffersInside: ("batch_statistics_of_the_model",),
}
