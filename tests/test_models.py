"""Architectures: layers against a plain forward pass, published sizes, and what the contract of
`Model` asks of any.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch
from fake_packages import install
from hypothesis import given
from hypothesis import strategies as st
from layered import (
    CLASSES,
    SEQUENCES,
    WIDTH,
    Recurrent,
    Steps,
    one_backward_a_sample,
    randn,
    rows,
    size_of,
)
from pydantic import ValidationError
from running import changed, invoke, records
from scipy.stats import truncnorm
from torch import nn
from torch.nn.functional import avg_pool2d, batch_norm, conv2d, dropout, group_norm, linear, relu
from torch.testing import assert_close
from torchvision import models

from fedbench.core import Data, Model, UserError
from fedbench.core.federation.backend import Group
from fedbench.core.numerics import gradients
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.per_sample import gradient_rows
from fedbench.core.registry.components import Registry
from fedbench.core.run.model_checks import try_model

# least input; an input, classes and how many parameters its paper, its code or the arithmetic of
# its layers has for them
ANNOUNCED = {
    "mlp": ((1, 2, 2), (1, 8, 8), 10, 50_826),
    "mlp-512-128": ((1, 2, 2), (6169,), 100, 3_237_604),
    "leaf-cnn": ((3, 4, 4), (1, 28, 28), 62, 6_603_710),
    "cnn-small": ((3, 4, 4), (1, 8, 8), 10, 13_802),
    "resnet18": ((3, 8, 8), (3, 32, 32), 100, 11_220_132),
    "wrn-16-4": ((3, 4, 4), (3, 32, 32), 10, 2_751_562),
    "alexnet": ((3, 13, 13), (3, 64, 64), 100, 2_495_396),
    "resnet20": ((3, 8, 8), (3, 32, 32), 10, 272_474),
    "membershield-cnn2": ((3, 16, 16), (3, 32, 32), 10, 657_080),
    "membershield-cnn3": ((1, 8, 8), (1, 64, 64), 8, 1_181_672),
    "membershield-mlp4": ((1, 2, 2), (600,), 100, 1_317_348),
    "vgg16": ((3, 32, 32), (3, 224, 224), 1000, 138_357_544),
    "vgg19": ((3, 32, 32), (3, 224, 224), 1000, 143_667_240),
    "torchvision": ((3, 8, 8), (3, 224, 224), 1000, 11_689_512),
}
# where 30 million parameters would show nothing more
NARROW = {
    "vgg16": {"divide": 16},
    "vgg19": {"divide": 16},
    "torchvision": {
        "architecture": "shufflenet_v2_x0_5",
        "norm": "group",
        "small_images": True,
    },
}
MODELS = {
    c.name: c
    for c in Registry.discover().components("model")
    if c.component.target.startswith("fedbench.core.models")
}


def built(name, shape, classes=CLASSES, seed=0, **params):
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        return Registry.discover().get("model", name).load()(**params).build(shape, classes)


def shaken(module):
    """In float64, with norms and biases that do something."""
    module.double()
    with torch.no_grad():
        for i, p in enumerate(q for q in module.parameters() if q.dim() == 1):
            p.add_(0.3 * randn(len(p), seed=i))
    return module


# -- layers and initial weights --------------------------------------------------------------------


def resnet(x, p, stages, blocks, norm="group", groups=32):
    """conv - norm - ReLU; per block conv - norm - ReLU - conv - norm, plus the input or its conv1x1
    - norm, ReLU. BatchNorm with the batch's statistics.
    """

    def conv(x, stride, pad):
        x = conv2d(x, next(p), None, stride, pad)
        return (
            group_norm(x, groups, next(p), next(p))
            if norm == "group"
            else batch_norm(x, None, None, next(p), next(p), True)
        )

    x = relu(conv(x, 1, 1))
    for stage in range(stages):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            out = conv(relu(conv(x, stride, 1)), 1, 1)
            x = relu(out + (conv(x, stride, 0) if stride == 2 else x))
    return linear(avg_pool2d(x, x.shape[2:]).flatten(1), next(p), next(p))


def wrn(x, p, groups=16):
    norm = lambda x: group_norm(relu(x), min(groups, x.shape[1]), next(p), next(p))  # noqa: E731
    x = conv2d(x, next(p), next(p), 1, 1)
    for stage in range(3):
        for block in range(2):
            stride = 2 if stage and not block else 1
            out = conv2d(norm(x), next(p), next(p), 1, 1)
            out = conv2d(norm(out), next(p), next(p), stride, 1)
            x = out + (x if block else conv2d(norm(x), next(p), next(p), stride, 0))
    x = norm(x)
    return linear(avg_pool2d(x, x.shape[2:]).flatten(1), next(p), next(p))


resnet18 = partial(resnet, stages=4, blocks=2)
resnet20 = partial(resnet, stages=3, blocks=3, norm="batch")  # He et al., section 4.2
SMALL = {"norm": "group", "small_images": True}  # torchvision's resnet18 is then ours
BY_HAND = [
    ("resnet18", resnet18, {}),
    ("resnet18", resnet18, {"groups": 8}),
    ("wrn-16-4", wrn, {}),
    ("wrn-16-4", wrn, {"groups": 4}),
    ("resnet20", resnet20, {}),
    ("resnet20", resnet20, {"norm": "group", "groups": 8}),
    ("torchvision", lambda x, p, **params: resnet18(x, p), SMALL),
]


@pytest.mark.parametrize(
    ("name", "by_hand", "params"), BY_HAND, ids=lambda v: v if isinstance(v, str) else ""
)
def test_layers_and_their_order(name, by_hand, params):
    side = (3, 16, 16) if name == "resnet20" else (1, 20, 14)
    module, x = shaken(built(name, side, **params)), randn(2, *side)
    parameters = iter(module.parameters())
    wanted = by_hand(x, parameters, **params)
    assert next(parameters, None) is None
    assert_close(module(x), wanted)


@pytest.mark.parametrize(
    ("name", "init", "scale"),
    [
        ("membershield-cnn2", "normal-0.01", lambda ins, outs: 0.01),
        ("membershield-mlp4", "glorot", lambda ins, outs: (2 / (ins + outs)) ** 0.5),
        ("vgg16", "default", lambda ins, outs: (2 / ins) ** 0.5),
        ("wrn-16-4", None, lambda ins, outs: ins**-0.5),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_initial_weights_have_the_scale_of_their_name(name, init, scale):
    """Within 5 standard errors of a standard deviation of normal values, 1/sqrt(2n); others vary
    less.
    """
    module = built(name, ANNOUNCED[name][0], 100, **{"init": init} if init else {})
    for layer in (m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)):
        weight, wanted = (
            layer.weight.detach(),
            scale(layer.weight[0].numel(), layer.weight[:, 0].numel()),
        )
        assert abs(float(weight.std()) / wanted - 1) < 5 / (2 * weight.numel()) ** 0.5
        assert bool(layer.bias.any()) == (init == "normal-0.01")
        # uniform; no tails
        widest = {"glorot": 3**0.5, None: 2 / truncnorm.std(-2, 2) * (1 + 1e-6)}.get(
            init, float("inf")
        )
        assert weight.abs().max() <= widest * wanted


# a name of each family, and whether the first convolution can be changed for small images
FAMILIES = {
    "convnext_tiny": False,
    "densenet121": True,
    "efficientnet_b0": True,
    "googlenet": True,
    "mobilenet_v3_small": True,
    "mnasnet0_5": True,
    "squeezenet1_1": True,
    "swin_t": False,
    "vgg11_bn": True,
    "vit_b_16": False,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_an_architecture_of_torchvision_has_its_published_size_and_takes_small_grey_images(name):
    (weights, *_) = models.get_model_weights(name)
    with torch.device("meta"):
        published = built("torchvision", (3, 224, 224), 1000, architecture=name)
        params = {"architecture": name, "norm": "group", "small_images": FAMILIES[name]}
        small = built("torchvision", (1, 32, 32), **params)
        assert small(torch.empty(2, 1, 32, 32)).shape == (2, CLASSES)
    assert size_of(published) == weights.meta["num_params"]
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in small.modules())


def test_an_architecture_that_torchvision_lacks_or_that_does_not_fit_is_refused():
    with pytest.raises(ValidationError, match="architecture 'resnet19'; it has resnet1"):
        built("torchvision", (3, 32, 32), architecture="resnet19")
    with torch.device("meta"), pytest.raises(UserError, match=r"vit_b_16 .* patches of 16 x 16"):
        built("torchvision", (3, 32, 32), architecture="vit_b_16", small_images=True)
    with torch.device("meta"), pytest.raises(UserError, match=r"not fit images \[3, 30, 30\]"):
        built("torchvision", (3, 30, 30), architecture="vit_b_16")


# -- every model -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_its_published_size_starts_by_the_seed_and_keeps_samples_apart(name):
    shape, published, classes, parameters = ANNOUNCED[name]
    with torch.device("meta"):
        assert size_of(MODELS[name].load()().build(published, classes)) == parameters
    one, same, other = (built(name, shape, seed=s, **NARROW.get(name, {})) for s in (0, 0, 1))
    weights = [nn.utils.parameters_to_vector(m.parameters()) for m in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    module, x = shaken(one), randn(3, *shape)
    # BatchNorm; in training mode it ties the batch, as in its paper
    module.train(name != "resnet20")
    out = module(x)
    assert out.shape == (3, CLASSES)
    assert_close(out[:1], module(x[:1]))
    assert all(
        bool(g.any()) for g in torch.autograd.grad(out.square().sum(), list(module.parameters()))
    )
    least = shape[1]
    for smaller in (
        [(shape[0], least - 1, 2 * least), (shape[0], 2 * least, least - 1), (600,)]
        if "mlp" not in name
        else []
    ):
        with pytest.raises(
            UserError,
            match=f"{name} needs images .*height >= {least}, width >= {least}.*'mlp'.*resize",
        ):
            built(name, smaller)


LARGE = {"resnet18", "wrn-16-4", "alexnet"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in LARGE else []) for n in MODELS]
)
def test_gradient_features_need_no_per_sample_gradients(name):
    shape = ANNOUNCED[name][0]
    module = shaken(built(name, shape, **NARROW.get(name, {}))).eval()
    x, y, updates = randn(2, *shape), torch.tensor([0, 2]), randn(2, size_of(module), seed=2)
    with patch.object(
        gradients,
        "per_sample_gradients",
        side_effect=AssertionError("per-sample gradients were instantiated"),
    ):
        found = gradient_features(module, x, y, updates)
    g = one_backward_a_sample(module, x, y)
    assert_close(found.dot, updates @ g.T)
    assert_close(found.sq, (g * g).sum(1))
    assert_close(gradient_rows(module, x, y), g)


# -- what the contract of `Model` says is checked before training ----------------------------------

T = 5


def data_of():
    x = np.random.default_rng(0).normal(size=(8, T, WIDTH)).astype(np.float32)
    parts = {
        f"{s}_{k}": v
        for s in ("train", "test", "holdout")
        for k, v in (("x", x), ("y", np.arange(8) % CLASSES))
    }
    return Data(n_classes=CLASSES, **parts)


def builder(make):
    class Mine(Model):
        def build(self, input_shape, n_classes):
            return make()

    return Mine()


@given(name=st.sampled_from(sorted(SEQUENCES)))
def test_a_model_that_keeps_samples_apart_is_accepted(name):
    make, data = SEQUENCES[name], data_of()
    size, before, x = size_of(make()), torch.get_rng_state(), data.train_x.copy()
    assert try_model(builder(make), data) == size
    assert torch.equal(torch.get_rng_state(), before) and np.array_equal(data.train_x, x)


class SecondAxis(Recurrent):
    """`batch_first` forgotten: the recurrence runs over the samples."""

    def __init__(self):
        super().__init__(nn.GRU, first=False)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


def gated():
    """A branch that mixes samples and starts at zero."""
    model = Steps(lambda net, x: rows(net, x + net.gate * x.mean(0)))
    model.gate = nn.Parameter(torch.zeros(1))
    return model


def by_batch():
    model = Steps(rows)
    model.norm = nn.BatchNorm1d(T, track_running_stats=False)
    return model


OTHER = "mixes samples: it answers a sample alone .*the samples on the first axis.*batch_first=True"
REFUSED = {
    "recurrence over samples": (SecondAxis, OTHER),
    "centred": (lambda: Steps(lambda net, x: rows(net, x - x.mean(0))), OTHER),
    "gated": (gated, OTHER),
    "numbered": (
        lambda: Steps(lambda net, x: rows(net, x + torch.arange(len(x))[:, None, None])),
        OTHER,
    ),
    "reversed": (lambda: Steps(lambda net, x: rows(net, x).flip(0)), OTHER),
    "divided": (
        lambda: Steps(lambda net, x: rows(net, x) / len(x)),
        OTHER,
    ),
    "batch statistics": (
        by_batch,
        r"in eval mode: layer 'norm' \(BatchNorm1d\) normalises by batch statistics",
    ),
    "random": (
        lambda: Steps(lambda net, x: rows(net, x + torch.randn(x.shape, dtype=x.dtype))),
        "differently each time in eval",
    ),
    "writing": (
        lambda: Steps(lambda net, x: rows(net, x.mul_(2))),
        "writes to its input, which others read after it: ",
    ),
}


class Part(Steps):
    """With an attribute, a buffer, a 0-dimensional parameter and a layer that is not registered."""

    calls = 0

    def __init__(self, forward):
        super().__init__(lambda net, x: forward(net, rows(net, x) * net.scale, x))
        self.scale, self.first, self.hidden = (
            nn.Parameter(torch.tensor(2.0)),
            None,
            [nn.BatchNorm1d(CLASSES)],
        )
        self.register_buffer("seen", torch.zeros(()))


def counts(net, out, x):
    net.calls += 1
    return out


def counts_for_the_class(net, out, x):
    type(net).calls += 1
    return out


def remembers(net, out, x):
    net.last = x
    return out


def centres_on_the_first_batch(net, out, x):
    net.first = x.mean() if net.first is None else net.first
    return out * (1 + net.first.to(out))


def replaces(net, out, x):
    net.seen = net.seen + x.mean().to(net.seen) * net.training
    return out


def writes(net, out, x):
    if net.training:
        net.seen += x.detach().mean()
    return out * (1 + net.seen)


def normalises_in_a_list(net, out, x):
    return net.hidden[0].to(out).train(net.training)(out)


def caches(net, out, x):
    net.first = torch.eye(CLASSES) if net.first is None else net.first
    return out @ net.first.to(out)


def in_training(change):
    return lambda net, out, x: change(net, out) if net.training else out


def low():
    model = Steps(lambda net, x: rows(net, x.to(net.head.weight)).float())
    return model.bfloat16()


def hollow():
    model = Steps(rows)
    nn.init.constant_(model.head.weight, torch.nan)
    return model


SHARED = "keeps something outside of parameters and buffers, .*: '{}' changes in `forward`"
APART = "trains otherwise beside another client than alone with plain autograd"
UNTRAINABLE = {
    "the first batch": (lambda: Part(centres_on_the_first_batch), APART),
    "a counter": (lambda: Part(counts), SHARED.format("calls")),
    "a counter of the class": (lambda: Part(counts_for_the_class), SHARED.format("calls")),
    "the last batch": (lambda: Part(remembers), SHARED.format("last")),
    "a buffer in another's place": (lambda: Part(replaces), SHARED.format("_buffers")),
    "a layer that is not registered": (
        lambda: Part(normalises_in_a_list),
        SHARED.format("output in eval mode"),
    ),
    "numpy's random numbers": (
        lambda: Part(in_training(lambda net, out: out * np.random.random())),
        APART,
    ),
    "no finite parameters": (
        hollow,
        "cannot be trained: its output is not finite before any training",
    ),
    "no finite output": (
        lambda: Part(in_training(lambda net, out: out / 0)),
        "cannot be trained: its output in training mode is not finite",
    ),
    "no finite gradient": (
        lambda: Part(in_training(lambda net, out: out + (net.scale - 2).abs().sqrt())),
        "cannot be trained: its gradient is not",
    ),
    "bfloat16": (low, "trainable parameters of bfloat16; expected float32 or float64"),
}


@pytest.mark.parametrize("name", [*REFUSED, *UNTRAINABLE])
def test_a_model_that_breaks_the_contract_is_refused(name):
    make, told = (REFUSED | UNTRAINABLE)[name]
    with pytest.raises(UserError, match=f"^the model Mine .*{told}"):
        try_model(builder(make), data_of())


@pytest.mark.parametrize("forward", [writes, caches, in_training(lambda net, out: dropout(out))])
def test_buffers_constants_and_torchs_random_numbers_are_no_shared_state(forward):
    assert try_model(builder(lambda: Part(forward)), data_of()) == size_of(Steps(rows)) + 1


def test_an_engine_that_starts_a_client_from_the_last_ones_buffers_trains_no_model_of_them(
    monkeypatch,
):
    def receive(group):
        start = group.turns[0].start
        group.flat.load(replace(start, buffers=group.flat.buffers))

    monkeypatch.setattr(Group, "receive", receive)
    with pytest.raises(UserError, match=APART):
        try_model(builder(lambda: Part(writes)), data_of())


# -- in a run --------------------------------------------------------------------------------------

PACKAGE = """
    from torch import nn
    from fedbench.core import Component, Model, hookimpl

    class Net(nn.Module):
        def __init__(self, width, classes, first):
            super().__init__()
            self.layer, self.head = nn.GRU(width, 6, batch_first=first), nn.Linear(6, classes)
            self.first = first

        def forward(self, x):
            out, _ = self.layer(x.flatten(1, -2))
            return self.head(out[:, -1])

    class Reader(Model):
        first = True

        def build(self, input_shape, n_classes):
            return Net(input_shape[-1], n_classes, self.first)

    class Mixer(Reader):
        first = False

    @hookimpl
    def fedbench_models():
        yield Component("reader", "recurrent:Reader", "reads an image row by row")
        yield Component("mixer", "recurrent:Mixer", "the same, along the wrong axis")
"""


def run(folder, model, status):
    """The records of a run of a third-party model under none and dp-sgd, before loss-series and
    grad-norm.
    """
    federation = {
        "clients": 4,
        "rounds": 2,
        "local_epochs": 1,
        "batch_size": 50,
        "optimizer": {"lr": 0.2},
    }
    data = {"name": "digits", "params": {"test": 1300, "holdout": 300, "label_noise": 0.3}}
    change = {
        "dataset": data,
        "model": {"name": model},
        "federation": federation,
        "audit": {"every": 1, "nonmembers": 40},
    }
    suite = changed(
        folder, change, defenses=["none", "dp-sgd"], attacks=["loss-series", "grad-norm"]
    )
    invoke(suite, "--results", folder / "results", status=status)
    return records(folder / "results")


@pytest.mark.slow
@pytest.mark.nightly
def test_a_recurrent_model_runs_with_gradient_attacks_and_dp_sgd(site, tmp_path):
    install(site, "recurrent", PACKAGE)
    note = "per-sample gradients in {} mode were taken one by one: "
    note += "vmap cannot go through the model (RuntimeError: "
    found = run(tmp_path, "reader", 0)
    assert len(found) == 4
    for (defense, attack, _), record in found.items():
        assert (record["outcome"], record["reason"]) == ("ok", "")
        noted = {
            mode
            for mode in ("training", "eval")
            for n in record["notes"]
            if n.startswith(note.format(mode))
        }
        assert noted == ({"training"} if defense == "dp-sgd" else set()) | (
            {"eval"} if attack == "grad-norm" else set()
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (
            "mixer",
            "setting 'digits'.*the model Mixer mixes samples: it answers a sample alone otherwise",
        ),
        (
            "alexnet",
            r"alexnet needs images .*height >= 13, width >= 13\], not \[1, 8, 8\]; use the model",
        ),
    ],
)
def test_a_model_that_cannot_be_used_trains_nothing(site, tmp_path, model, told):
    install(site, "recurrent", PACKAGE)
    with pytest.raises(UserError, match=f"tiny.yaml:.*{told}"):
        run(tmp_path, model, 2)
    assert not list(tmp_path.glob("results/records/*"))
