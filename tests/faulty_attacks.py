"""Attacks with one mistake each, for the checks to find: a class is called as the check that must
find it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedbench.core import ActiveAttack, Attack


class SoundAttack(Attack):
    """Minus the loss, averaged over the rounds."""

    needs = frozenset({"loss"})

    def score(self, observations, audit):
        return -np.nanmean(observations.of_target("loss").astype(np.float64), axis=0)


class DeclaresKnownSignals(SoundAttack):
    """A signal that is not announced."""

    needs = frozenset({"loss", "marjin"})


class OrderOfCandidates(SoundAttack):
    """Counts the candidates."""

    def score(self, observations, audit):
        return super().score(observations, audit) + 0.01 * (np.arange(len(audit.ids)) % 7)


class FindsNothingInNothing(SoundAttack):
    """Reads who is a member from the engine's frames."""

    def score(self, observations, audit):
        frame = sys._getframe()
        while frame is not None:
            kind = getattr(frame.f_locals.get("audit"), "kind", None)
            if kind is not None and len(kind) == len(audit.ids):
                return (kind == 0).astype(np.float64)
            frame = frame.f_back
        return super().score(observations, audit)


class OneAndManyTargets(SoundAttack):
    """Compares with the targets that it was asked about before."""

    seen = 0.0

    def score(self, observations, audit):
        scores = super().score(observations, audit)
        self.seen += float(scores.mean())
        return scores * (1 + self.seen**2)


class AsksTheClock(SoundAttack):
    """One generator a second."""

    def score(self, observations, audit):
        return super().score(observations, audit) + np.random.default_rng(int(time.time())).random()


class AsksForItsProcess(SoundAttack):
    """One generator a process."""

    def score(self, observations, audit):
        return super().score(observations, audit) + np.random.default_rng(os.getpid()).random()


class CountsInAFile(SoundAttack):
    """Finds what earlier processes wrote."""

    path = Path(tempfile.mkdtemp()) / "count"

    def score(self, observations, audit):
        with self.path.open("a") as file:
            file.write(".")
        return super().score(observations, audit) * self.path.stat().st_size


SERVED: list[int] = []


class CountsInAGlobal(SoundAttack):
    """Finds what earlier runs left in its module."""

    def score(self, observations, audit):
        SERVED.append(len(audit.ids))
        return super().score(observations, audit) * len(SERVED)


LARGEST = [0.0]


class KeepsTheMaximum(SoundAttack):
    """Divides by the largest loss of this target and those before it, which lie in its module."""

    def score(self, observations, audit):
        scores = super().score(observations, audit)
        LARGEST[0] = max(LARGEST[0], float(-scores.min()))
        return scores / LARGEST[0]


class ScoresOrRefuses(SoundAttack):
    """Needs a second round and does not say so."""

    def score(self, observations, audit):
        loss = observations.of_target("loss").astype(np.float64)
        return np.nan_to_num(loss[0] - loss[1])


class SoundActive(ActiveAttack):
    """What its clients would honestly send, larger."""

    needs = frozenset({"loss"})
    view = "client"
    knowledge = "own"

    def craft(self, round, knowledge):
        return knowledge.own * 1.5

    def score(self, observations, audit):
        return -observations["loss"][-1, 0].astype(np.float64)


class CraftsOrRefuses(SoundActive):
    """Fails where the model has running statistics."""

    def craft(self, round, knowledge):
        if list(knowledge.model.buffers()):
            raise RuntimeError("shape mismatch")
        return knowledge.own
