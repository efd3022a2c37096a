"""Label smoothing, confidence penalty, weight decay and dropout against what makes each of them that method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parties import facts_of, generator, member_context
from tiny import tiny_module, tiny_setup, train_all
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core import Batch, Defense, MemberContext, MemberData, UserError
from fedbench.core.federation.compose import Composite
from fedbench.plugins.defenses.confidence_penalty import ConfidencePenalty
from fedbench.plugins.defenses.dp_sgd import DPSGD
from fedbench.plugins.defenses.dropout import Dropout, dropped
from fedbench.plugins.defenses.label_smoothing import LabelSmoothing
from fedbench.plugins.defenses.mixup import Mixup
from fedbench.plugins.defenses.weight_decay import WeightDecay

CLASSES = 4


def three_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def member(module: nn.Module | None = None, **fields) -> MemberContext:
    module = (module or three_layers()).double()
    data = MemberData(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
    known = facts_of(sum(p.numel() for p in module.parameters()), n_classes=CLASSES)
    return member_context(module, data, known, weights=7, **fields)


class Training:
    """A local training of one epoch."""

    def __init__(self, epoch) -> None:
        self._epoch = epoch

    def epochs(self):
        self._epoch()
        yield 0


def batch(n: int = 8, seed: int = 0) -> Batch:
    g = generator(seed)
    x, y = torch.randn(n, 6, generator=g, dtype=torch.float64), torch.randint(0, CLASSES, (n,), generator=g)
    return Batch(x, y, torch.arange(n))


def gradient(defense: Defense, b: Batch, ctx: MemberContext) -> torch.Tensor:
    b = defense.transform(b, ctx)
    return ctx.gradient(defense.loss(ctx.model(b.x), b, ctx))


# -- label smoothing -------------------------------------------------------------------------------------------------


@given(st.floats(0, 0.99))
def test_smoothed_targets_are_those_of_membershield(theta):
    ctx, b = member(), batch()
    soft = LabelSmoothing(strength=theta).transform(b, ctx).soft
    expected = np.full((8, CLASSES), theta / CLASSES)  # MemberShield, equation 2: (1 - theta) one-hot + theta / C
    expected[np.arange(8), b.y.numpy()] += 1 - theta
    np.testing.assert_allclose(soft.numpy(), expected, rtol=1e-12, atol=1e-15)


def test_label_smoothing_is_torchs_own_loss_and_smooths_soft_targets_too():
    ctx, b = member(), batch()
    smoothed = LabelSmoothing(strength=0.3).transform(b, ctx)
    logits = ctx.model(b.x)
    torch.testing.assert_close(LabelSmoothing().loss(logits, smoothed, ctx), cross_entropy(logits, b.y, label_smoothing=0.3))
    mixed = Mixup(alpha=1.0).transform(b, ctx)
    twice = LabelSmoothing(strength=0.3).transform(mixed, ctx).soft
    torch.testing.assert_close(twice, 0.7 * mixed.soft + 0.3 / CLASSES)


# -- confidence penalty ----------------------------------------------------------------------------------------------


def test_the_gradient_of_the_confidence_penalty_is_the_papers():
    ctx, b, beta = member(), batch(), 0.7
    logits = torch.randn(8, CLASSES, generator=generator(3), dtype=torch.float64, requires_grad=True)
    ConfidencePenalty(strength=beta).loss(logits, b, ctx).backward()
    p = np.exp(logits.detach().numpy())
    p /= p.sum(1, keepdims=True)
    entropy = -(p * np.log(p)).sum(1, keepdims=True)
    one_hot = np.eye(CLASSES)[b.y.numpy()]
    # Pereyra et al., section 3: dH/dz_i = p_i (-log p_i - H)
    expected = (p - one_hot - beta * p * (-np.log(p) - entropy)) / 8
    np.testing.assert_allclose(logits.grad.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_the_confidence_penalty_honours_soft_targets():
    ctx, b = member(), LabelSmoothing(strength=0.5).transform(batch(), member())
    logits = ctx.model(b.x)
    assert torch.equal(ConfidencePenalty(strength=0).loss(logits, b, ctx), cross_entropy(logits, b.soft))


# -- weight decay ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "decayed"), [(1, [4]), (2, [2, 4]), ("all", [0, 2, 4])])
def test_the_gradient_of_weight_decay_is_two_lambda_w_on_the_last_layers(layers, decayed):
    ctx, b = member(), batch()
    extra = gradient(WeightDecay(strength=0.3, layers=layers), b, ctx) - gradient(Defense(), b, ctx)
    expected = torch.cat([
        (0.6 * p if name.endswith("weight") and int(name[0]) in decayed else 0 * p).detach().reshape(-1)
        for name, p in ctx.model.named_parameters()
    ])  # fmt: skip
    torch.testing.assert_close(extra, expected, rtol=1e-9, atol=1e-12)


# -- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.25, 0.5, 0.75])
def test_dropout_keeps_the_expectation_and_zeroes_that_share(rate):
    x = torch.full((40_000,), 3.0)
    out = dropped(x, rate, generator(0))
    assert out.mean().item() == pytest.approx(3.0, rel=0.03)
    assert (out == 0).float().mean().item() == pytest.approx(rate, abs=0.01)
    torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 3 / (1 - rate)))
    assert torch.equal(dropped(x, 0.0, generator(0)), x)


def recorded(ctx_of, rate: float = 0.5, layers: int | str = 1, training: bool = True) -> tuple[list[torch.Tensor], nn.Module]:
    """Outputs of three forward passes inside ``local_train``."""
    module, outputs = three_layers(), []

    def run() -> None:
        module.train(training)
        outputs.extend(module(batch().x).detach() for _ in range(3))

    Dropout(rate=rate, layers=layers).local_train(ctx_of(module, training=Training(run)))
    return outputs, module


def test_dropout_changes_what_is_trained_and_nothing_in_eval_mode():
    trained, module = recorded(member)
    plain = module(batch().x)
    assert all(not torch.allclose(out, plain) for out in trained)
    assert not torch.equal(trained[0], trained[1])  # another mask in every step
    measured, module = recorded(member, training=False)
    assert all(torch.equal(out, module(batch().x)) for out in measured)


def test_dropout_draws_the_same_masks_whatever_torchs_own_generator_does():
    torch.manual_seed(1)
    first, _ = recorded(member)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, recorded(member)[0], strict=True))
    other, _ = recorded(lambda *args, **fields: member(*args, key=2, **fields))
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize(("layers", "reached"), [(1, [4]), (2, [2, 4]), ("all", [0, 2, 4])])
def test_dropout_acts_before_as_many_of_the_last_layers_as_it_is_told(layers, reached):
    module, zeroed = three_layers(), []

    def look(layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        zeroed.extend(i for i in (0, 2, 4) if layer is module[i] and bool((inputs[0] == 0).any()))

    for i in (0, 2, 4):
        module[i].register_forward_hook(look)
    ctx = member(module, training=Training(lambda: module.train()(batch(200).x)))
    Dropout(rate=0.5, layers=layers).local_train(ctx)
    assert zeroed == reached


def test_dropout_leaves_no_hook_behind_even_when_training_fails():
    def fails() -> None:
        raise ValueError("no more")

    module = three_layers()
    before = [len(layer._forward_pre_hooks) for layer in module]
    with pytest.raises(ValueError, match="no more"):
        Dropout().local_train(member(module, training=Training(fails)))
    assert [len(layer._forward_pre_hooks) for layer in module] == before == [0] * 5


def test_dropout_gives_each_sample_of_dp_sgd_a_mask_of_its_own():
    """Gradients of the samples of a batch of copies: equal without dropout, each its own with it."""
    module, found = three_layers(), {}
    same = Batch(batch(1).x.expand(6, 6).contiguous(), torch.zeros(6, dtype=torch.int64), torch.arange(6))

    def run() -> None:
        module.train()
        found["rows"] = member(module).per_sample_gradients(same.x, same.y)

    Dropout(rate=0.5).local_train(member(module, training=Training(run)))
    assert len(found["rows"].unique(dim=0)) > 1
    plain = member(module).per_sample_gradients(same.x, same.y)
    torch.testing.assert_close(plain, plain[:1].expand_as(plain))


# -- together, and where there is nothing to act on ------------------------------------------------------------------


def uploads(defense: Defense | None, **changes) -> torch.Tensor:
    _, results = train_all(tiny_setup(defense, **changes))
    return torch.stack([r.uploads.updates for r in results])


def test_dropout_and_weight_decay_go_together_as_in_the_papers_grid():
    def both() -> Defense:
        return Composite([Dropout(rate=0.25), WeightDecay(strength=0.1)])

    found = uploads(both())
    assert torch.equal(found, uploads(both()))
    apart = [uploads(d) for d in (None, Dropout(rate=0.25), WeightDecay(strength=0.1))]
    assert all(not torch.allclose(found[:, :2], other[:, :2]) for other in apart)
    assert torch.equal(found[0, 2:], apart[0][0, 2:])  # who does not defend trains plainly
    torch.testing.assert_close(uploads(Composite([Dropout(rate=0), WeightDecay(strength=0)])), apart[0])


def test_smoothing_goes_with_a_penalty_and_two_losses_do_not():
    found = uploads(Composite([LabelSmoothing(strength=0.2), ConfidencePenalty(strength=0.2)]))
    alone = uploads(ConfidencePenalty(strength=0.2))
    assert not torch.allclose(found[0, :2], alone[0, :2])
    with pytest.raises(UserError, match=r"'WeightDecay' .* and 'ConfidencePenalty' .*each replaces 'loss'"):
        Composite([WeightDecay(), ConfidencePenalty()])
    with pytest.raises(UserError, match="dp-sgd works on hard labels"):
        uploads(Composite([LabelSmoothing(), DPSGD()]))


@pytest.mark.parametrize(("defense", "name"), [(Dropout, "dropout"), (WeightDecay, "weight-decay")])
def test_a_model_without_enough_linear_layers_is_refused_by_name(defense, name):
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    with pytest.raises(UserError, match=rf"client 0, round 1\): {name} acts on the last 1 .* Table has none: choose another"):
        uploads(defense(), module=Table())
    with pytest.raises(UserError, match=rf"\(client 0, round 1\): {name} acts on the last 3 .* has only 2: use layers: 2"):
        uploads(defense(layers=3), module=tiny_module())
