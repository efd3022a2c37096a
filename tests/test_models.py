"""Architectures: their layers against a plain forward pass, exact sizes, gradient features, a round of training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from click.testing import CliRunner
from fake_packages import install
from pydantic import ValidationError
from running import changed
from scipy.stats import truncnorm
from tiny import tiny_setup, train_all
from torch import nn
from torch.nn.functional import (
    avg_pool2d,
    conv2d,
    cross_entropy,
    group_norm,
    linear,
    max_pool2d,
    relu,
)

from fedbench.core import MemberData, Model, UserError
from fedbench.core.cli.main import cli
from fedbench.core.numerics import gradients as gradient
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.numerics.per_sample import per_sample_gradients
from fedbench.core.registry.components import Registry

LEAST = {
    "mlp": (1, 2, 2), "mlp-512-128": (1, 2, 2), "leaf-cnn": (3, 4, 4),
    "cnn-small": (3, 4, 4), "resnet18": (3, 8, 8), "wrn-16-4": (3, 4, 4),
    "alexnet": (3, 13, 13), "resnet20": (3, 8, 8),
    "membershield-cnn2": (3, 16, 16), "membershield-cnn3": (1, 8, 8), "membershield-mlp4": (1, 2, 2),
    "vgg16": (3, 32, 32), "vgg19": (3, 32, 32),
}  # fmt: skip
NARROW = {"vgg16": {"divide": 16}, "vgg19": {"divide": 16}}  # where 30 million parameters would show nothing more
CLASSES = 3


def model(name: str, **params) -> Model:
    return Registry.discover().get("model", name).load()(**params)


def built(name: str, shape: tuple[int, ...], classes: int = CLASSES, seed: int = 0, **params) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        return model(name, **NARROW.get(name, {}) | params).build(shape, classes)


def randn(*shape: int, seed: int = 1, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def shaken(module: nn.Module) -> nn.Module:
    """In float64, with norms and biases that do something."""
    module.double()
    with torch.no_grad():
        for i, p in enumerate(q for q in module.parameters() if q.dim() == 1):
            p.add_(0.3 * randn(len(p), seed=i))
    return module


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# -- layers ----------------------------------------------------------------------------------------------------------

Parameters = Iterator[torch.Tensor]


def resnet18_by_hand(x: torch.Tensor, p: Parameters, groups: int = 32) -> torch.Tensor:
    """conv - norm - ReLU; per block conv - norm - ReLU - conv - norm, plus the input or its conv1x1 - norm, ReLU."""
    conv = lambda x, stride, pad: group_norm(conv2d(x, next(p), None, stride, pad), groups, next(p), next(p))  # noqa: E731
    x = relu(conv(x, 1, 1))
    for stage in range(4):
        for block in range(2):
            stride = 2 if stage and not block else 1
            out = conv(relu(conv(x, stride, 1)), 1, 1)
            x = relu(out + (conv(x, stride, 0) if stride == 2 else x))
    return linear(avg_pool2d(x, x.shape[2:]).flatten(1), next(p), next(p))


def wrn_by_hand(x: torch.Tensor, p: Parameters, groups: int = 16) -> torch.Tensor:
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


def alexnet_by_hand(x: torch.Tensor, p: Parameters) -> torch.Tensor:
    x = max_pool2d(relu(conv2d(x, next(p), next(p), 4, 5)), 2)
    x = max_pool2d(relu(conv2d(x, next(p), next(p), 1, 2)), 2)
    for _ in range(3):
        x = relu(conv2d(x, next(p), next(p), 1, 1))
    return linear(max_pool2d(x, x.shape[2:]).flatten(1), next(p), next(p))


BY_HAND = {"resnet18": resnet18_by_hand, "wrn-16-4": wrn_by_hand, "alexnet": alexnet_by_hand}


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 20, 14)], ids=str)
@pytest.mark.parametrize("name", BY_HAND)
def test_layers_and_their_order(name, shape):
    module, x = shaken(built(name, shape)), randn(2, *shape)
    parameters = iter(module.parameters())
    wanted = BY_HAND[name](x, parameters)
    assert next(parameters, None) is None
    torch.testing.assert_close(module(x), wanted)
    got = torch.autograd.grad(cross_entropy(module(x), torch.tensor([0, 2])), list(module.parameters()))
    loss = cross_entropy(BY_HAND[name](x, iter(module.parameters())), torch.tensor([0, 2]))
    torch.testing.assert_close(got, torch.autograd.grad(loss, list(module.parameters())))


@pytest.mark.parametrize(("name", "groups"), [("resnet18", 8), ("resnet18", 64), ("wrn-16-4", 4), ("wrn-16-4", 64)])
def test_the_number_of_groups_is_a_parameter_and_costs_none(name, groups):
    module, x = shaken(built(name, (3, 8, 8), groups=groups)), randn(2, 3, 8, 8)
    torch.testing.assert_close(module(x), BY_HAND[name](x, iter(module.parameters()), groups))
    assert size(module) == size(built(name, (3, 8, 8)))


@pytest.mark.parametrize("name", ["resnet18", "wrn-16-4"])
def test_groups_must_divide_the_channels(name):
    with pytest.raises(ValidationError, match="groups"):
        model(name, groups=3)


@pytest.mark.parametrize("name", [n for n in LEAST if n != "resnet20"])  # BatchNorm; test_poisoning_data.py
def test_no_sample_changes_another_ones_logits(name):
    """No batch statistics: the reason for GroupNorm."""
    shape = LEAST[name]
    module, x = shaken(built(name, shape)).train(), randn(3, *shape)
    torch.testing.assert_close(module(x)[:1], module(x[:1]))


# -- sizes -----------------------------------------------------------------------------------------------------------


def conv_size(width: int, wider: int, kernel: int, bias: bool) -> int:
    return width * wider * kernel**2 + wider * bias


def resnet18_size(channels: int, classes: int) -> int:
    conv = lambda width, wider, kernel: conv_size(width, wider, kernel, False) + 2 * wider  # noqa: E731 - with its norm
    total, width = conv(channels, 64, 3), 64
    for wider in (64, 128, 256, 512):
        total += conv(width, wider, 3) + 3 * conv(wider, wider, 3) + (conv(width, wider, 1) if width != wider else 0)
        width = wider
    return total + 512 * classes + classes


def wrn_size(channels: int, classes: int) -> int:
    conv = lambda width, wider, kernel: 2 * width + conv_size(width, wider, kernel, True)  # noqa: E731 - norm first
    total, width = conv_size(channels, 16, 3, True), 16
    for wider in (64, 128, 256):
        total += conv(width, wider, 3) + 3 * conv(wider, wider, 3) + conv(width, wider, 1)
        width = wider
    return total + 2 * 256 + 256 * classes + classes


def alexnet_size(channels: int, classes: int) -> int:
    layers = (channels, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3)
    return sum(conv_size(*layer, True) for layer in layers) + 256 * classes + classes


SIZES = {"resnet18": resnet18_size, "wrn-16-4": wrn_size, "alexnet": alexnet_size}


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 64, 64)], ids=str)
@pytest.mark.parametrize("classes", [10, 100, 200])
@pytest.mark.parametrize("name", SIZES)
def test_sizes(name, classes, shape):
    """By formula; the image's size changes nothing, since all three pool globally."""
    assert size(built(name, shape, classes)) == SIZES[name](shape[0], classes)


@pytest.mark.parametrize(
    ("name", "classes", "published", "exact"),
    [
        ("resnet18", 100, "11.22", 11_220_132),  # docs/methods/federation.md#models
        ("wrn-16-4", 10, "2.75", 2_751_562),  # docs/methods/federation.md#models; De et al. and Aerni et al.: for CIFAR-10
        ("wrn-16-4", 100, "2.77", 2_774_692),
        ("alexnet", 100, "2.50", 2_495_396),
    ],
)
def test_published_sizes(name, classes, published, exact):
    found = size(built(name, (3, 32, 32), classes))
    assert found == exact and f"{found / 1e6:.2f}" == published


# MemberShield, section 6.2, layer by layer as it is written there; input 32x32x3 (CIFAR-10), 64x64x1 (CH-MNIST), 600
MEMBERSHIELD = {
    "membershield-cnn2": ((3, 32, 32), 10, [
        20 * 3 * 5 * 5 + 20,  # 32 - 4 = 28, pooled 14
        50 * 20 * 5 * 5 + 50,  # 14 - 4 = 10, pooled 5
        500 * 50 * 5 * 5 + 500, 10 * 500 + 10,
    ]),
    "membershield-cnn3": ((1, 64, 64), 8, [
        128 * 1 * 5 * 5 + 128,  # 64, padded; pooled 32
        64 * 128 * 3 * 3 + 64,  # 32, padded; pooled 16
        64 * 64 * 3 * 3 + 64,  # 16, padded; pooled 8
        256 * 64 * 8 * 8 + 256, 64 * 256 + 64, 32 * 64 + 32, 8 * 32 + 8,
    ]),
    "membershield-mlp4": ((600,), 100, [
        1024 * 600 + 1024, 512 * 1024 + 512, 256 * 512 + 256, 128 * 256 + 128, 100 * 128 + 100,
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMBERSHIELD)
def test_membershields_networks_have_the_sizes_of_its_layers(name):
    shape, classes, layers = MEMBERSHIELD[name]
    module = built(name, shape, classes)
    weighted = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [size(m) for m in weighted] == layers and size(module) == sum(layers)
    assert f"{sum(layers):,} parameters" in (type(model(name)).__doc__ or "")


# Convolutions of configurations D and E (Simonyan and Zisserman, table 1): 138,357,544 and 143,667,240 parameters for ImageNet's
# 224x224 and 1000 classes, less the three linear layers 7*7*512-4096-4096-1000
LINEAR = (25_088 * 4096 + 4096) + (4096 * 4096 + 4096) + (4096 * 1000 + 1000)


@pytest.mark.parametrize(("name", "convolutions", "published"), [("vgg16", 13, 138_357_544), ("vgg19", 16, 143_667_240)])
def test_vgg_has_its_published_size(name, convolutions, published):
    with torch.device("meta"):
        imagenet, cifar = (model(name).build(shape, n) for shape, n in (((3, 224, 224), 1000), ((3, 32, 32), 10)))
    stacks = [[m for m in module.modules() if isinstance(m, nn.Conv2d)] for module in (imagenet, cifar)]
    assert size(imagenet) == published
    assert [sum(map(size, s)) for s in stacks] == [published - LINEAR] * 2 and [len(s) for s in stacks] == [convolutions] * 2
    assert size(cifar) == published - LINEAR + (512 * 4096 + 4096) + (4096 * 4096 + 4096) + (4096 * 10 + 10)
    assert f"{size(cifar):,} parameters" in type(model(name)).__doc__ and f"{published - LINEAR:,}" in type(model(name)).__doc__
    assert not [m for m in cifar.modules() if isinstance(m, nn.Dropout | nn.BatchNorm2d)]


STARTS = ["membershield-cnn2", "membershield-cnn3", "membershield-mlp4", "vgg16", "vgg19"]


def weights_and_biases(name: str, **params) -> list[tuple[torch.Tensor, torch.Tensor]]:
    module = built(name, LEAST[name], 100, **params)
    return [(m.weight.detach(), m.bias.detach()) for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


@pytest.mark.parametrize("name", STARTS)
def test_the_start_is_as_named(name):
    """Standard deviations within 5 of their own standard errors, 1/sqrt(2n); a uniform's are smaller."""
    for weight, bias in weights_and_biases(name, init="normal-0.01"):
        assert abs(float(weight.std()) / 0.01 - 1) < 5 / (2 * weight.numel()) ** 0.5 and bool(bias.any())
    for weight, bias in weights_and_biases(name, init="glorot"):
        fan_in, fan_out = weight[0].numel(), weight[:, 0].numel()
        limit = (6 / (fan_in + fan_out)) ** 0.5
        assert weight.abs().max() <= limit and not bias.any()
        assert abs(float(weight.std()) * 3**0.5 / limit - 1) < 5 / (2 * weight.numel()) ** 0.5


@pytest.mark.parametrize("name", ["vgg16", "vgg19"])
def test_vgg_keeps_the_scale_of_what_goes_through_it(name):
    """Torch's own start would leave a millionth of the signal after so many layers."""
    module, x = built(name, (3, 32, 32), 10, divide=4), randn(16, 3, 32, 32, dtype=torch.float32)
    found = module(x).detach()
    assert 0.1 < float(found.std()) < 10
    for layer in module:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.reset_parameters()
            nn.init.zeros_(layer.bias)
    assert float(module(x).detach().std()) < 1e-5


@pytest.mark.parametrize("name", STARTS)
def test_the_default_start_trains(name):
    """Twelve samples of three classes are learnt, each class a pattern of its own in noise."""
    shape = LEAST[name]
    y = torch.arange(12) % 3
    x = (3 * randn(3, *shape, seed=5)[y] + randn(12, *shape)).float()
    module = built(name, shape, divide=4) if "vgg" in name else built(name, shape)
    step = torch.optim.SGD(module.parameters(), lr=0.001 if "vgg" in name else 0.02, momentum=0.9)
    for _ in range(80):
        step.zero_grad()
        cross_entropy(module(x), y).backward()
        step.step()
    assert (module(x).argmax(1) == y).all()


def test_wrn_weights_have_unit_gain_and_no_tails():
    kept = truncnorm.std(-2, 2)
    for layer in built("wrn-16-4", (3, 8, 8), 100).modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            weight, fan_in = layer.weight.detach(), layer.weight[0].numel()
            assert weight.abs().max() <= 2 / kept / fan_in**0.5 * (1 + 1e-6)
            # 4.5 standard errors of a standard deviation: less than 1/sqrt(2n) each, since the cut thins the tails
            assert abs(float(weight.std()) * fan_in**0.5 - 1) < 4.5 / (2 * weight.numel()) ** 0.5
            assert not layer.bias.any()


@pytest.mark.parametrize("name", LEAST)
def test_the_engines_seed_decides_the_initial_weights(name):
    one, same, other = (nn.utils.parameters_to_vector(built(name, LEAST[name], seed=s).parameters()) for s in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)


# -- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in LEAST if "mlp" not in n])
def test_the_least_input_fits_and_a_smaller_one_is_refused(name):
    channels, least, _ = LEAST[name]
    x = randn(2, channels, least, 2 * least, dtype=torch.float32)
    assert built(name, x.shape[1:], 4)(x).shape == (2, 4)
    for shape in [(channels, least - 1, 2 * least), (channels, 2 * least, least - 1), (600,), (least, least)]:
        with pytest.raises(UserError) as caught:
            built(name, shape)
        told = str(caught.value)
        assert f"{name} needs images [channels, height >= {least}, width >= {least}], not {list(shape)}" in told
        assert "'mlp'" in told and "resize" in told
        assert ("'cnn-small'" in told) == (name != "cnn-small")  # what would fit, but never itself


def test_a_suite_with_a_model_that_does_not_fit_is_refused_before_training(tmp_path):
    told = run_suite(tmp_path, "alexnet", status=2)
    assert "alexnet needs images [channels, height >= 13, width >= 13], not [1, 8, 8]; use the model" in told
    assert "Traceback" not in told


# -- in the engine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEAST)
def test_gradient_features_need_no_fallback(name):
    shape = LEAST[name]
    module, x, y = shaken(built(name, shape)).eval(), randn(3, *shape), torch.tensor([0, 2, 1])
    updates = randn(2, size(module), seed=2)
    with patch.object(gradient, "_sample_wise", side_effect=AssertionError("the slow way was taken")):
        found = gradient_features(module, x, y, updates)
    dot, sq = [], []
    for a, b in zip(x.split(1), y.split(1), strict=True):  # one by one: eleven million float64 a row
        g = per_sample_gradients(module, a, b)[0]
        dot.append(updates @ g)
        sq.append(g @ g)
    torch.testing.assert_close(found.dot, torch.stack(dot, 1))
    torch.testing.assert_close(found.sq, torch.stack(sq))
    torch.testing.assert_close(found.update_sq, (updates * updates).sum(1))


@pytest.mark.parametrize("name", LEAST)
def test_one_round_of_training_moves_every_parameter_downhill(name):
    shape = LEAST[name] if name != "wrn-16-4" else (3, 8, 8)
    module = built(name, shape, seed=3)
    clients = [MemberData(randn(4, *shape, seed=k, dtype=torch.float32), torch.tensor([0, 1, 2, 1])) for k in range(2)]
    setup = tiny_setup(module=module, clients=clients, members=(), rounds=1, batch_size=2, lr=1e-3)
    x, y = torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients])
    before = float(cross_entropy(module(x), y).detach())
    _, (result,) = train_all(setup)
    torch.testing.assert_close(result.models[0], setup.initial[0] + result.uploads.updates.mean(0))
    for update in result.uploads.updates:
        assert all(bool(part.any()) for part in update.split([p.numel() for p in module.parameters()]))
    setup.flat.params.copy_(result.models[0])
    assert float(cross_entropy(module(x), y).detach()) < before


# -- other people's --------------------------------------------------------------------------------------------------

THIRD_PARTY = """
    from fedbench.core import Component, Model, Params, UserError, hookimpl
    from pydantic import Field

    class Softmax(Model):
        class Params(Params):
            bias: bool = Field(True, description="with an intercept")

        def build(self, input_shape, n_classes):
            from math import prod
            from torch import nn
            return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), n_classes, bias=self.params.bias))

    @hookimpl
    def fedbench_models():
        yield Component("softmax-regression", "other_models:Softmax", "one layer")
"""


def run_suite(folder, name: str, status: int, **params) -> str:
    """What `fedbench run` says of a federation on digits with this model, in this process."""
    path = changed(folder, {"model": {"name": name, "params": params}})
    arguments = ["run", str(path), "--results", str(folder / "results"), "--no-plots"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def third_party(site):
    return install(site, "other_models", THIRD_PARTY)


def test_a_third_party_model_is_found_and_its_parameters_checked(third_party):
    found = Registry.discover().get("model", "softmax-regression")
    assert (found.distribution, found.version) == ("other_models", "1.0")
    assert size(built("softmax-regression", (1, 8, 8), 10)) == 650
    assert size(built("softmax-regression", (1, 8, 8), 10, bias=False)) == 640
    with pytest.raises(ValidationError, match="depth"):
        model("softmax-regression", depth=2)


@pytest.mark.slow
def test_a_suite_trains_a_third_party_model(tmp_path, third_party):
    run_suite(tmp_path, "softmax-regression", status=0, bias=False)
    (record,) = (json.loads(p.read_text()) for p in (tmp_path / "results" / "records").glob("*.json"))
    assert record["outcome"] == "ok" and record["described"]["model"]["name"] == "softmax-regression"


def test_the_shipped_models_are_announced():
    names = {c.name for c in Registry.discover().components("model") if c.distribution == "fedbench"}
    assert names == set(LEAST)
