"""A chain's gradient is autograd's bit by bit, for every model that it serves, and what it cannot serve goes to autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_setup, train_all
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import deterministic

from fedbench.core import Defense, Selection
from fedbench.core.federation import local
from fedbench.core.models.alexnet import AlexNet
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.models.leaf_cnn import LeafCNN
from fedbench.core.models.mlp import MLP
from fedbench.core.models.resnet18 import ResNet18
from fedbench.core.numerics.chain import Chain, unfilled, walked
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.normalise import Normalised

C = 5
CPU = torch.device("cpu")


def odd_net() -> nn.Module:
    """Every kind of layer, strides, dilation, groups, no bias, a nested chain, dropout on images and on rows."""
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, stride=2, dilation=2, groups=2, bias=False), nn.GroupNorm(2, 8), nn.Tanh(), nn.Dropout(0.3),
        nn.Sequential(nn.Conv2d(8, 6, (1, 3), padding=(0, 1)), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1, ceil_mode=True)),
        nn.Flatten(), nn.ReLU(), nn.Linear(6 * 3 * 3, 7), nn.Dropout(0.5, inplace=True), nn.ReLU(), nn.Linear(7, C),
    )  # fmt: skip


SERVED = {
    "mlp": ((1, 4, 4), lambda: MLP(hidden=(9, 7)).build((1, 4, 4), C)),
    "cnn-small": ((3, 8, 8), lambda: SmallCNN(channels=4, hidden=8).build((3, 8, 8), C)),
    "leaf-cnn": ((1, 8, 8), lambda: LeafCNN().build((1, 8, 8), C)),
    "odd": ((2, 14, 14), odd_net),
    "normalised": ((3, 8, 8), lambda: Normalised(SmallCNN(channels=4).build((3, 8, 8), C), (0.5, 0.4, 0.3), (0.2, 0.3, 0.1))),
}


@given(st.sampled_from(sorted(SERVED)), st.integers(1, 9), st.booleans(), st.integers(0, 10**6))
def test_a_chains_gradient_is_autograds_bit_by_bit(name, n, soft, seed):
    shape, build = SERVED[name]
    torch.manual_seed(seed)
    flat = FlatModel(build(), CPU)
    x = torch.randint(0, 256, (n, *shape), dtype=torch.uint8) if name == "normalised" else torch.randn(n, *shape)
    target = torch.rand(n, C).softmax(1) if soft else torch.randint(0, C, (n,))
    before = x.clone()
    torch.manual_seed(seed + 1)
    cross_entropy(flat.module(x), target).backward()
    expected, drawn = flat.grad.clone(), torch.rand(1)
    flat.grad.fill_(7.0)
    torch.manual_seed(seed + 1)
    Chain.of(flat).gradient(x, target)
    assert torch.equal(flat.grad, expected) and torch.equal(torch.rand(1), drawn) and torch.equal(x, before)


def test_dropout_sleeps_where_the_model_evaluates():
    torch.manual_seed(0)
    flat = FlatModel(odd_net(), CPU)
    flat.module.eval()
    x, y = torch.randn(4, 2, 14, 14), torch.randint(0, C, (4,))
    cross_entropy(flat.module(x), y).backward()
    expected = flat.grad.clone()
    Chain.of(flat).gradient(x, y)
    assert torch.equal(flat.grad, expected)


class Doubled(nn.Linear):
    """Not what its base class computes."""

    def forward(self, x):
        return 2 * super().forward(x)


def hooked() -> nn.Module:
    net = MLP(hidden=(4,)).build((4,), C)
    net[1].register_forward_hook(lambda layer, args, out: out + 1)
    return net


def frozen() -> nn.Module:
    net = MLP(hidden=(4,)).build((4,), C)
    net[1].weight.requires_grad_(False)
    return net


def patched() -> nn.Module:
    net = MLP(hidden=(4,)).build((4,), C)
    net[3].forward = lambda x: net[3].weight.sum() * x
    return net


def watched() -> nn.Module:
    net = MLP(hidden=(4,)).build((4,), C)
    net[1].weight.register_hook(lambda g: 2 * g)
    return net


def watched_afterwards() -> nn.Module:
    net = MLP(hidden=(4,)).build((4,), C)
    net[1].bias.register_post_accumulate_grad_hook(lambda p: p.grad.zero_())
    return net


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(nn.Flatten(), layer, nn.Tanh(), layer, nn.Linear(4, C))


NOT_SERVED = {
    "a layer of another kind": lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, C)),
    "a subclass": lambda: nn.Sequential(nn.Flatten(), Doubled(4, C)),
    "a hook": hooked, "a parameter's hook": watched, "a hook behind its gradient": watched_afterwards,
    "a frozen weight": frozen, "a patched layer": patched, "a layer used twice": shared,
    "a linear layer that may see more than rows": lambda: nn.Sequential(nn.Linear(4, C)),
    "a pool whose gradient is another": lambda: AlexNet().build((3, 32, 32), C),
    "branches": lambda: ResNet18().build((3, 8, 8), C),
    "padding by another rule": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(8, C)),
    "no chain at all": lambda: nn.Bilinear(2, 2, C),
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_SERVED)
def test_what_no_chain_serves_is_left_to_autograd(what):
    assert Chain.of(FlatModel(NOT_SERVED[what](), CPU)) is None


def test_a_hook_on_all_modules_is_left_to_autograd():
    flat = FlatModel(MLP(hidden=(4,)).build((4,), C), CPU)
    hook = register_module_forward_hook(lambda layer, args, out: None)
    try:
        assert Chain.of(flat) is None
    finally:
        hook.remove()
    assert Chain.of(flat) is not None


@pytest.mark.parametrize("kind", [torch.float64, torch.float16])
def test_soft_labels_of_another_type_give_autograds_bits(kind):
    torch.manual_seed(0)
    flat = FlatModel(MLP(hidden=(9,)).build((4,), C), CPU)
    x, target = torch.randn(7, 4), torch.rand(7, C).softmax(1).to(kind)
    cross_entropy(flat.module(x), target).backward()
    expected = flat.grad.clone()
    flat.grad.fill_(7.0)
    Chain.of(flat).gradient(x, target)
    assert torch.equal(flat.grad, expected)


def test_maxima_of_images_without_a_channel():
    torch.manual_seed(0)
    flat = FlatModel(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9, C)), CPU)
    x, y = torch.randn(5, 6, 6), torch.randint(0, C, (5,))
    cross_entropy(flat.module(x), y).backward()
    expected = flat.grad.clone()
    Chain.of(flat).gradient(x, y)
    assert torch.equal(flat.grad, expected)


def test_doubles_are_left_to_autograd():
    assert Chain.of(FlatModel(MLP(hidden=(4,)).build((4,), C).double(), CPU)) is None


def test_a_label_that_is_no_class_is_refused():
    flat = FlatModel(MLP(hidden=(4,)).build((4,), C), CPU)
    with pytest.raises(IndexError, match="out of bounds"):
        Chain.of(flat).gradient(torch.randn(2, 4), torch.tensor([0, C]))


def chained() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))


class Some(Defense):
    """Trains on a part with soft labels: every phase but the loss."""

    def prepare(self, data, ctx):
        return replace(data, soft=torch.eye(3)[data.y] * 0.7 + 0.1)

    def select(self, ctx):
        return Selection(ctx.data.trainable[1:])


@pytest.mark.parametrize("defense", [None, Some()])
def test_a_federation_trains_to_the_same_bits_either_way(monkeypatch, defense):
    by_chain, _ = train_all(tiny_setup(defense, module=chained()))
    monkeypatch.setattr(local.Chain, "of", classmethod(lambda cls, flat: None))
    by_autograd, _ = train_all(tiny_setup(defense, module=chained()))
    assert by_chain.trainer.chain is not None and by_autograd.trainer.chain is None
    assert torch.equal(by_chain.models, by_autograd.models)


def test_memory_is_filled_again_after_a_chain_even_where_it_fails(monkeypatch):
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    with pytest.raises(ZeroDivisionError), unfilled():
        assert not deterministic.fill_uninitialized_memory
        _ = 1 // 0
    assert deterministic.fill_uninitialized_memory


@given(st.sampled_from(sorted(SERVED)), st.integers(1, 5), st.booleans(), st.integers(0, 10**6))
def test_what_is_walked_is_what_a_graph_shows(name, n, soft, seed):
    shape, build = SERVED[name]
    torch.manual_seed(seed)
    model = build()
    x = torch.randint(0, 256, (n, *shape), dtype=torch.uint8) if name == "normalised" else torch.randn(n, *shape)
    target = torch.rand(n, C).softmax(1) if soft else torch.randint(0, C, (n,))
    torch.manual_seed(seed)
    seen = walked(model, x, target)
    inputs, outputs = {}, {}

    def keep(layer, args, out):
        inputs[layer], outputs[layer] = args[0].clone(), get_gradient_edge(out)  # before anything overwrites them

    for layer in model.modules():
        if layer._parameters:
            layer.register_forward_hook(keep)
    torch.manual_seed(seed)
    loss = cross_entropy(model(x), target, reduction="sum")
    expected = torch.autograd.grad(loss, list(outputs.values()))
    assert [layer for layer, _, _ in seen] == list(outputs)
    for (layer, a, b), e in zip(seen, expected, strict=True):
        assert torch.equal(a, inputs[layer]) and torch.equal(b, e)
    assert walked(model, x, target) is None  # now it is hooked
