"""What the contract of `Model` says is checked before anything is trained, and what keeps it runs with every kind of method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_packages import install
from hypothesis import given, settings
from hypothesis import strategies as st
from running import changed, invoke, records
from sequences import CLASSES, RIGHT, TOKENS, WIDTH, Backwards, Recurrent, Rows, Steps
from torch import nn

from fedbench.core import Data, Model, UserError
from fedbench.core.execution.model_checks import try_model

T = 5


def data_of(tokens: bool = False, n: int = 8, steps: int = T, images: bool = False) -> Data:
    rng = np.random.default_rng(0)
    shape = (n, 1, steps, WIDTH) if images else (n, steps) if tokens else (n, steps, WIDTH)
    x = rng.integers(0, 9, shape) if tokens else rng.normal(size=shape).astype(np.float32)
    if images:
        x = rng.integers(0, 256, shape, dtype=np.uint8)
    y = np.arange(n, dtype=np.int64) % CLASSES
    parts = {f"{s}_{k}": v for s in ("train", "test", "holdout") for k, v in (("x", x), ("y", y))}
    extra = {"mean": (0.5,), "std": (0.25,)} if images else {}
    return Data(n_classes=CLASSES, **parts, **extra)


def builder(make) -> Model:
    class Mine(Model):
        def build(self, input_shape, n_classes):
            return make()

    return Mine()


def refusal(make, data: Data | None = None) -> str:
    with pytest.raises(UserError) as caught:
        try_model(builder(make), data or data_of())
    (message,) = caught.value.messages
    return message


class OnImages(nn.Module):
    """A model of sequences on the rows of an image."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.flatten(1, 2))


# --- right ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIGHT)
def test_a_model_with_the_samples_first_is_taken(name):
    module = RIGHT[name]()
    assert try_model(builder(lambda: module), data_of(name in TOKENS)) == sum(p.numel() for p in module.parameters())


@settings(max_examples=30)
@given(name=st.sampled_from(sorted(RIGHT)), n=st.integers(1, 6), steps=st.integers(2, 6))
def test_a_right_model_is_taken_whatever_the_shapes(name, n, steps):
    assert try_model(builder(RIGHT[name]), data_of(name in TOKENS, n, steps)) > 0


def test_a_model_of_byte_images_and_one_that_insists_on_float32():
    assert try_model(builder(lambda: OnImages(Recurrent(nn.GRU))), data_of(images=True)) > 0

    class Single(Rows):
        def forward(self, x):
            return self.head(torch.tanh(self.up(x.float())).mean(1))

    assert try_model(builder(Single), data_of()) > 0


def test_samples_that_are_all_the_same_refuse_no_model():
    data = data_of()
    data.train_x[:] = data.train_x[0]
    assert try_model(builder(Rows), data) > 0


@pytest.mark.parametrize("make", [Rows, lambda: Recurrent(nn.GRU), lambda: Recurrent(nn.GRU, dropout=0.0, num_layers=2)])
def test_trying_a_model_draws_nothing_and_forgets_nothing(make):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    data = data_of()
    x = data.train_x.copy()
    try_model(builder(make), data)
    assert torch.equal(torch.get_rng_state(), before) and np.array_equal(data.train_x, x)


# --- wrong ----------------------------------------------------------------------------------------------------------


class SecondAxis(Recurrent):
    """`batch_first` forgotten: the recurrence runs over the samples."""

    def __init__(self, kind: type[nn.RNNBase] = nn.GRU):
        super().__init__(kind, first=False)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class Attending(nn.Module):
    """The same with attention, which no order of the samples shows."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.MultiheadAttention(WIDTH, 2, batch_first=False), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.layer(x, x, x)[0].mean(1))


class Reshaped(Rows):
    """The axes of [T, n, d] run together as if they were [n, T, d]."""

    def forward(self, x):
        return super().forward(x.transpose(0, 1).reshape(x.shape))


class Centred(Rows):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class Numbered(Rows):
    """A row's place in the batch counts."""

    def forward(self, x):
        return super().forward(x + torch.arange(len(x))[:, None, None])


class Reversed(Rows):
    def forward(self, x):
        return super().forward(x).flip(0)


class Sized(Rows):
    def forward(self, x):
        return super().forward(x) / len(x)


class Hidden(Rows):
    """A branch that mixes and starts at zero."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return super().forward(x + self.gate * x.mean(0))


class Faint(Rows):
    def forward(self, x):
        return super().forward(x + 1e-4 * x.mean(0))


class BatchNormal(Rows):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(T, track_running_stats=False)


MIXED = "the model Mine mixes samples: "
OTHER = MIXED + "swapping two samples changes other rows of its logits; "
CHANGED = MIXED + "changing one sample changes other rows of its logits; "
ORDER = MIXED + "swapping two samples does not swap their rows; "


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (SecondAxis, OTHER), (lambda: SecondAxis(nn.RNN), OTHER), (lambda: SecondAxis(nn.LSTM), OTHER), (Attending, CHANGED),
        (Reshaped, OTHER), (Centred, CHANGED), (Faint, CHANGED), (Hidden, CHANGED), (Numbered, ORDER), (Reversed, OTHER),
        (Sized, MIXED + "it answers a sample alone otherwise than among others; "),
    ],
)  # fmt: skip
def test_a_model_that_mixes_samples_is_refused(make, says):
    told = refusal(make)
    assert told.startswith(says)
    assert "the samples on the first axis" in told and "batch_first=True" in told


def test_a_model_of_images_that_mixes_samples_is_refused():
    assert refusal(lambda: OnImages(SecondAxis()), data_of(images=True)).startswith(OTHER)


@pytest.mark.parametrize("steps", [2, 4, 7])
def test_the_recurrence_over_samples_is_seen_whatever_the_length(steps):
    assert refusal(SecondAxis, data_of(steps=steps)).startswith(MIXED)


def test_batch_statistics_in_eval_mode_name_their_layer():
    told = refusal(BatchNormal)
    assert told.startswith("the model Mine mixes samples in eval mode: layer 'norm' (BatchNorm1d) normalises by batch statistics")


def test_random_numbers_in_eval_mode_are_refused():
    class Noisy(Rows):
        def forward(self, x):
            return super().forward(x + torch.randn(x.shape, dtype=x.dtype))

    assert refusal(Noisy).startswith("the model Mine answers the same samples differently each time in eval mode: ")


def test_an_input_that_is_written_to_is_refused():
    class Writing(Rows):
        def forward(self, x):
            return super().forward(x.mul_(2))

    assert refusal(Writing).startswith("the model Mine writes to its input, which others read after it: ")


def test_a_model_that_takes_no_sample_alone_is_refused():
    class Squeezing(Steps):
        def forward(self, x):
            return super().forward(x.squeeze(0))

    assert refusal(Squeezing).startswith("the model Mine does not take a sample alone: ")


def test_backwards_and_back_is_no_mixing():
    assert try_model(builder(Backwards), data_of()) > 0


# --- in the engine --------------------------------------------------------------------------------------------------

PACKAGE = """
    import torch
    from torch import nn
    from fedbench.core import Component, Model, hookimpl

    class Net(nn.Module):
        def __init__(self, width, classes, first):
            super().__init__()
            self.layer, self.head, self.first = nn.GRU(width, 6, batch_first=first), nn.Linear(6, classes), first

        def forward(self, x):
            out, _ = self.layer(x.flatten(1, -2))
            return self.head(out[:, -1])

    class Reader(Model):
        first = True

        def build(self, input_shape, n_classes):
            return Net(input_shape[-1], n_classes, self.first)

    class Mixer(Reader):
        first = False

    class Sociable(Net):
        def forward(self, x):
            if torch.is_grad_enabled() and len(x) == 1:
                raise ArithmeticError("it learns in company")
            return super().forward(x)

    class Company(Model):
        def build(self, input_shape, n_classes):
            return Sociable(input_shape[-1], n_classes, True)

    @hookimpl
    def fedbench_models():
        yield Component("reader", "recurrent:Reader", "reads an image row by row")
        yield Component("mixer", "recurrent:Mixer", "the same, along the wrong axis")
        yield Component("company", "recurrent:Company", "the same, with no gradient for a sample alone")
"""
GRADIENTS, OTHERS = {"avg-cosine", "grad-norm"}, {"loss-series", "fta-l"}
NOTE = "per-sample gradients in {} mode were taken one by one: vmap cannot go through the model (RuntimeError: "


def recurrent_suite(folder, model, defenses, attacks):
    federation = {"clients": 4, "rounds": 2, "local_epochs": 1, "batch_size": 50, "optimizer": {"lr": 0.2}}
    data = {"name": "digits", "params": {"test": 1300, "holdout": 300, "label_noise": 0.3}}
    change = {"dataset": data, "model": {"name": model}, "federation": federation, "audit": {"every": 1, "nonmembers": 40}}
    return changed(folder, change, defenses=defenses, attacks=attacks)


def test_a_recurrent_model_runs_with_gradient_attacks_and_dp_sgd(site, tmp_path):
    install(site, "recurrent", PACKAGE)
    results = tmp_path / "results"
    invoke(recurrent_suite(tmp_path, "reader", ["none", "dp-sgd"], sorted(GRADIENTS | OTHERS)), "--results", results)
    found = records(results)
    assert set(found) == {(d, a, 0) for d in ("none", "dp-sgd") for a in GRADIENTS | OTHERS}
    for (defense, attack, _), record in found.items():
        assert (record["outcome"], record["reason"]) == ("ok", "")
        noted = {mode for mode in ("training", "eval") for n in record["notes"] if n.startswith(NOTE.format(mode))}
        assert noted == ({"training"} if defense == "dp-sgd" else set()) | ({"eval"} if attack in GRADIENTS else set())


def test_without_gradients_of_a_sample_only_those_fail_that_need_them(site, tmp_path):
    install(site, "recurrent", PACKAGE)
    results = tmp_path / "results"
    invoke(recurrent_suite(tmp_path, "company", ["none", "dp-sgd"], ["loss-series", "grad-norm"]), "--results", results, status=1)
    found = records(results)
    says = "RuntimeError: the model gives no gradient for a sample alone: ArithmeticError: it learns in company"
    assert found["none", "loss-series", 0]["outcome"] == "ok"
    assert found["none", "grad-norm", 0]["reason"].endswith(f"round 1: {says}")
    for attack in ("loss-series", "grad-norm"):
        record = found["dp-sgd", attack, 0]
        assert record["outcome"] == "failed" and record["reason"].startswith(f"DPSGD.local_step (client 0, round 1): {says}")


def test_a_gradient_attack_changes_no_other_score_of_a_recurrent_model(site, tmp_path):
    install(site, "recurrent", PACKAGE)
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    invoke(recurrent_suite(tmp_path, "reader", ["dp-sgd"], ["loss-series"]), "--results", alone)
    invoke(recurrent_suite(tmp_path, "reader", ["dp-sgd"], ["loss-series", "avg-cosine"]), "--results", beside)
    (one,) = (alone / "records").glob("*.npz")
    assert one.read_bytes() == (beside / "records" / one.name).read_bytes()


def test_a_model_that_mixes_samples_trains_nothing(site, tmp_path):
    install(site, "recurrent", PACKAGE)
    with pytest.raises(UserError, match="the model Mixer mixes samples: swapping two samples changes other rows") as caught:
        invoke(recurrent_suite(tmp_path, "mixer", ["none"], ["loss-series"]), "--results", tmp_path / "results")
    assert "tiny.yaml:" in caught.value.messages[0] and "setting 'digits'" in caught.value.messages[0]
    assert not list(tmp_path.glob("results/records/*"))


def test_a_model_is_tried_once_for_all_rows_of_a_suite(site, tmp_path):
    log, line = tmp_path / "built", "            return Net("
    install(site, "recurrent", PACKAGE.replace(line, f'            print("built", file=open({str(log)!r}, "a"))\n{line}'))
    suite = recurrent_suite(tmp_path, "reader", ["none", "dp-sgd", "hamp"], ["loss-series", "fta-l"])
    invoke(suite, "--results", tmp_path / "results", "--dry-run")
    assert log.read_text() == "built\n" * 2  # once as it is, once to be turned over
