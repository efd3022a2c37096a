"""What data sets, models, signals, analyses and reports must hold."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.contract.errors import UserError
from fedbench.core.contract.model import Model
from fedbench.core.contract.signal import Signal
from fedbench.core.execution.plugin_checks import repeated_share, trained_on
from fedbench.core.numerics.rng import numpy_rng
from fedbench.testing.checks.runs import located
from fedbench.testing.results import Failed, Skipped, Warned
from fedbench.testing.subject import Subject
from fedbench.testing.trials.small import built, loaded, measure, samples
from fedbench.testing.trials.trial import reference
from fedbench.testing.trials.world import declared_mistake

_ODD = ((1, 2, 2), (5,), (1, 40), (4, 9, 9))


# --- data sets --------------------------------------------------------------------------------------------------------


def splits_disjoint(subject: Subject) -> None:
    """The hold-out and the test set repeat no training samples: whoever is asked about them could not tell."""
    reference(subject)
    data = loaded(subject)
    try:
        share = repeated_share(data, subject.name)
    except UserError as error:
        raise subject.failed(f"{error}") from error
    if share > 0.01:
        raise Warned(f"{share:.1%} of its hold-out samples are training samples too; `fedbench run` says so as well")
    share = trained_on(data, data.test_x, data.test_y) / len(data.test_y)
    if share > 0.01:
        raise Warned(f"{share:.1%} of its test samples are training samples too: test accuracy would be partly that of training")


def other_seed_other_split(subject: Subject) -> None:
    """Another seed gives other training samples, or the same where the split is fixed; the classes stay."""
    reference(subject)
    one, two = loaded(subject), loaded(subject, seed=1)
    if one.n_classes != two.n_classes or one.input_shape != two.input_shape:
        raise subject.failed("seed 1 gives other classes or samples of another shape than seed 0; expected the same")
    if one.digest() == two.digest():
        raise Warned("seeds 0 and 1 give the same splits: the intervals over seeds on a board know nothing of the choice of data")


def licence_stated(subject: Subject) -> None:
    """It says under which licence the data are, whom to cite and where they come from."""
    cls = subject.cls
    if str(cls.licence).strip().lower() in ("", "unknown"):
        raise subject.failed(f"its licence is {cls.licence!r}; expected the name of one, or whom to ask")
    missing = [name for name in ("citation", "home") if not getattr(cls, name)]
    if missing and cls.size_mb is not None:  # None: the user's own data, which have no home but the user's
        raise Warned(f"it states no {' and no '.join(missing)}: a board's reader cannot find the data")


# --- models -----------------------------------------------------------------------------------------------------------


def answers_logits(subject: Subject) -> None:
    """[B, *input] -> float32 logits [B, n_classes], also of one sample; finite at the start, in eval mode the same each time."""
    reference(subject)
    made: Model = subject.make()
    x, classes = samples(subject, made)
    module = built(made, x, classes).eval()
    for n in (1, len(x)):
        with torch.no_grad():
            out = module(x[:n])
        if not isinstance(out, torch.Tensor) or tuple(out.shape) != (n, classes) or out.dtype != torch.float32:
            found = f"{out.dtype} {list(out.shape)}" if isinstance(out, torch.Tensor) else type(out).__name__
            raise subject.failed(f"it answers {n} samples with {found}; expected torch.float32 [{n}, {classes}]")
        if not bool(torch.isfinite(out).all()):
            raise subject.failed("its logits are not finite before any training; expected finite ones")
    if not _steady(module, x):
        raise subject.failed(
            "in eval mode the same samples get other logits each time; expected the same: nn.Dropout, or dropout(..., "
            "training=self.training)"
        )
    if bool((out >= 0).all()) and torch.allclose(out.sum(1), torch.ones(len(x)), atol=1e-5):
        raise Warned("its rows sum to 1: they are probabilities, and cross-entropy takes logits; leave the softmax out")


def _steady(module: nn.Module, x: torch.Tensor) -> bool:
    with torch.no_grad():
        return torch.allclose(module(x), module(x), rtol=1e-3, atol=1e-4)


def samples_first(subject: Subject) -> None:
    """Samples come first: two that change places change the places of their logits, and nothing else."""
    reference(subject)
    made: Model = subject.make()
    x, classes = samples(subject, made)
    module = built(made, x, classes).eval()
    if not _steady(module, x):
        raise Skipped("its logits differ from call to call, which `answers_logits` reports")
    order = torch.from_numpy(numpy_rng(0, "order").permutation(len(x)))
    with torch.no_grad():
        plain, moved = module(x)[order], module(x[order])
    if not torch.allclose(plain, moved, rtol=1e-3, atol=1e-4):
        raise subject.failed(
            "samples in another order get other logits; expected that the first axis is the samples' (batch_first=True in "
            "recurrent layers), and that no sample sees another in eval mode"
        )


def gradient_of_every_parameter(subject: Subject) -> None:
    """Every parameter that requires a gradient gets one, finite, and is float32."""
    reference(subject)
    made: Model = subject.make()
    x, classes = samples(subject, made)
    module = built(made, x, classes).train()
    cross_entropy(module(x), torch.arange(len(x)) % classes).backward()
    trained = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    without = [n for n, p in trained if p.grad is None]
    if without:
        raise subject.failed(
            f"the parameter{'s' * (len(without) > 1)} {', '.join(without)} of its module get no gradient; expected that the "
            "forward pass uses each, or requires_grad=False"
        )
    if wrong := [n for n, p in trained if p.grad is not None and not bool(torch.isfinite(p.grad).all())]:
        raise subject.failed(f"the gradient of {', '.join(wrong)} is not finite at the start")
    if other := [n for n, p in trained if p.dtype != torch.float32]:
        raise subject.failed(f"the parameter {other[0]} is not float32; expected float32, which the engine trains in")


def refuses_inputs_with_a_reason(subject: Subject) -> None:
    """Inputs of odd shapes: it builds a module that takes them, or raises UserError with the reason."""
    reference(subject)
    made: Model = subject.make()
    for shape in _ODD:
        x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
        try:
            module = built(made, x, 3).eval()
        except UserError as why:
            if not str(why).strip():
                raise subject.failed(f"it refuses inputs of shape {list(shape)} without a reason") from why
            continue
        except Exception as error:
            raise Failed(
                f"inputs of shape {list(shape)}: {located(error, subject)}; expected UserError with the reason"
            ) from error
        try:
            with torch.no_grad():
                module(x)
        except Exception as error:
            raise subject.failed(
                f"it builds a module for inputs of shape {list(shape)} that does not take them ({type(error).__name__}); "
                "expected UserError with the reason from build"
            ) from error


# --- signals ----------------------------------------------------------------------------------------------------------


def chunk_independent(subject: Subject) -> None:
    """A sample's numbers do not depend on which samples are measured with it."""
    reference(subject)
    made: Signal = subject.make()
    whole, parts = (measure(subject, made, chunk)["the numbers"] for chunk in (23, 5))
    if not torch.allclose(whole, parts, rtol=1e-4, atol=1e-5, equal_nan=True):
        apart = float((whole - parts).abs().max())
        raise subject.failed(
            f"measured in chunks of 5 its numbers are up to {apart:.3g} from those of all samples at once; expected the same: no "
            "mean, rank or norm over the batch"
        )


def varies(subject: Subject) -> None:
    """It is not the same for every sample."""
    reference(subject)
    numbers = measure(subject, subject.make())["the numbers"].numpy()
    if not np.ptp(numbers, axis=0).any():
        what = f"{numbers[0]:g}" if numbers.ndim == 1 else f"one vector of length {numbers.shape[1]}"
        raise Warned(f"it is {what} of all {len(numbers)} samples: no attack can tell anything from it")


# --- analyses ---------------------------------------------------------------------------------------------------------


def declares_what_it_reads(subject: Subject) -> None:
    """`needs`, `view` and `place` are of their kinds, and every signal in `needs` is installed."""
    if mistake := declared_mistake(subject.make()):
        raise subject.failed(f"its {mistake}")
