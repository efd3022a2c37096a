"""The gradient of a chain of layers without autograd has the bits of autograd's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.module import register_module_forward_hook

from fedbench.core.models.residual import ResNet18
from fedbench.core.models.sequential import MLP, SmallCNN
from fedbench.core.numerics.chain import Chain
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.wrappers import Normalised

C, CPU, X = 5, torch.device("cpu"), torch.randn(2, 4)
Make = Callable[[], Any]


# -- the gradient of a chain of layers -------------------------------------------------------------


def odd_net() -> nn.Module:
    """Every kind of layer, strides, dilation, groups, no bias, a nested chain, dropout on images
    and on rows.
    """
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, stride=2, dilation=2, groups=2, bias=False),
        nn.GroupNorm(2, 8),
        nn.Tanh(),
        nn.Dropout(0.3),
        nn.Sequential(
            nn.Conv2d(8, 6, (1, 3), padding=(0, 1)),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        ),
        nn.Flatten(),
        nn.ReLU(),
        nn.Linear(6 * 3 * 3, 7),
        nn.Dropout(0.5, inplace=True),
        nn.ReLU(),
        nn.Linear(7, C),
    )


SERVED: dict[str, tuple[tuple[int, ...], Make]] = {
    "odd": ((2, 14, 14), odd_net),
    "normalised": (
        (3, 8, 8),
        lambda: Normalised(
            SmallCNN(channels=4).build((3, 8, 8), C), (0.5, 0.4, 0.3), (0.2, 0.3, 0.1)
        ),
    ),
}


def drawn_of(name: str, n: int, soft: bool) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model, a batch of ``n`` samples and its labels."""
    shape, build = SERVED[name]
    x = torch.randn(n, *shape)
    if name == "normalised":
        x = torch.randint(0, 256, (n, *shape), dtype=torch.uint8)
    return build(), x, torch.rand(n, C).softmax(1) if soft else torch.randint(0, C, (n,))


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(SERVED)),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_a_chains_gradient_is_autograds_bit_by_bit(name, n, soft, training, seed):
    torch.manual_seed(seed)
    model, x, target = drawn_of(name, n, soft)
    flat, before = FlatModel(model.train(training), CPU), x.clone()
    torch.manual_seed(seed)
    cross_entropy(flat.module(x), target).backward()
    expected, drawn = flat.grad.clone(), torch.rand(1)
    flat.grad.fill_(7.0)
    torch.manual_seed(seed)
    Chain.of(flat, x).gradient(x, target)
    assert torch.equal(flat.grad, expected)
    assert torch.equal(torch.rand(1), drawn) and torch.equal(x, before)


def changed(change: Callable[[Any], Any]) -> Make:
    """A small network after this change."""

    def made() -> nn.Module:
        net = MLP(hidden=(4,)).build((4,), C)
        change(net)
        return net

    return made


NOT_SERVED: dict[str, Make] = {
    "a layer of another kind": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, C)
    ),
    "a hook": changed(lambda net: net[1].register_forward_hook(lambda layer, args, out: out + 1)),
    "a frozen weight": changed(lambda net: net[1].weight.requires_grad_(False)),
    "a parameter's hook": changed(lambda net: net[1].weight.register_hook(lambda g: 2 * g)),
    "branches": lambda: ResNet18().build((3, 8, 8), C),
    "no chain at all": lambda: nn.Bilinear(2, 2, C),
}


def test_what_no_chain_serves_is_left_to_autograd():
    for what, make in NOT_SERVED.items():
        assert Chain.of(FlatModel(make(), CPU), X) is None, what
    flat = FlatModel(MLP(hidden=(4,)).build((4,), C), CPU)
    hook = register_module_forward_hook(lambda layer, args, out: None)
    try:
        assert Chain.of(flat, X) is None
    finally:
        hook.remove()
    assert Chain.of(flat, X) is not None
    with pytest.raises(RuntimeError, match="out of bounds"):
        Chain.of(flat, X).gradient(X, torch.tensor([0, C]))
