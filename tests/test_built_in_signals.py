"""The signals of trained and of label-only attackers against their definitions."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_module, tiny_setup
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from worlds import measured

from fedbench.core.federation.loop import Training
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.normalise import Normalised
from fedbench.core.signals.ask import Asked, SignalError
from fedbench.core.signals.gradients import UploadGradSq
from fedbench.core.signals.measure import Recorder
from fedbench.core.signals.robustness import Robustness

MEAN, STD = (0.3, 0.5), (0.2, 0.4)


def asked(signal, module, x, y, chunk=None):
    """As the engine asks."""
    flat = FlatModel(module, torch.device("cpu"))
    flat.module.eval()
    pairs = list(zip(x.split(chunk or len(x)), y.split(chunk or len(x)), strict=True))
    with torch.no_grad():
        return Asked(signal, "'mine'", flat).row(torch.zeros_like(flat.params), pairs, [flat.module(part) for part, _ in pairs])


def seeded(module, key=1):
    g = torch.Generator().manual_seed(key)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * 0.5)
    return module


class Warped(nn.Module):
    """The same order of classes, other probabilities."""

    def __init__(self, module, temperature=None):
        super().__init__()
        self.module, self.temperature = module, temperature

    def forward(self, x):
        logits = self.module(x)
        return logits.pow(3) if self.temperature is None else logits / self.temperature


class Spied(nn.Module):
    """Notes what it is asked."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        INPUTS.append(x.clone())
        return self.module(x)


INPUTS: list[torch.Tensor] = []


def pictures(n=24, key=2):
    g = torch.Generator().manual_seed(key)
    return torch.randint(0, 256, (n, 2, 6, 5), generator=g, dtype=torch.uint8), torch.randint(0, 3, (n,), generator=g)


def net():
    return seeded(nn.Sequential(nn.Flatten(), nn.Linear(60, 3)))


def small(**params):
    return Robustness(copies=4, levels=(0.2, 0.8), rates=(0.1, 0.3), **params)


# --- logits and uniform-loss ------------------------------------------------------------------------------------------


def test_logits_are_the_models_own():
    z = torch.randn(5, 4, dtype=torch.float64)
    found = measured("logits", z, torch.zeros(5, dtype=torch.int64))
    assert found.dtype == torch.float32 and torch.equal(found, z.float())


def test_uniform_loss_is_the_mean_over_the_classes():
    z = 3 * torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(50, dtype=torch.int64)
    uniform = torch.full((50, 7), 1 / 7, dtype=torch.float64)
    torch.testing.assert_close(measured("uniform-loss", z, y).double(), cross_entropy(z.double(), uniform, reduction="none"),
                               rtol=1e-6, atol=0)  # fmt: skip


def test_uniform_loss_tells_saturated_predictions_apart():
    z = torch.tensor([[300.0, 0, 0, 0], [300.5, 0, 0, 0], [1e4, -1e4, 3, 3]])
    found = measured("uniform-loss", z, torch.zeros(3, dtype=torch.int64))
    assert found.tolist() == [225.0, 225.375, pytest.approx(1e4 - 1.5, rel=1e-7)]


# --- upload-grad-sq ---------------------------------------------------------------------------------------------------


def oracle(module, x, y):
    """[n] float64: |gradient|^2 of each sample alone."""
    module = module.double()
    params = {name: p.detach() for name, p in module.named_parameters()}

    def loss(params, sample, label):
        return cross_entropy(functional_call(module, params, (sample[None],)), label[None])

    grads = vmap(grad(loss), in_dims=(None, 0, 0))(params, x.double(), y)
    return sum(g.flatten(1).square().sum(1) for g in grads.values())


def convolutional():
    return seeded(nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)))


@pytest.mark.parametrize("chunk", [24, 7])
def test_upload_grad_sq_is_the_gradient_of_each_sample_alone(chunk):
    x, y = pictures()
    floats = x.float() / 255
    found = asked(UploadGradSq(), convolutional(), floats, y, chunk)
    torch.testing.assert_close(found.double(), oracle(convolutional(), floats, y), rtol=1e-4, atol=1e-7)


def test_upload_grad_sq_is_taken_at_the_uploaded_model():
    setup = tiny_setup(rounds=1)
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(40, 4, generator=g), torch.randint(0, 3, (40,), generator=g)
    recorder = Recorder(setup.flat, x, y, {"upload-grad-sq": UploadGradSq()}, True, 4, (), {"server"}, [12] * 4)
    (result,) = Training(setup).rounds()
    recorder.record(result)
    found, received = recorder.arrays()["upload-grad-sq"][0], recorder.arrays()["grad-sq"][0, 0]
    for k in range(4):
        flat = FlatModel(tiny_module(), torch.device("cpu"))
        flat.params.copy_(result.uploads.starts[0] + result.uploads.updates[k])
        torch.testing.assert_close(torch.from_numpy(found[k]).double(), oracle(flat.module, x, y), rtol=1e-4, atol=1e-7)
        assert (abs(found[k] - received) > 1e-3).any()


# --- robustness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.01, 7.0, None])
@pytest.mark.parametrize("kind", ["bytes", "floats", "bits"])
def test_robustness_reads_labels_alone(kind, temperature):
    x, y = pictures()
    x = {"bytes": x, "floats": x.float().flatten(1) / 60 - 2, "bits": (x.flatten(1) > 99).float()}[kind]
    plain, warped = (Normalised(m, MEAN, STD) if kind == "bytes" else m for m in (net(), Warped(net(), temperature)))
    found = asked(small(), plain, x, y)
    assert torch.equal(found, asked(small(), warped, x, y))
    assert found.min() >= 0 and found.max() <= 1 and len(found.unique()) > 3


@pytest.mark.parametrize("chunk", [1, 5])
def test_a_samples_robustness_depends_on_no_other_sample(chunk):
    x, y = pictures()
    floats = x.float().flatten(1) / 60 - 2
    floats[::3] = (floats[::3] > 0).float()  # some of 0 and 1, among others
    assert torch.equal(asked(small(), net(), floats, y), asked(small(), net(), floats, y, chunk))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(asked(small(), net(), floats, y)[order], asked(small(), net(), floats[order], y[order]))


def test_bytes_are_perturbed_as_the_floats_that_the_model_takes():
    x, y = pictures()
    inside = Normalised(net(), MEAN, STD)
    assert torch.equal(asked(small(), inside, x, y), asked(small(), net(), inside.normalise(x), y))
    INPUTS.clear()
    asked(Robustness(copies=50, levels=(0.3,), shift=0, mirror=False), Normalised(Spied(net()), MEAN, STD), x, y)
    noise = torch.stack(INPUTS[1:]) - inside.normalise(x)
    assert len(noise) == 50 and float(noise.std()) == pytest.approx(0.3, rel=0.05)  # in units of the normalised input
    assert torch.allclose(noise[:, 0], noise[:, 7], atol=1e-6)  # the same draw for every sample


def test_images_are_shifted_and_mirrored_too():
    x, y = pictures(1)
    x = x.float() / 255
    INPUTS.clear()
    asked(Robustness(copies=40, levels=(1e-6,), shift=1), Spied(net()), x, y)
    moved = torch.cat(INPUTS[41:])
    wide = nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
    wanted = torch.cat([wide[:, :, i : i + 6, j : j + 5] for i in range(3) for j in range(3)])
    wanted = torch.cat([wanted, wanted.flip(3)])
    assert len(moved) == 40 and all((wanted == m).flatten(1).all(1).any() for m in moved)
    assert len({m.numpy().tobytes() for m in moved}) > 9


def test_bits_stay_bits():
    x, y = pictures()
    bits = (x.flatten(1) > 99).float()
    INPUTS.clear()
    asked(Robustness(copies=100, rates=(0.2,)), Spied(net()), bits, y)
    copies = torch.stack(INPUTS[1:])
    assert set(copies.unique().tolist()) == {0.0, 1.0} and len(copies) == 100
    assert float((copies != bits).float().mean()) == pytest.approx(0.2, abs=0.02)


def test_a_prediction_far_from_the_boundary_is_robust():
    x = torch.tensor([[5.0], [0.05], [-5.0]])
    module = nn.Linear(1, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0], [-1.0]])), module.bias.zero_()
    far, near, wrong = asked(small(), module, x, torch.zeros(3, dtype=torch.int64)).tolist()
    assert far == 1 and wrong == 0 and 0 < near < 1


def test_tokens_cannot_be_perturbed():
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(SignalError, match="it perturbs floats and byte images; these samples are int64"):
        asked(Robustness(), module, torch.randint(0, 9, (5, 3)), torch.zeros(5, dtype=torch.int64))
