"""Signals of trained and of label-only attackers against their definitions, and signals that are vectors."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from layered import one_backward_a_sample
from tiny import tiny_module, tiny_setup
from torch import nn

from fedbench.core import Signal
from fedbench.core.federation.loop import Training
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.normalise import Normalised
from fedbench.core.signals import room
from fedbench.core.signals.ask import Asked, SignalError
from fedbench.core.signals.gradients import UploadGradSq
from fedbench.core.signals.logits import Logits, Loss
from fedbench.core.signals.measure import Recorder, global_row
from fedbench.core.signals.observe import observe
from fedbench.core.signals.robustness import Robustness

CLASSES = 3
MEAN, STD = (0.3, 0.5), (0.2, 0.4)


def seeded(key: int) -> torch.Generator:
    return torch.Generator().manual_seed(key)


def asked(signal: Signal, module: nn.Module, x: torch.Tensor, y: torch.Tensor, chunk: int | None = None) -> torch.Tensor:
    """As the engine asks."""
    flat = FlatModel(module, torch.device("cpu"))
    flat.module.eval()
    pairs = list(zip(x.split(chunk or len(x)), y.split(chunk or len(x)), strict=True))
    with torch.no_grad():
        return Asked(signal, "'mine'", flat).row(torch.zeros_like(flat.params), pairs, [flat.module(part) for part, _ in pairs])


# -- upload-grad-sq ----------------------------------------------------------------------------------------------------


def test_upload_grad_sq_is_the_gradient_of_each_sample_at_the_uploaded_model():
    setup = tiny_setup(rounds=1)
    x, y = torch.randn(40, 4, generator=seeded(5)), torch.randint(0, 3, (40,), generator=seeded(6))
    recorder = Recorder(setup.flat, x, y, {"upload-grad-sq": UploadGradSq()}, True, 4, (), {"server"}, [12] * 4)
    (result,) = Training(setup).rounds()
    recorder.record(result)
    found, received = recorder.arrays()["upload-grad-sq"][0], recorder.arrays()["grad-sq"][0, 0]
    for k in range(4):
        flat = FlatModel(tiny_module(), torch.device("cpu"))
        flat.params.copy_(result.uploads.starts[0] + result.uploads.updates[k])
        wanted = one_backward_a_sample(flat.module, x, y).square().sum(1)
        torch.testing.assert_close(torch.from_numpy(found[k]), wanted, rtol=1e-4, atol=1e-7)
        assert (abs(found[k] - received) > 1e-3).any()


# -- robustness --------------------------------------------------------------------------------------------------------


class Warped(nn.Module):
    """The same order of classes, other probabilities."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x).pow(3) / 7


class Spied(nn.Module):
    """Keeps what it, or the copy of it that a signal is handed, is asked."""

    inputs: ClassVar[list[torch.Tensor]] = []

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.inputs.clear()

    def forward(self, x):
        self.inputs.append(x.clone())
        return self.module(x)


def pictures(n: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    g = seeded(2)
    return torch.randint(0, 256, (n, 2, 6, 5), generator=g, dtype=torch.uint8), torch.randint(0, 3, (n,), generator=g)


def net() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(60, 3))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=seeded(1)) * 0.5)
    return module


def small() -> Robustness:
    return Robustness(copies=4, levels=(0.2, 0.8), rates=(0.1, 0.3))


@pytest.mark.parametrize("kind", ["bytes", "floats", "bits"])
def test_robustness_reads_labels_alone(kind):
    x, y = pictures()
    x = {"bytes": x, "floats": x.float().flatten(1) / 60 - 2, "bits": (x.flatten(1) > 99).float()}[kind]
    plain, warped = (Normalised(m, MEAN, STD) if kind == "bytes" else m for m in (net(), Warped(net())))
    found = asked(small(), plain, x, y)
    assert torch.equal(found, asked(small(), warped, x, y))
    assert found.min() >= 0 and found.max() <= 1 and len(found.unique()) > 3


def test_a_samples_robustness_depends_on_no_other_sample():
    x, y = pictures()
    floats = x.float().flatten(1) / 60 - 2
    floats[::3] = (floats[::3] > 0).float()  # some of 0 and 1, among others
    found, order = asked(small(), net(), floats, y), torch.randperm(24, generator=seeded(0))
    assert torch.equal(found, asked(small(), net(), floats, y, chunk=5))
    assert torch.equal(found[order], asked(small(), net(), floats[order], y[order]))


def test_bytes_are_perturbed_as_the_floats_that_the_model_takes():
    x, y = pictures()
    spy = Spied(net())
    inside = Normalised(spy, MEAN, STD)
    asked(Robustness(copies=50, levels=(0.3,), shift=0, mirror=False), inside, x, y)
    noise = torch.stack(spy.inputs[1:]) - inside.normalise(x)
    assert len(noise) == 50 and float(noise.std()) == pytest.approx(0.3, rel=0.05)  # in units of the normalised input
    assert torch.allclose(noise[:, 0], noise[:, 7], atol=1e-6)  # the same draw for every sample


def test_images_are_shifted_and_mirrored_too():
    x, y = pictures(1)
    x, spy = x.float() / 255, Spied(net())
    asked(Robustness(copies=40, levels=(1e-6,), shift=1), spy, x, y)
    moved = torch.cat(spy.inputs[41:])
    wide = nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
    wanted = torch.cat([wide[:, :, i : i + 6, j : j + 5] for i in range(3) for j in range(3)])
    wanted = torch.cat([wanted, wanted.flip(3)])
    assert len(moved) == 40 and all((wanted == m).flatten(1).all(1).any() for m in moved)
    assert len({m.numpy().tobytes() for m in moved}) > 9


def test_bits_stay_bits():
    x, y = pictures()
    bits, spy = (x.flatten(1) > 99).float(), Spied(net())
    asked(Robustness(copies=100, rates=(0.2,)), spy, bits, y)
    copies = torch.stack(spy.inputs[1:])
    assert set(copies.unique().tolist()) == {0.0, 1.0} and len(copies) == 100
    assert float((copies != bits).float().mean()) == pytest.approx(0.2, abs=0.02)


def test_a_prediction_far_from_the_boundary_is_robust():
    module = nn.Linear(1, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0], [-1.0]])), module.bias.zero_()
    x = torch.tensor([[5.0], [0.05], [-5.0]])
    far, near, wrong = asked(small(), module, x, torch.zeros(3, dtype=torch.int64)).tolist()
    assert far == 1 and wrong == 0 and 0 < near < 1


def test_tokens_cannot_be_perturbed():
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(SignalError, match="it perturbs floats and byte images; these samples are int64"):
        asked(Robustness(), module, torch.randint(0, 9, (5, 3)), torch.zeros(5, dtype=torch.int64))


# -- signals that are vectors ------------------------------------------------------------------------------------------


class Grows(Signal):
    """Longer with every round."""

    vector = True

    def measure(self, probe):
        self.calls = getattr(self, "calls", 0) + 1
        return probe.logits[:, :1].repeat(1, self.calls)


class Flat(Signal):
    """Declared a vector, and a number."""

    vector = True

    def measure(self, probe):
        return probe.logits.amax(1)


class Empty(Signal):
    vector = True

    def measure(self, probe):
        return probe.logits[:, :0]


class Undeclared(Signal):
    def measure(self, probe):
        return probe.logits


class PartlyNaN(Signal):
    vector = True

    def measure(self, probe):
        out = probe.logits.clone()
        out[3, 1] = torch.nan
        return out


def recorded(views=("server", "client"), rounds=2, clients=4, **signals):
    """(recorder, clients present in each round, labels) of a federation in which half of the clients take part."""
    setup = tiny_setup(rounds=rounds, participation=0.5)
    x, y = torch.randn(40, 4, generator=seeded(5)), torch.randint(0, CLASSES, (40,), generator=seeded(6))
    made = {name: signal() for name, signal in signals.items()}
    recorder = Recorder(setup.flat, x, y, made, False, clients, setup.members, set(views), [12] * 4, rounds=rounds)
    present = []
    for result in Training(setup).rounds():
        recorder.record(result)
        present.append(result.uploads.participants)
    return recorder, present, y


def test_a_vector_is_measured_beside_a_number_which_is_what_it_was():
    recorder, present, y = recorded(loss=Loss, logits=Logits)
    arrays = recorder.arrays()
    assert arrays["logits"].shape == (2, 5, 40, CLASSES) and arrays["logits"].dtype == np.float32
    np.testing.assert_array_equal(arrays["loss"], recorded(loss=Loss)[0].arrays()["loss"])
    log_p = torch.from_numpy(arrays["logits"]).log_softmax(-1).numpy()
    np.testing.assert_allclose(arrays["loss"], -log_p[:, :, np.arange(40), y], rtol=1e-5, atol=1e-6)
    for r, there in enumerate(present):
        absent = [k for k in range(4) if k not in there]
        assert len(absent) == 2 and np.isnan(arrays["logits"][r, absent]).all() and np.isfinite(arrays["logits"][r, there]).all()


def test_rounds_without_a_client_that_is_seen_are_blank():
    arrays = recorded(views=("coalition",), rounds=6, clients=2, logits=Logits)[0].arrays()["logits"]
    assert arrays.shape == (6, 1, 40, CLASSES)
    blank = np.isnan(arrays).all((1, 2, 3))
    assert 0 < blank.sum() < 6 and np.isfinite(arrays[~blank]).all()


@pytest.mark.parametrize(("cls", "said"), [
    (Grows, "round 1: it returned float32 [40, 2] on cpu; expected float32 [40, 1] on cpu, as long as its first answer"),
    (Flat, "before round 1: it returned float32 [16] on cpu; expected float32 [16, d] on cpu, d >= 1, since its `vector`"),
    (Empty, "before round 1: it returned float32 [16, 0] on cpu; expected float32 [16, d] on cpu"),
    (Undeclared, "round 1: it returned float32 [40, 3] on cpu; expected float32 [40] on cpu"),
    (PartlyNaN, "before round 1: 1 of its 16 vectors are not finite, though the logits are"),
])  # fmt: skip
def test_a_wrong_vector_costs_itself_alone(cls, said):
    recorder, _, _ = recorded(loss=Loss, wrong=cls)
    assert f"signal 'wrong': {said}" in recorder.failed["wrong"]
    np.testing.assert_array_equal(recorder.arrays()["loss"], recorded(loss=Loss)[0].arrays()["loss"])
    assert set(recorder.arrays()) == {"loss"}


@pytest.mark.parametrize("view", ["server", "redrawn", "client", "external"])
def test_a_view_cuts_its_rows_rounds_and_candidates_out(view):
    """``redrawn``: the server's, with candidates of their own for every round and client, as in the released code."""
    rng = np.random.default_rng(0)
    a, n = rng.normal(size=(3, 6, 20, 2)).astype(np.float32), 7  # four clients and two global models
    served, rounds = rng.integers(0, 2, (3, n)), np.array([1, 2, 3])
    pick = np.broadcast_to(rng.integers(0, 20, n), (3, 4, n)) if view != "redrawn" else rng.integers(0, 20, (3, 4, n))
    of_server, given = view in ("server", "redrawn"), pick if view == "redrawn" else pick[0, 0]
    seen = observe("server" if of_server else view, 2 if of_server else None, [0, 1, 2, 3, global_row(0), global_row(1)], rounds,
                   {"v": a, "one": a[..., 0], "shared": a[:, :1, :, 0]}, given, served)  # fmt: skip
    if of_server:
        every = np.array([[a[r, k, pick[r, k]] for k in range(4)] for r in range(3)])
        target, others = every[:, 2], every[:, [0, 1, 3]]
        np.testing.assert_array_equal(seen.of_others("v"), others)
    else:
        target = np.array([[a[r, 4 + served[r, i], pick[r, 0, i]] for i in range(n)] for r in range(3)])
    shared = np.array([a[r, 0, pick[r, 2], 0] for r in range(3)])  # one row for all clients
    target, shared = (target[-1:], shared[-1:]) if view == "external" else (target, shared)
    np.testing.assert_array_equal(seen.of_target("shared"), shared)
    np.testing.assert_array_equal(seen.of_target("v"), target)
    np.testing.assert_array_equal(seen.of_target("one"), target[..., 0])
    assert seen.rounds.tolist() == ([3] if view == "external" else [1, 2, 3])


def test_a_vector_that_does_not_fit_into_memory_is_refused_before_training(monkeypatch):
    size = 4 * 2 * 5 * 40 * CLASSES
    monkeypatch.setattr(room, "MOST_BYTES", size - 1)
    refused = recorded(loss=Loss, logits=Logits)[0]
    wanted = "before round 1: 2 audited rounds x 5 rows x 40 samples x 3 components of 4 bytes are 0.0 MiB"
    assert wanted in refused.refused["logits"] and set(refused.arrays()) == {"loss"}
    monkeypatch.setattr(room, "MOST_BYTES", size)
    assert recorded(logits=Logits)[0].arrays()["logits"].nbytes == size
