"""A second task: regression on made data, with two noised views of a sample in audits, is trained,
attacked by loss and by gradients, and has a board; what it lacks is skipped with the reason.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from boards import board
from fake_packages import install
from running import invoke, suite
from torch import nn
from torch.testing import assert_close

from fedbench.core import Task
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.comparison.cells import Key, run_cell

KEY = Key("curve", "pair", "none", "loss-series", "server")

SOURCE = """
import numpy as np
import torch
from fedbench.core import Component, Data, Dataset, Task, Utility, hookimpl

class Regression(Task):
    name, views = "regression", 2
    utilities = (
        Utility(name="error", unit="m", direction="lower", high=9.0,
                values=lambda z, target, y: (z[:, 0] - y).abs()),
    )

    def rows(self, x, y, purpose, generator=None):
        noise = torch.tensor([[0.0], [0.2]])[: 1 + (purpose == "audit")]
        if purpose == "train":
            noise = 0.2 * torch.rand(1, 1, generator=generator)
        return (x[:, None] + noise).flatten(0, 1), y.repeat_interleave(len(noise))

    def losses(self, outputs, target):
        return (outputs[:, 0] - target).square()

    def predict(self, outputs):
        return outputs[:, 0]

    def attribute(self, y):
        return np.searchsorted(np.quantile(y, [0.25, 0.5, 0.75]), y)

class Curve(Dataset):
    def load(self, seed):
        x = np.random.default_rng(seed).random((240, 3), np.float32)
        y = (x**2).sum(1)
        parts = zip(("train", "test", "holdout"), (0, 80, 160))
        arrays = {f"{n}_{k}": a[i:i + 80] for n, i in parts for k, a in (("x", x), ("y", y))}
        return Data(**arrays, n_classes=1, task=Regression())

@hookimpl
def fedbench_datasets():
    yield Component("curve", "curves:Curve", "a smooth function of three numbers")
"""


def test_a_second_task_trains_is_attacked_and_has_a_board(tmp_path, site):
    install(site, "curves", SOURCE)
    setting = {
        "name": "curve",
        "dataset": "curve",
        "model": {"name": "mlp", "params": {"hidden": [8]}},
        "partition": {"name": "group-bias", "bias": 1.0},
        "federation": {
            "clients": 4,
            "rounds": 4,
            "local_epochs": 2,
            "batch_size": 8,
            "optimizer": {"lr": 0.05},
        },
        "audit": {"every": 2, "nonmembers": 40},
        "adversary": {"clients": 1, "mask_set": 8},
    }
    attacks = ["loss-series", "grad-cosine", "threshold-entropy", "knn", "agrevader"]
    defenses = ["none", "grad-noise", "mixup"]
    shown = {"name": "distributions", "params": {"attacks": attacks[:1]}}
    plan = {"attacks": attacks, "defenses": defenses, "analyses": [shown]}
    path = suite(tmp_path, settings=[setting], **plan)
    invoke(path, "--results", tmp_path / "r", status=0)
    loaded = {
        (r.record.defense.label, r.record.attack.label): r for r in load_records(tmp_path / "r")
    }
    served = [loaded[d, a] for d in defenses[:2] for a in attacks[:2]]
    for cell in served:
        assert cell.record.outcome == "ok", cell.record.reason
        values, utility = cell.test_correct(), cell.record.utility
        assert (utility.name, utility.unit, utility.direction) == ("error", "m", "lower")
        assert utility.accuracy == values.mean() == cell.record.history[-1].accuracy < 1
        assert len(set(values.tolist())) > 2
        higher = utility.model_copy(update={"direction": "higher"})
        better_higher = replace(cell, record=cell.record.model_copy(update={"utility": higher}))
        for run, name in ((cell, "loss"), (better_higher, "utility")):
            compared = run_cell(KEY, {0: run}).values
            assert compared.keys() == {name}
            assert compared[name][0].mean == pytest.approx(cell.record.accuracy, abs=1e-5)
    reasons = {k: r.record.reason for k, r in loaded.items() if r.record.outcome == "skipped"}
    assert len(reasons) == len(loaded) - len(served)
    assert (
        "entropy' serves classification, and the data's task is regression"
        in (reasons["none", "threshold-entropy"])
    )
    assert "serves classification" in reasons["mixup", "loss-series"]
    assert "serves classification" in reasons["none", "knn"]
    assert "the attack serves classification" in reasons["none", "agrevader"]
    findings = loaded["none", "loss-series"].record.analyses["distributions"]
    names = {name.removesuffix(" members") for name in findings.arrays if "members" in name}
    assert names == {"loss", "gradient norm", "score"}  # neither confidence nor entropy
    text = board(SimpleNamespace(root=tmp_path / "r"), plots=True, analyses=[shown])
    assert "delta-error (m)" in text and "the loss is shown instead" in text
    assert "non-members from outside: median" in text
    for form in ("histograms", "cumulative"):
        assert f"(distributions-{form}-curve-pair-server" in text


@pytest.mark.parametrize("chunk", [1, 512])
def test_the_gradient_of_a_sample_is_that_of_its_mean_loss_over_its_views(chunk):
    namespace = {}
    exec(SOURCE, namespace)
    task: Task = namespace["Regression"]()
    x, y = torch.rand(6, 3), torch.rand(6)
    model = nn.Linear(3, 1)
    flat = FlatModel(model, x.device, task)
    losses = torch.stack([(model(x + noise)[:, 0] - y).square() for noise in (0, 0.2)]).mean(0)
    updates = torch.rand(2, 4)
    features = gradient_features(model, *flat.rows(x, y, "audit"), updates, chunk, task)
    for i, loss in enumerate(losses):
        parts = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        gradient = torch.cat([part.flatten() for part in parts])
        assert_close(features.dot[:, i], updates @ gradient)
        assert_close(features.sq[i], gradient.square().sum())
