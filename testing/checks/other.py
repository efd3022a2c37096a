"""Checks of data sets, models and signals."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.run.checks import repeated_share, trained_on
from fedbench.testing.subject import Subject, Warned
from fedbench.testing.trials import CLASSES, build, load, measure, samples_for

# --- data sets ------------------------------------------------------------------------------------


def splits_disjoint(subject: Subject) -> None:
    """The hold-out and the test set repeat no training samples."""
    data = load(subject, subject.make())
    if (share := repeated_share(data, subject.name)) > 0.01:
        raise Warned(f"{share:.1%} of its hold-out samples are training samples too")
    if (share := trained_on(data, data.test_x, data.test_y) / len(data.test_y)) > 0.01:
        raise Warned(
            f"{share:.1%} of its test samples are training samples too: test accuracy would be "
            "partly that of training"
        )


def other_seed_other_split(subject: Subject) -> None:
    """Another seed gives other training samples, or the same where the split is fixed; the classes
    stay.
    """
    first, second = (load(subject, subject.make(), seed) for seed in (0, 1))
    if (first.n_classes, first.input_shape) != (second.n_classes, second.input_shape):
        raise subject.failed(
            "seed 1 gives other classes or samples of another shape than seed 0; expected the same"
        )
    if first.digest() == second.digest():
        raise Warned(
            "seeds 0 and 1 give the same splits: intervals over seeds do not cover the choice of "
            "data"
        )


def licence_stated(subject: Subject) -> None:
    """Licence, citation and home page of the data are stated."""
    cls = subject.cls
    if str(cls.licence).strip().lower() in ("", "unknown"):
        raise subject.failed(f"its licence is {cls.licence!r}; expected its name, or a contact")
    missing = [name for name in ("citation", "home") if not getattr(cls, name)]
    if missing and cls.size_mb is not None:  # None: the user's own data
        raise Warned(
            f"it states no {' and no '.join(missing)}: a board's reader cannot find the data"
        )


# --- models ---------------------------------------------------------------------------------------


def answers_logits(subject: Subject) -> None:
    """[B, *input] -> float32 logits [B, n_classes], also of one sample; finite at the start, in
    eval mode the same each time.
    """
    model = subject.make()
    x = samples_for(model)
    module = build(model, x).eval()
    for n in (1, len(x)):
        with torch.no_grad():
            out = module(x[:n])
        form = type(out).__name__
        if isinstance(out, torch.Tensor):
            form = f"{out.dtype} {list(out.shape)}"
        if form != f"torch.float32 [{n}, {CLASSES}]":
            raise subject.failed(
                f"it answers {n} samples with {form}; expected torch.float32 [{n}, {CLASSES}]"
            )
        if not bool(torch.isfinite(out).all()):
            raise subject.failed(
                "its logits are not finite before any training; expected finite ones"
            )
    with torch.no_grad():
        again = module(x)
    if not torch.allclose(out, again, rtol=1e-3, atol=1e-4):
        raise subject.failed(
            "in eval mode the same samples get other logits each time; expected the same: "
            "nn.Dropout, or dropout(..., training=self.training)"
        )
    if bool((out >= 0).all()) and torch.allclose(out.sum(1), torch.ones(len(x)), atol=1e-5):
        raise Warned(
            "its rows sum to 1: they are probabilities, and cross-entropy takes logits; leave the "
            "softmax out"
        )


def samples_first(subject: Subject) -> None:
    """Samples are the first axis: permuting them permutes their logits."""
    model = subject.make()
    x = samples_for(model)
    module = build(model, x).eval()
    order = torch.from_numpy(numpy_rng(0, "order").permutation(len(x)))
    with torch.no_grad():
        plain = module(x)[order]
        moved = module(x[order])
    if not torch.allclose(plain, moved, rtol=1e-3, atol=1e-4):
        raise subject.failed(
            "samples in another order get other logits; expected that the first axis is the "
            "samples' (batch_first=True in recurrent layers), and that no sample sees another in "
            "eval mode"
        )


def gradient_of_every_parameter(subject: Subject) -> None:
    """Every parameter that requires a gradient gets one."""
    model = subject.make()
    x = samples_for(model)
    module = build(model, x).train()
    cross_entropy(module(x), torch.arange(len(x)) % CLASSES).backward()
    if without := [n for n, p in module.named_parameters() if p.requires_grad and p.grad is None]:
        raise subject.failed(
            f"parameters of its module without a gradient: {', '.join(without)}; expected that the "
            "forward pass uses each, or requires_grad=False"
        )


# --- signals --------------------------------------------------------------------------------------


def chunk_independent(subject: Subject) -> None:
    """A sample's numbers do not depend on which samples are measured with it."""
    signal = subject.make()
    at_once, parts = (measure(subject, signal, chunk)["the numbers"] for chunk in (23, 5))
    if not torch.allclose(at_once, parts, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise subject.failed(
            "measured in chunks of 5 its numbers differ from those of all samples at once; "
            "expected the same: no mean, rank or norm over the batch"
        )


def declares_of_update(subject: Subject) -> None:
    """Where its numbers depend on the update, ``of_update`` is True."""
    if subject.cls.of_update:
        return
    numbers, of_other_update = (
        measure(subject, subject.make(), update_seed=seed)["the numbers"] for seed in (2, 3)
    )
    if not torch.allclose(numbers, of_other_update, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise subject.failed(
            "its numbers change with the update, and of_update is False; expected of_update = "
            "True: the adversary of the view external does not have the update"
        )
