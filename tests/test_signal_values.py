"""Signals of trained and of label-only attackers against their definitions, and signals that are
vectors.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from parties import generator
from tiny import drawn, record_all, tiny_setup
from torch import nn

from fedbench.core import Signal
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.wrappers import Normalised
from fedbench.core.run.observations import observe
from fedbench.core.signals import measure
from fedbench.core.signals.builtin import Logits, Loss, Robustness
from fedbench.core.signals.measure import GLOBAL, global_row
from fedbench.core.signals.probes import SignalCall, SignalError

CLASSES = 3
MEAN, STD = (0.3, 0.5), (0.2, 0.4)


def asked(
    signal: Signal, module: nn.Module, x: torch.Tensor, y: torch.Tensor, chunk: int | None = None
) -> torch.Tensor:
    """As the engine asks."""
    flat = FlatModel(module, torch.device("cpu"))
    flat.module.eval()
    pairs = list(zip(x.split(chunk or len(x)), y.split(chunk or len(x)), strict=True))
    with torch.no_grad():
        logits = [flat.module(part) for part, _ in pairs]
        return SignalCall(signal, "'mine'", flat).row(torch.zeros_like(flat.params), pairs, logits)


# -- robustness ------------------------------------------------------------------------------------


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
    g = generator(2)
    x = torch.randint(0, 256, (n, 2, 6, 5), generator=g, dtype=torch.uint8)
    return x, torch.randint(0, 3, (n,), generator=g)


def net() -> nn.Module:
    return drawn(nn.Sequential(nn.Flatten(), nn.Linear(60, 3)), seed=1, scale=0.5)


@pytest.mark.parametrize("kind", ["bytes", "floats", "bits"])
def test_robustness_is_the_share_of_perturbed_copies_whose_label_stays(kind):
    """Bytes are perturbed as the floats that the model takes, bits stay bits, and the draws are the
    same for every sample.
    """
    x, y = pictures()
    x = {"bytes": x, "floats": x.float() / 60 - 2, "bits": (x > 99).float()}[kind]
    model = Spied(net())
    signal = Robustness(copies=100, levels=(0.3,), rates=(0.2,), shift=0, mirror=False)
    found = asked(signal, Normalised(model, MEAN, STD) if kind == "bytes" else model, x, y)
    plain, copies = model.inputs[0], torch.stack(model.inputs[1:])
    change = copies - plain
    if kind == "bits":
        change = change.abs()
        assert set(copies.unique().tolist()) == {0.0, 1.0}
    assert len(copies) == 100 and torch.allclose(change[:, 0], change[:, 7], atol=1e-6)
    expected = 0.2 if kind == "bits" else 0.3**2
    assert float(change.square().mean()) == pytest.approx(expected, rel=0.1)
    stays = torch.stack([net()(copy).argmax(1) == y for copy in copies])
    torch.testing.assert_close(found, stays.float().mean(0))
    assert len(found.unique()) > 3


def test_a_samples_robustness_depends_on_no_other_sample():
    (x, y), signal = pictures(), Robustness(copies=4, levels=(0.2, 0.8), rates=(0.1, 0.3))
    floats = x.float().flatten(1) / 60 - 2
    floats[::3] = (floats[::3] > 0).float()  # some of 0 and 1, among others
    found, order = asked(signal, net(), floats, y), torch.randperm(24, generator=generator(0))
    assert torch.equal(found, asked(signal, net(), floats, y, chunk=5))
    assert torch.equal(found[order], asked(signal, net(), floats[order], y[order]))


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


def test_tokens_cannot_be_perturbed():
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3))
    said = "it perturbs floats and byte images; these samples are int64"
    with pytest.raises(SignalError, match=said):
        asked(Robustness(), module, torch.randint(0, 9, (5, 3)), torch.zeros(5, dtype=torch.int64))


# -- signals that are vectors ----------------------------------------------------------------------


def recorded(**signals):
    """(recorder, clients present in each round, labels) of a federation in which half of the
    clients take part.
    """
    setup = tiny_setup(rounds=2, participation=0.5)
    x = torch.randn(40, 4, generator=generator(5))
    y = torch.randint(0, CLASSES, (40,), generator=generator(6))
    made = {name: signal() for name, signal in signals.items()}
    recorder, results = record_all(setup, x, y, made, [0, 1, 2, 3, GLOBAL])
    return recorder, [result.uploads.participants for result in results], y


def test_a_vector_is_measured_beside_a_number_which_is_what_it_was():
    recorder, present, y = recorded(loss=Loss, logits=Logits)
    arrays = recorder.arrays()
    assert arrays["logits"].shape == (2, 5, 40, CLASSES) and arrays["logits"].dtype == np.float32
    np.testing.assert_array_equal(arrays["loss"], recorded(loss=Loss)[0].arrays()["loss"])
    log_p = torch.from_numpy(arrays["logits"]).log_softmax(-1).numpy()
    np.testing.assert_allclose(arrays["loss"], -log_p[:, :, np.arange(40), y], rtol=1e-5, atol=1e-6)
    for r, there in enumerate(present):
        absent = [k for k in range(4) if k not in there]
        assert len(absent) == 2 and np.isnan(arrays["logits"][r, absent]).all()
        assert np.isfinite(arrays["logits"][r, there]).all()


@pytest.mark.parametrize("redrawn", [False, True])
def test_the_servers_view_cuts_its_rows_and_candidates_out(redrawn):
    """``redrawn``: candidates of their own for every round and client, as in the released code."""
    rng = np.random.default_rng(0)
    # four clients and two global models
    a, n = rng.normal(size=(3, 6, 20, 2)).astype(np.float32), 7
    pick = np.broadcast_to(rng.integers(0, 20, (3, 4, n) if redrawn else n), (3, 4, n))
    # the last: one row for all clients
    signals = {"v": a, "one": a[..., 0], "shared": a[:, :1, :, 0]}
    rows = [0, 1, 2, 3, global_row(0), global_row(1)]
    rounds, chosen = np.array([1, 2, 3]), pick if redrawn else pick[0, 0]
    seen = observe("server", 2, rows, rounds, signals, chosen, np.zeros((3, n), int))
    every = np.array([[a[r, k, pick[r, k]] for k in range(4)] for r in range(3)])
    shared = [a[r, 0, pick[r, 2], 0] for r in range(3)]
    np.testing.assert_array_equal(seen.of_others("v"), every[:, [0, 1, 3]])
    np.testing.assert_array_equal(seen.of_target("v"), every[:, 2])
    np.testing.assert_array_equal(seen.of_target("one"), every[:, 2, :, 0])
    np.testing.assert_array_equal(seen.of_target("shared"), shared)
    assert seen.rounds.tolist() == [1, 2, 3]


def test_a_vector_that_does_not_fit_into_memory_is_refused_before_training(monkeypatch):
    size = 4 * 2 * 5 * 40 * CLASSES
    monkeypatch.setattr(measure, "MOST_BYTES", size - 1)
    refused = recorded(loss=Loss, logits=Logits)[0]
    why = "2 audited rounds x 5 rows x 40 samples x 3 components of 4 bytes are 0.0 MiB"
    wanted = f"before round 1: {why}"
    assert wanted in refused.refused["logits"] and set(refused.arrays()) == {"loss"}
    monkeypatch.setattr(measure, "MOST_BYTES", size)
    assert recorded(logits=Logits)[0].arrays()["logits"].nbytes == size
