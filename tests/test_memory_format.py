"""`memory_format: channels_last` reaches the network while clients train, and nothing else."""

from __future__ import annotations

import pytest
import torch
from running import changed
from torch import nn

from fedbench.core.cli.run import build_plan
from fedbench.core.experiment.parts import build
from fedbench.core.experiment.scene import set_scene
from fedbench.core.experiment.train import fresh_models
from fedbench.core.models.cnn_small import SmallCNN
from fedbench.core.numerics.clipped import clipped_gradient
from fedbench.core.numerics.memory_format import in_memory_format
from fedbench.core.numerics.per_sample import per_sample_gradients

SETTING = {
    "name": "digits", "dataset": {"name": "digits", "params": {"test": 100, "holdout": 100}}, "model": "cnn-small",
    "federation": {"clients": 4, "rounds": 2, "batch_size": 50, "optimizer": {"lr": 0.2}, "memory_format": "channels_last"},
}  # fmt: skip


def layouts(module: nn.Module) -> list[bool]:
    """Whether each batch that reaches the first convolution has its channels last; filled as it is called."""
    seen: list[bool] = []
    first = next(m for m in module.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_pre_hook(lambda m, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last)))
    return seen


def test_only_training_has_the_channels_last():
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    plain = SmallCNN().build((3, 8, 8), 4)
    module = in_memory_format(plain, "channels_last")
    seen = layouts(module)
    trained, judged = module.train()(x), module.eval()(x)
    assert seen == [True, False]
    torch.testing.assert_close(trained, judged, rtol=1e-5, atol=1e-6)
    assert in_memory_format(plain, "contiguous") is plain


def test_a_suite_that_says_so_trains_so(tmp_path):
    for said, wanted in (("channels_last", True), ("contiguous", False)):
        setting = {**SETTING, "federation": {**SETTING["federation"], "memory_format": said}}
        job = build_plan(str(changed(tmp_path, setting)), (), tmp_path / "r", "cpu").jobs[0]
        parts = build(job)
        data = set_scene(job, parts).data
        flat, _ = fresh_models(job, parts.model, data, torch.device("cpu"), 1)
        names = [type(m).__name__ for m in flat.module.modules()]
        assert ("ChannelsLastTraining" in names) == wanted


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_each_sample_are_had_as_ever(training):
    plain = SmallCNN().build((3, 8, 8), 4).train(training)
    module = in_memory_format(plain, "channels_last").train(training)
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 3, 8, 8, generator=g), torch.randint(0, 4, (6,), generator=g)
    torch.testing.assert_close(per_sample_gradients(module, x, y), per_sample_gradients(plain, x, y), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(clipped_gradient(module, x, y, 0.5), clipped_gradient(plain, x, y, 0.5), rtol=1e-4, atol=1e-6)
