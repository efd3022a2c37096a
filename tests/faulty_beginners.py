"""What is written on a first day: components of every kind with one mistake each, for the checks to find."""

from __future__ import annotations

import numpy as np
import torch
from faulty_attacks import SoundActive, SoundAttack
from faulty_others import SoundData, SoundModel
from torch import nn
from torch.nn.functional import dropout

from fedbench.core import Attack, Data, Defense


class SeedsWhereItIsMade(Defense):
    """Seeds numpy's global generator before anything is asked of it."""

    def __init__(self, **values):
        super().__init__(**values)
        np.random.seed(0)

    def protect(self, update, ctx):
        return update + 0.01 * ctx.randn_like(update)


class ForgetsSuper(Defense):
    """A constructor of its own alone."""

    def __init__(self):
        self.factor = 0.5

    def protect(self, update, ctx):
        return update * self.factor


class NoContext(Defense):
    """A phase without its context."""

    def protect(self, update):
        return update * 0.5


class NothingBack(Defense):
    """In place, and the answer is forgotten."""

    def protect(self, update, ctx):
        update.mul_(0.5)


class OwnConstructor(Defense):
    """Wants a value that no suite can give."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor


class ChecksByAnswer(Defense):
    """False where it should refuse."""

    def check(self, federation):
        return federation.clients > 10


class ChecksInVain(Defense):
    """Its check asks for what the facts do not hold."""

    def check(self, federation):
        return federation.members > 10


class WideByDefault(Defense):
    """Double precision for everybody."""

    def begin(self, ctx):
        torch.set_default_dtype(torch.float64)


class NeedsWhatIsNotThere(SoundAttack):
    """A property that asks for a parameter that it has not."""

    @property
    def needs(self):
        return frozenset({self.params.signal})


class ReadsTheAnswers(SoundAttack):
    """Asks the list of candidates for what it does not hold."""

    def score(self, observations, audit):
        return audit.member.astype(float)


class NoScore(Attack):
    """Declares what it reads, and does nothing with it."""

    needs = frozenset({"loss"})


class NoKnowledge(SoundActive):
    """Crafts from nothing."""

    def craft(self, round):
        return torch.zeros(1, 1)


class WideFeatures(SoundData):
    """numpy's own precision."""

    def load(self, seed):
        data = super().load(seed)
        x = {f"{split}_x": getattr(data, f"{split}_x").astype(np.float64) for split in ("train", "test", "holdout")}
        y = {f"{split}_y": getattr(data, f"{split}_y") for split in ("train", "test", "holdout")}
        return Data(**x, **y, n_classes=data.n_classes)


class TestsOnTraining(SoundData):
    """Its test set is the head of its training set."""

    def load(self, seed):
        d = super().load(seed)
        n = len(d.test_y)
        return Data(
            train_x=d.train_x, train_y=d.train_y, test_x=d.train_x[:n], test_y=d.train_y[:n], holdout_x=d.holdout_x,
            holdout_y=d.holdout_y, n_classes=d.n_classes,
        )  # fmt: skip


class Dropping(nn.Linear):
    def forward(self, x):
        return super().forward(dropout(x.flatten(1), 0.5))


class DropsInEvalMode(SoundModel):
    """Drops out without asking for the mode."""

    def build(self, input_shape, n_classes):
        return Dropping(int(np.prod(input_shape)), n_classes)


class Frozen(SoundModel):
    """Nothing to train."""

    def build(self, input_shape, n_classes):
        return super().build(input_shape, n_classes).requires_grad_(False)


class OneForAll(SoundModel):
    """The module of the first call, over and over."""

    def build(self, input_shape, n_classes):
        if not hasattr(self, "_module"):
            self._module = super().build(input_shape, n_classes)
        return self._module


class Probabilities(SoundModel):
    """A softmax at the end, as in a tutorial of another library."""

    def build(self, input_shape, n_classes):
        return nn.Sequential(super().build(input_shape, n_classes), nn.Softmax(1))


# class -> the checks that must fail, and no others
FAILED = {
    SeedsWhereItIsMade: ("no_global_randomness",),
    ForgetsSuper: ("defaults_construct",),
    NoContext: ("signatures",),
    NothingBack: ("runs",),
    OwnConstructor: ("defaults_construct",),
    ChecksByAnswer: ("runs",),
    ChecksInVain: ("runs",),
    WideByDefault: ("runs",),
    NeedsWhatIsNotThere: ("declares_known_signals",),
    ReadsTheAnswers: ("runs",),
    NoScore: ("runs",),
    NoKnowledge: ("signatures",),
    WideFeatures: ("runs",),
    TestsOnTraining: (),
    DropsInEvalMode: ("answers_logits",),
    Frozen: ("runs",),
    OneForAll: ("runs",),
    Probabilities: (),
}
# class -> the checks that must warn
WARNED = {TestsOnTraining: ("splits_disjoint",), Probabilities: ("answers_logits",)}
# class -> words of what its author reads
SAID = {
    SeedsWhereItIsMade: "its constructor draws from or seeds numpy.random",
    ForgetsSuper: "call super().__init__(**values)",
    NoContext: "protect takes (update); expected protect(update, ctx)",
    NothingBack: "returned NoneType; expected a tensor of shape [411]",
    OwnConstructor: "call super().__init__(**values) in __init__(self, **values)",
    ChecksByAnswer: "ChecksByAnswer.check returned bool; expected None, or UserError raised with the reason",
    ChecksInVain: "'Federation' object has no attribute 'members'",
    WideByDefault: "WideByDefault.begin (before round 1) changed torch's default dtype",
    NeedsWhatIsNotThere: "'signal'",
    ReadsTheAnswers: "'Audit' object has no attribute 'member'",
    NoScore: "does not implement score",
    NoKnowledge: "craft takes (round); expected craft(round, knowledge)",
    WideFeatures: "train_x is float64, expected float32",
    DropsInEvalMode: "in eval mode the same samples get other logits each time",
    Frozen: "no parameters to train",
    OneForAll: "build returned the module of an earlier call",
}
