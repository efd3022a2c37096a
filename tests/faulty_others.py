"""Models, data sets, signals, analyses and reports with one mistake each, for the checks to find."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedbench.core import Analysis, Data, Dataset, Findings, Model, Number, Report, Signal, UserError

# --- models -----------------------------------------------------------------------------------------------------------


class SoundModel(Model):
    """One layer."""

    def build(self, input_shape, n_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), n_classes))


class Unused(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.used, self.unused = nn.Linear(size, classes), nn.Linear(size, classes)

    def forward(self, x):
        return self.used(x.flatten(1))


class DeadParameters(Model):
    """A layer that the forward pass forgets."""

    def build(self, input_shape, n_classes):
        return Unused(int(np.prod(input_shape)), n_classes)


class Across(nn.Linear):
    def forward(self, x):
        out = super().forward(x.flatten(1))
        return out - out.mean(0, keepdim=True) * torch.linspace(0, 1, len(out))[:, None]


class AcrossSamples(Model):
    """Mixes the samples of a batch by their places."""

    def build(self, input_shape, n_classes):
        return Across(int(np.prod(input_shape)), n_classes)


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)).double()


class DoubleLogits(Model):
    """float64 logits."""

    def build(self, input_shape, n_classes):
        return Doubled(int(np.prod(input_shape)), n_classes)


class NumpyInit(Model):
    """Initialised by numpy's global generator."""

    def build(self, input_shape, n_classes):
        module = nn.Linear(int(np.prod(input_shape)), n_classes)
        nn.init.constant_(module.bias, np.random.rand())
        return nn.Sequential(nn.Flatten(), module)


class ImagesOnly(Model):
    """Takes images, and does not say so."""

    def build(self, input_shape, n_classes):
        channels, height, width = input_shape
        return nn.Sequential(nn.Conv2d(channels, 2, 3), nn.Flatten(), nn.Linear(2 * (height - 2) * (width - 2), n_classes))


class Few(nn.Linear):
    def forward(self, x):
        assert len(x) < 8
        return super().forward(x.flatten(1))


class FewAtOnce(Model):
    """Takes a few samples at a time only."""

    def build(self, input_shape, n_classes):
        return Few(int(np.prod(input_shape)), n_classes)


# --- data sets --------------------------------------------------------------------------------------------------------


class SoundData(Dataset):
    """Two clouds."""

    licence, citation, home, size_mb = "CC0", "nobody", "https://example.org", 0.0

    def load(self, seed):
        return self._drawn(np.random.default_rng(seed))

    def _drawn(self, rng, **changes):
        def split(n):
            y = rng.integers(0, 2, n)
            return (rng.normal(size=(n, 3)) + y[:, None]).astype(np.float32), y

        (a, b), (c, d), (e, f) = split(80), split(20), split(80)
        arrays = {"train_x": a, "train_y": b, "test_x": c, "test_y": d, "holdout_x": e, "holdout_y": f}
        return Data(**{**arrays, "n_classes": 2, **changes})


class NoLicence(SoundData):
    """Whose data are they?"""

    licence = "unknown"


class AnotherEveryTime(SoundData):
    """Splits by the clock."""

    def load(self, seed):
        return self._drawn(np.random.default_rng(time.perf_counter_ns()))


class SameSamples(SoundData):
    """Its hold-out is its training set."""

    def load(self, seed):
        drawn = super().load(seed)
        return self._drawn(np.random.default_rng(seed), holdout_x=drawn.train_x, holdout_y=drawn.train_y)


class OtherClasses(SoundData):
    """Another number of classes for another seed."""

    def load(self, seed):
        return self._drawn(np.random.default_rng(seed), n_classes=2 + seed)


class ShortLabels(SoundData):
    """int32 labels."""

    def load(self, seed):
        drawn = super().load(seed)
        return self._drawn(np.random.default_rng(seed), train_y=drawn.train_y.astype(np.int32))


# --- signals ----------------------------------------------------------------------------------------------------------


class SoundSignal(Signal):
    """The largest logit."""

    def measure(self, probe):
        return probe.logits.amax(1)


class BatchMean(Signal):
    """Against the batch's mean."""

    def measure(self, probe):
        return probe.logits.amax(1) - probe.logits.mean()


class Constant(Signal):
    """The same of all."""

    def measure(self, probe):
        return torch.ones(len(probe.y))


class SoundVector(Signal):
    """The probabilities."""

    vector = True

    def measure(self, probe):
        return probe.logits.softmax(1)


class ConstantVector(Signal):
    """The classes, of every sample."""

    vector = True

    def measure(self, probe):
        return torch.arange(probe.logits.shape[1]).float().expand_as(probe.logits)


class UndeclaredVector(Signal):
    """Does not say that it is a vector."""

    def measure(self, probe):
        return probe.logits.softmax(1)


class WritesToLogits(Signal):
    """The margin, in place."""

    def measure(self, probe):
        label = probe.logits.gather(1, probe.y[:, None]).squeeze(1)
        probe.logits.scatter_(1, probe.y[:, None], -torch.inf)
        return label - probe.logits.amax(1)


class TrainsTheModel(Signal):
    """Leaves the model changed."""

    def measure(self, probe):
        next(probe.model.parameters()).data.add_(1)
        return probe.logits.amax(1)


# --- analyses and reports ---------------------------------------------------------------------------------------------


class SoundAnalysis(Analysis):
    """The share of samples that belong to clients."""

    needs = frozenset({"loss"})

    def analyse(self, run, judgement):
        return Findings({"share": Number(float((run.pool >= 0).mean()))})


class NeedsNothingKnown(SoundAnalysis):
    """A signal that nobody announces."""

    needs = frozenset({"marjin"})


class WritesToTheRun(SoundAnalysis):
    """Sorts in place."""

    def analyse(self, run, judgement):
        run.pool.sort()
        return super().analyse(run, judgement)


class FindsNoNumber(SoundAnalysis):
    """A float where a Number belongs."""

    def analyse(self, run, judgement):
        return Findings({"share": 0.5})


class SoundReport(Report):
    """How many records there are."""

    def write(self, results, plots=True):
        (results / "leaderboard").mkdir(exist_ok=True)
        path = results / "leaderboard" / "count.txt"
        path.write_text(str(len(list((results / "records").glob("*.json")))))
        return path


class Dated(SoundReport):
    """With the time at which it was written."""

    def write(self, results, plots=True):
        path = super().write(results, plots)
        path.write_text(str(time.time_ns()))
        return path


class WritesNothing(Report):
    """The name of a file that it did not write."""

    def write(self, results, plots=True):
        return Path(results) / "leaderboard" / "nothing.txt"


class Refuses(Report):
    """Takes no results of anybody's."""

    def write(self, results, plots=True):
        raise UserError("these records are of no use")


# class -> the checks that must fail, and no others
FAILED = {
    SoundModel: (),
    DeadParameters: ("gradient_of_every_parameter",),
    AcrossSamples: ("samples_first",),
    DoubleLogits: ("answers_logits",),
    NumpyInit: ("no_global_randomness",),
    FewAtOnce: ("runs_end_to_end",),
    ImagesOnly: ("refuses_inputs_with_a_reason",),
    SoundData: (),
    NoLicence: ("licence_stated",),
    AnotherEveryTime: ("deterministic_under_seed",),
    SameSamples: ("splits_disjoint",),
    OtherClasses: ("other_seed_other_split",),
    ShortLabels: ("runs",),
    SoundSignal: (),
    BatchMean: ("chunk_independent",),
    Constant: (),
    SoundVector: (),
    ConstantVector: (),
    UndeclaredVector: ("runs",),
    WritesToLogits: ("inputs_not_mutated",),
    TrainsTheModel: ("runs",),
    SoundAnalysis: (),
    NeedsNothingKnown: ("declares_what_it_reads",),
    WritesToTheRun: ("inputs_not_mutated",),
    FindsNoNumber: ("runs",),
    SoundReport: (),
    Dated: ("deterministic_under_seed",),
    WritesNothing: ("runs",),
    Refuses: ("runs",),
}
# class -> the checks that must warn
WARNED = {Constant: ("varies",), ConstantVector: ("varies",)}
