"""A second task, regression on made data, against the contract of tasks."""

import numpy as np
import torch
from parties import member_context
from torch import nn
from torch.testing import assert_close

from fedbench.core import Batch, Data, Defense, MemberData, Task, Utility
from fedbench.core.contract.defense import unserved_by
from fedbench.core.contract.task import unserved
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.population.partition import partition
from fedbench.core.signals.builtin import Confidence, Loss
from fedbench.core.signals.probes import SignalCall

X = torch.arange(120.0).reshape(40, 3) / 40
Y, MODEL = X.square().sum(1), nn.Linear(3, 1)
PAIRS = [(X[:9], Y[:9]), (X[9:], Y[9:])]
NOISE = torch.tensor([[0.5, 0.0, 0.0], [0.0, -0.3, 0.1]])


class Regression(Task):
    name, views = "regression", 2
    utilities = (Utility(name="error", values=lambda z, target, y: (z[:, 0] - y).abs()),)

    def rows(self, x, y, purpose, generator=None):
        noise = {"train": NOISE[:1], "audit": NOISE, "test": 0 * NOISE[:1]}[purpose]
        return (x[:, None] + noise).flatten(0, 1), y.repeat_interleave(len(noise))

    def losses(self, outputs, target):
        return (self.predict(outputs) - target).square()

    def predict(self, outputs):
        return outputs[:, 0]

    def attribute(self, y):
        return np.searchsorted(np.quantile(y, [0.25, 0.5, 0.75]), y)


def test_a_second_task_has_losses_signals_utility_a_skewed_division_and_refusals():
    x, y, task = X.numpy(), Y.numpy(), Regression()
    arrays = {"train_x": x, "train_y": y, "test_x": x, "test_y": y, "holdout_x": x, "holdout_y": y}
    data = Data(**arrays, n_classes=1, task=task)
    assert data.digest() != Data(**arrays, n_classes=1).digest()
    shards = partition(data.task.attribute(y), 4, 0, "group-bias", bias=1.0)
    assert max(y[shards[0]]) < min(y[shards[2]])
    errors = torch.stack([MODEL(X + noise)[:, 0] - Y for noise in NOISE])
    ctx, flat = member_context(MODEL, MemberData(X, Y), task=task), FlatModel(MODEL, X.device, task)
    inputs, target = task.rows(X, Y, "train")
    loss = Defense().loss(MODEL(inputs), Batch(inputs, Y, torch.arange(40), soft=target), ctx)
    assert_close(loss, errors[0].square().mean())
    outputs = [MODEL(task.rows(*pair, "audit")[0]).detach() for pair in PAIRS]
    measured = SignalCall(Loss(), "it", flat).row(X, PAIRS, outputs)
    assert_close(measured, errors.square().mean(0).detach())
    outputs = MODEL(task.rows(X, Y, "test")[0])
    assert_close(task.utilities[0].values(outputs, Y, Y), (task.predict(outputs) - Y).abs())
    smooth = type("Smooth", (Defense,), {"transform": lambda self, batch, ctx: batch})()
    assert unserved_by(smooth, task) == unserved(task, Confidence().tasks, "Smooth") != ""
    assert unserved_by(Defense(), task) == unserved(task, Loss().tasks, "") == ""
