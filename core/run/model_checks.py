"""Checks of an architecture before anything is trained: it does what the contract of `Model` says,
and the engine trains it as plain autograd does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from fedbench.core.contract.components import Data, Model
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.samples import MemberData
from fedbench.core.contract.task import DEFAULT_TASK, Task
from fedbench.core.federation.loop import Training
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.flat import FlatModel, ModelState
from fedbench.core.numerics.per_sample import refuse_batch_statistics
from fedbench.core.numerics.rng import key_for
from fedbench.core.numerics.tape import drawn_parameters
from fedbench.core.numerics.wrappers import as_floats, task_rows, wrap
from fedbench.core.spec.federation import FederationSpec, Optimizer
from fedbench.core.words import explain

_SAMPLES = 3  # two to swap, one that stays
_AMONG = 32  # samples, from which different ones are taken
_BATCH = 2  # samples of a client
# Share of the largest logit that one and the same sample may differ by in batches of another
# make-up, by rounding alone.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4}
_REMEDY = (
    "every row must depend on its own sample alone, the samples on the first axis (recurrent and "
    "attention layers: batch_first=True, or turn the axes inside the model and back)"
)


def try_model(model: Model, data: Data) -> int:
    """Return the number of trainable parameters of what an architecture builds.

    Raises:
        UserError: unless it takes the data set's samples, gives one logit a class, keeps the
            samples apart in eval mode, and trains.
    """
    name = type(model).__name__
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = model.build(data.input_shape, data.n_classes)
        if not isinstance(module, nn.Module):
            raise UserError(
                f"the model {name} built {type(module).__name__}, expected a torch.nn.Module"
            )
        if missing := data.task.missing_in_model(module):
            raise UserError(f"the model {name} does not serve the task {data.task.name}: {missing}")
        trainable = [p for p in module.parameters() if p.requires_grad]
        if not trainable:
            raise UserError(
                f"the model {name} has no parameters to train: none has requires_grad=True"
            )
        floating = [b for b in module.buffers() if b.is_floating_point() or b.is_complex()]
        _require_one_dtype(name, "trainable parameters", trainable)
        _require_one_dtype(name, "floating-point buffers", floating)
        net = wrap(module, data).eval()
        x = task_rows(net, data.task, *_different(data), "audit")[0]
        _require_outputs(name, net, x[:2], data)
        try:
            refuse_batch_statistics(net)
        except ValueError as error:
            raise UserError(f"the model {name} mixes samples in eval mode: {error}") from error
        twin = wrap(model.build(data.input_shape, data.n_classes), data).eval()
        _require_apart(name, *_revealing(net, twin, as_floats(net, x)))
        with torch.enable_grad():
            _require_training(name, model, data)
        return sum(p.numel() for p in trainable)


def _require_one_dtype(
    name: str,
    kind: str,
    tensors: Sequence[torch.Tensor],
) -> None:
    """Raise ``UserError`` for tensors that cannot lie in one vector."""
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) > 1 or not dtypes <= {*_ROUNDING}:
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise UserError(
            f"the model {name} has {kind} of {names}; expected float32 or float64: convert inside "
            "`forward`"
        )


def _require_finite(name: str, quantity: str, values: torch.Tensor) -> None:
    if not bool(torch.isfinite(values).all()):
        raise UserError(
            f"the model {name} cannot be trained: its {quantity} is not finite before any "
            "training; look at its initial parameters, the samples, and divisions, roots and "
            "logarithms in `forward`"
        )


def _require_outputs(
    name: str,
    net: nn.Module,
    x: torch.Tensor,
    data: Data,
) -> None:
    """Raise ``UserError`` unless the inputs ``x`` have finite outputs, of classes one each."""
    refusal = f"does not take samples of shape {list(data.input_shape)}"
    logits = _answer(name, net, x, refusal)
    shape: tuple[int, ...] = (len(x), data.n_classes)
    if isinstance(logits, torch.Tensor) and data.task.name != DEFAULT_TASK.name:
        shape = (len(x), *logits.shape[1:])
    if not isinstance(logits, torch.Tensor) or tuple(logits.shape) != shape:
        answer = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise UserError(
            f"the model {name} answers {len(x)} samples with {answer}, expected {list(shape)}"
        )
    _require_finite(name, "output", logits)


def _different(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first samples that differ from each other, [n, *input] and [n]; the first two
    where there are none.
    """
    x = np.ascontiguousarray(data.train_x[:_AMONG])
    _, first = np.unique(x.reshape(len(x), -1), axis=0, return_index=True)
    positions = np.sort(first)[:_SAMPLES] if len(first) > 1 else np.arange(2)
    return torch.from_numpy(x[positions]), torch.from_numpy(data.train_y[positions])


def _answer(
    name: str,
    net: nn.Module,
    x: torch.Tensor,
    refusal: str,
) -> torch.Tensor:
    copy = x.clone()
    try:
        logits = net(copy)
    except Exception as error:
        raise UserError(f"the model {name} {refusal}: {explain(error)}") from error
    if not torch.equal(copy, x):
        raise UserError(
            f"the model {name} writes to its input, which others read after it: work on a copy"
        )
    return logits


# --- samples are kept apart -----------------------------------------------------------------------


def _revealing(
    net: nn.Module,
    twin: nn.Module,
    x: torch.Tensor,
) -> tuple[nn.Module, torch.Tensor]:
    """Return one of ``net`` and its ``twin``, made to show what it does with its samples, and the
    samples as it takes them.

    The twin is in float64, where mixing stands out from rounding, unless the model insists on
    float32. Its parameters are moved, unless its numbers end there: an output layer or a residual
    branch that starts at zero shows nothing of what lies before it.
    """
    wide = x.double() if x.is_floating_point() else x
    try:
        twin.double()(wide)
    except Exception:
        twin = net
        wide = x
    built = {name: p.clone() for name, p in twin.named_parameters()}
    for name, drawn in drawn_parameters(twin, torch.Generator().manual_seed(0)).items():
        twin.get_parameter(name).add_(0.1 * drawn)
    if not bool(torch.isfinite(twin(wide)).all()):
        for name, p in twin.named_parameters():
            p.copy_(built[name])
    return twin, wide


def _require_apart(name: str, net: nn.Module, x: torch.Tensor) -> None:
    """Raise ``UserError`` unless each sample alone has the logits that it has among the others."""
    logits = net(x)
    if not bool(torch.isfinite(logits).all()):
        return  # nothing can be told from them
    tolerance = _ROUNDING.get(logits.dtype, 1e-2) * float(logits.abs().max())
    if not torch.allclose(net(x), logits, rtol=0.0, atol=tolerance):
        raise UserError(
            f"the model {name} answers the same samples differently each time in eval mode: draw "
            "no random numbers there"
        )
    alone = [_answer(name, net, sample[None], "does not take a sample alone") for sample in x]
    if not torch.allclose(torch.cat(alone), logits, rtol=0.0, atol=tolerance):
        raise UserError(
            f"the model {name} mixes samples: it answers a sample alone otherwise than among "
            f"others; {_REMEDY}"
        )


# --- one step of training -------------------------------------------------------------------------


def _require_training(name: str, model: Model, data: Data) -> None:
    """Raise ``UserError`` unless two clients with a batch each, trained by the engine in both
    orders, end where each ends alone with plain autograd, and leave no trace in the module.
    """
    x, y = (torch.from_numpy(a[: 2 * _BATCH].copy()) for a in (data.train_x, data.train_y))
    first = MemberData(x[:_BATCH], y[:_BATCH])
    last = MemberData(x[-_BATCH:], y[-_BATCH:])
    config = FederationSpec(
        clients=2, rounds=1, local_epochs=1, batch_size=_BATCH, optimizer=Optimizer(lr=1.0)
    )
    for pair in ([first, last], [last, first]):
        flat = _fresh(model, data)
        start = flat.state.clone()
        setup = Setup(
            config=config,
            seed=0,
            flat=flat,
            clients=pair,
            n_classes=data.n_classes,
            defense=Defense(),
            members=(),
            initial=start.params[None],
        )
        modules = [_fresh(model, data).module for _ in pair]
        alone = [
            _alone(name, modules[k], k, client, start.params, data.task)
            for k, client in enumerate(pair)
        ]
        _require_same(name, setup, start, torch.stack(alone))


def _require_same(
    name: str,
    setup: Setup,
    start: ModelState,
    expected: torch.Tensor,
) -> None:
    """Raise ``UserError`` unless the clients end at ``expected`` [2, P + B + I], with no trace of
    the first one in the answers of the module.
    """
    flat = setup.flat
    last, first = (flat.rows(client.x, client.y, "audit")[0] for client in setup.clients[::-1])
    before = _traces(flat, start, last, first)
    uploads = next(Training(setup).rounds()).uploads
    for path, trace in _traces(flat, start, last).items():
        if before.get(path) != trace:
            raise UserError(
                f"the model {name} keeps something outside of parameters and buffers, which all "
                f"clients of a round would share: '{path}' changes in `forward`; register a "
                "buffer, and write to it in place"
            )
    sent = torch.cat([uploads.updates, uploads.buffers, uploads.counts], 1).to(expected)
    rounding = 1e-6 * float(start.params.abs().max() + uploads.updates.abs().max())
    if not torch.allclose(sent, expected, rtol=1e-4, atol=rounding, equal_nan=True):
        raise UserError(
            f"the model {name} trains otherwise beside another client than alone with plain "
            "autograd: keep nothing between batches but parameters and buffers, write to these in "
            "place, and draw from torch's global generator only"
        )


def _fresh(model: Model, data: Data) -> FlatModel:
    torch.random.default_generator.manual_seed(0)
    net = wrap(model.build(data.input_shape, data.n_classes), data)
    return FlatModel(net.train(), torch.device("cpu"), data.task)


def _alone(
    name: str,
    net: nn.Module,
    k: int,
    client: MemberData,
    start: torch.Tensor,
    task: Task,
) -> torch.Tensor:
    """Return the update, buffers and counts of client ``k`` after one step from ``start`` [P], with
    its samples in the engine's order and the engine's random numbers.
    """
    shuffle = torch.Generator().manual_seed(key_for(0, "shuffle", 1, k) >> 1)
    order = torch.randperm(len(client.y), generator=shuffle)
    torch.random.default_generator.manual_seed(key_for(0, "module", 1, k) >> 1)
    draws = torch.Generator().manual_seed(key_for(0, "task", 1, k) >> 1)
    x = as_floats(net, client.x[order])
    rows, target = task_rows(net, task, x, client.y[order], "train", draws)
    outputs = net(rows)
    _require_finite(name, "output in training mode", outputs)
    task.loss(outputs, target).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(net.parameters(), lr=1.0).step()
    flat = FlatModel(net, torch.device("cpu"))  # of the buffers that `forward` may have replaced
    _require_finite(name, "gradient", flat.params)
    return torch.cat([flat.params - start, flat.buffers, flat.state.counts])


@torch.no_grad()
def _traces(flat: FlatModel, start: ModelState, *batches: torch.Tensor) -> dict[str, str]:
    """Return the output for the first batch at ``start``, and each attribute of the module's parts
    and their classes, by its path, after evaluations of all batches.
    """
    flat.load(start)  # what a layer computes of parameters and buffers is the same then
    outputs = [flat.module.eval()(as_floats(flat.module, x)) for x in batches]
    traces = {"output in eval mode": repr(outputs[0])}
    for path, part in flat.module.named_modules():
        for attribute, value in {**vars(type(part)), **vars(part)}.items():
            if isinstance(value, torch.Tensor):
                # the text of a large one shows only its first and last elements
                value = value.double().sum()
            traces[f"{path}.{attribute}".lstrip(".")] = repr(value)
    return traces
