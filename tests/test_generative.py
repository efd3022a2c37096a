"""The generative federation: diffusion against plain loops, what clients share, and a board."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from running import changed, invoke
from tiny import tiny_setup, train_all
from torch.testing import assert_close

from fedbench.core import EVERY_TASK, MemberData, UserError
from fedbench.core.numerics.flat import FlatModel
from fedbench.core.numerics.per_sample import per_sample_gradients
from fedbench.core.process.ask import ask
from fedbench.core.run import pretraining
from fedbench.core.signals.builtin import Loss
from fedbench.core.signals.probes import SignalCall
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.comparison.cells import snapshot_of
from fedbench.leaderboard.comparison.compare import compare
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.site.data import board_of
from fedbench.plugins.defenses.augmentation import DataSampling
from fedbench.plugins.defenses.uploads import FreeRider, GradNoise, GradSparse
from fedbench.plugins.generative import diffusion
from fedbench.plugins.generative.denoisers import MLPDenoiser, UNetDenoiser
from fedbench.plugins.generative.diffusion import Denoising
from fedbench.plugins.generative.images import DenoisingImages

DATA = {"train": 60, "test": 20, "holdout": 40}
MODEL = {"hidden": 12, "steps": 20}
FEDERATION = {
    "clients": 3,
    "rounds": 2,
    "batch_size": 5,
    "weights": "equal",
    "optimizer": {"lr": 0.1},
}


def fresh(kind=MLPDenoiser, pretrained=False, **params):
    """A denoiser of 4 x 4 images, and six images with their classes."""
    torch.manual_seed(0)
    model = kind(**params)
    module = model.build((1, 4, 4), 16)
    x, y = torch.rand(6, 1, 4, 4) * 2 - 1, torch.tensor([0, 3, 3, 9, 5, 0])
    if pretrained:
        public = SimpleNamespace(public_x=x.numpy(), public_y=y.numpy())
        model.pretrain(module, public)
    return module, x, y


def share(time):
    """alpha bar by a plain product."""
    return math.prod(1 - (0.0085 + i * (0.12 - 0.0085) / 99) for i in range(time + 1))


@pytest.mark.parametrize(
    "kind, params", [(MLPDenoiser, {"hidden": 12}), (UNetDenoiser, {"width": 8})]
)
def test_an_audit_loss_is_the_mean_over_the_pairs_and_its_gradient_in_its_class_alone(kind, params):
    module, x, y = fresh(kind, **params)
    flat = FlatModel(module, x.device, Denoising())
    times, noises = diffusion.grid("audit", 16)
    assert (times.diff() > 0).all() and not torch.equal(noises, diffusion.grid("test", 16)[1])
    expected = []
    for image, label in zip(x.flatten(1), y, strict=True):
        losses = []
        for time, noise in zip(times.tolist(), noises, strict=True):
            row = share(time) ** 0.5 * image + (1 - share(time)) ** 0.5 * noise
            output = module(torch.cat([row, torch.tensor([time, float(label)])])[None])[0]
            losses.append((output - noise).square().mean())
        expected.append(torch.stack(losses).mean())
    outputs = module(flat.rows(x, y, "audit")[0]).detach()
    measured = SignalCall(Loss(), "it", flat).row(x, [(x, y)], [outputs])
    assert_close(measured, torch.stack(expected).detach())
    rows, target = flat.rows(x, y, "audit")
    gradients = per_sample_gradients(module, rows, target, Denoising()).view(6, 16, 10, 128).mean(1)
    for gradient, loss, label in zip(gradients, expected, y, strict=True):
        assert_close(gradient, torch.autograd.grad(loss, module.embedding)[0])
        assert gradient.abs().sum(1).nonzero().flatten().tolist() == [label]


def test_noising_has_the_mean_and_variance_of_the_forward_process_and_ddim_inverts_an_oracle():
    x, n = torch.linspace(-1, 1, 5), 40_000
    draws = torch.Generator().manual_seed(0)
    for time in (0, 30, 99):
        noise = torch.randn(n, 5, generator=draws)
        values = diffusion.noised(x.expand(n, -1), torch.full((n,), time), noise)
        sd = (1 - share(time)) ** 0.5
        assert_close(values.mean(0), share(time) ** 0.5 * x, atol=5 * sd / n**0.5, rtol=0)
        assert_close(values.std(0), torch.full((5,), sd), rtol=0.02, atol=0)
    image = torch.rand(3, 16, generator=draws) * 2 - 1

    def oracle(rows):
        images, time, y = diffusion.parts_of(rows)
        a = torch.tensor([[share(int(t))] for t in time])
        return (images - a.sqrt() * image[y]) / (1 - a).sqrt()

    for steps in (1, 10, 50):
        noise = torch.randn(3, 16, generator=draws)
        drawn = diffusion.sampled(oracle, torch.arange(3), noise, steps)
        assert_close(drawn, image, atol=1e-3, rtol=0)


def test_the_least_loss_over_classes_is_the_prediction_and_training_draws_differ():
    task = Denoising()
    x, y = torch.rand(3, 1, 4, 4), torch.tensor([2, 7, 0])
    rows, noise = task.rows(x, y, "test")
    wrong = (diffusion.parts_of(rows)[2] != y.repeat_interleave(160)).float()[:, None]
    assert task.predict(noise + 0.1 * wrong).tolist() == y.tolist()
    loss = task.utilities[0].values(noise + 0.1 * wrong + 0.2, noise, y)
    assert_close(loss, torch.full((3,), 0.04))
    draws = torch.Generator().manual_seed(0)
    first, second = (task.rows(x, y, "train", draws)[0] for _ in range(2))
    assert len(first) == 3 and not torch.equal(first[:, :-1], second[:, :-1])


def test_pretraining_has_the_same_bits_in_two_processes_and_every_class_starts_from_one_word():
    def bits():
        module = fresh(pretrained=True, hidden=12, steps=5)[0]
        return [p.detach().double().flatten().tolist() for p in module.parameters()]

    module = fresh(pretrained=True, hidden=12, steps=5)[0]
    assert ask(bits) == ask(bits)
    assert (module.embedding == module.embedding[0]).all()
    untrained = fresh(hidden=12)[0]
    pairs = zip(untrained.network.parameters(), module.network.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in pairs)


def test_a_pretrained_network_comes_from_the_cache_unless_its_file_is_damaged(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(pretraining, "_path", lambda job, key: tmp_path / "pretrained.npz")

    def bits():
        module, x, y = fresh(hidden=12)
        public = SimpleNamespace(public_x=x.numpy(), public_y=y.numpy())
        pretraining.pretrain(None, MLPDenoiser(hidden=12, steps=5), module, public, key=7)
        return module.state_dict(), [p.requires_grad for p in module.parameters()], torch.rand(2)

    trained = bits()
    (tmp_path / "pretrained.npz").write_bytes(b"damaged")
    again = bits()
    other = fresh(hidden=9)[0]
    assert not pretraining._fill(other, tmp_path / "pretrained.npz")
    assert_close(other.state_dict(), fresh(hidden=9)[0].state_dict(), rtol=0, atol=0)
    monkeypatch.setattr(MLPDenoiser, "_batches", None)  # a second pretraining would fail
    cached = bits()
    assert trained[1] == again[1] == cached[1] == [True] + [False] * (len(trained[1]) - 1)
    assert_close([again[0], again[2]], [trained[0], trained[2]], rtol=0, atol=0)
    assert_close([cached[0], cached[2]], [trained[0], trained[2]], rtol=0, atol=0)


def test_clients_upload_embeddings_alone_the_same_with_both_backends():
    ends = []
    for backend in ("stacked", "autograd"):
        module, x, y = fresh(hidden=12)
        frozen = [p.clone() for p in module.network.parameters()]
        clients = [MemberData(x, y), MemberData(x[:4], y[:4])]
        setup = tiny_setup(
            module=module, clients=clients, members=(), name="adam", lr=0.001, backend=backend
        )
        flat = FlatModel(module, x.device, Denoising())
        _, results = train_all(replace(setup, flat=flat, initial=flat.params.clone()[None]))
        uploads = results[-1].uploads
        assert [layer.name for layer in flat.layers] == ["embedding"]
        assert uploads.updates.shape == (2, 1280) and not uploads.buffers.numel()
        untouched = zip(frozen, module.network.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in untouched)
        moved = uploads.updates.view(2, 10, 128).abs().sum(2) > 0
        assert [row.nonzero().flatten().tolist() for row in moved] == [[0, 3, 5, 9], [0, 3, 9]]
        ends.append(uploads.updates)
    assert_close(*ends)


def test_a_run_is_attacked_skips_what_needs_logits_and_has_images_of_its_samples(tmp_path):
    setting = {
        "dataset": {"name": "denoising", "params": DATA},
        "model": {"name": "denoiser-mlp", "params": MODEL},
        "federation": FEDERATION | {"optimizer": {"name": "adam", "lr": 0.001}},
        "audit": {"every": 2, "nonmembers": 90, "outside": 40},
    }
    path = changed(
        tmp_path,
        setting,
        attacks=["fedmia-ii", "threshold-entropy"],
        defenses=["none", "mixup"],
        analyses=["generated-images"],
        coalitions=["uniform"],
    )
    output = invoke(path, "--results", tmp_path / "r", status=0)
    assert "delta" in output.split() and "delta-acc" not in output
    cell, *skipped = sorted(load_records(tmp_path / "r"), key=lambda r: r.record.outcome)
    assert (cell.record.defense.label, cell.record.attack.label) == ("none", "fedmia-ii")
    assert [r.record.outcome for r in (cell, *skipped)] == ["ok", *["skipped"] * 3]
    for loaded in skipped:
        assert "serves classification, and the data's task is denoising" in loaded.record.reason
    for part in (DataSampling, GradNoise, GradSparse, FreeRider):
        assert part().tasks == EVERY_TASK
    assert cell.record.utility.name == "denoising loss" and not cell.record.complaints
    findings = cell.record.analyses["generated-images"]
    assert 0 <= findings.numbers["accuracy"].value <= 1
    arrays = cell.all_arrays()
    data = DenoisingImages(**DATA).load(0)
    for name in ("named", "nearest"):
        pictures = arrays[f"generated-images:{name}"].reshape(-1, 64)
        for picture, c in zip(pictures, arrays["generated-images:class"], strict=True):
            parts = ("train",) if name == "nearest" else ("train", "holdout")
            of_class = [getattr(data, f"{p}_x")[getattr(data, f"{p}_y") == c] for p in parts]
            distances = np.abs(np.concatenate(of_class).reshape(-1, 64) - picture).max(1)
            assert distances.min() < 1e-6
    columns = {c.key: c for c in board_of(source_of(tmp_path / "r"), "r", "").columns}
    utility = columns["accuracy"]
    assert (utility.title, utility.direction, utility.scale) == ("denoising loss", "lower", 1)
    judged = snapshot_of([cell])
    (run,) = (key for key in judged.cells if not key.attack)
    loss = judged.cells[run].values["loss"][0]
    higher = replace(loss, parts=tuple(2 * part for part in loss.parts))
    worse = replace(judged.cells[run], values={"loss": {0: higher}}, digests={0: "other"})
    found = compare(replace(judged, cells={**judged.cells, run: worse}), judged)
    assert [r.verdict for r in found.rows if r.key == run] == ["worse"]


def test_what_the_task_lacks_is_named_when_planned(tmp_path):
    denoising = {"dataset": {"name": "denoising", "params": DATA}, "model": "mlp"}
    all_of_it = {"name": "denoising", "params": {"train": 1500, "test": 97, "holdout": 200}}
    for change, words in (
        (denoising, r"MLP does not serve the task denoising: it has no parameter `embedding`"),
        ({"dataset": "digits", "model": "denoiser-mlp"}, "use it with the data set 'denoising'"),
        ({"dataset": all_of_it, "model": "denoiser-mlp"}, "leave none for the public part"),
    ):
        path = changed(tmp_path, {"federation": FEDERATION, **change}, coalitions=["none"])
        with pytest.raises(UserError, match=words):
            invoke(path, "--results", tmp_path / "r", "--dry-run")
    data, task = DenoisingImages(**DATA).load(0), Denoising()
    assert task.missing_in_data(data) == ""
    flat = {f"{split}_x": getattr(data, f"{split}_x").reshape(-1, 64) for split in data.splits}
    for change, words in (
        (flat, "expected images [channels, height, width]"),
        ({"public_y": data.public_y[:0]}, "no public part"),
        ({"test_y": data.test_y + 3}, "a class 12"),
    ):
        assert words in task.missing_in_data(replace(data, **change))


def test_the_splits_and_the_public_part_are_disjoint_and_differ_by_seed():
    one, other = (DenoisingImages().load(seed) for seed in (0, 1))
    sizes = [len(getattr(one, f"{split}_y")) for split in one.splits]
    assert sizes == [1000, 100, 300, 397]
    everything = np.concatenate([getattr(one, f"{split}_x") for split in one.splits])
    again = np.concatenate([getattr(other, f"{split}_x") for split in one.splits])
    assert len(np.unique(everything.reshape(1797, -1), axis=0)) == 1797
    assert not np.array_equal(everything, again)
    assert one.digest() != replace(one, public_x=one.public_x[::-1].copy()).digest()
