"""A component gets through a small run, alone and from data to record, on every device, at what cost."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedbench.core.apart.channel import pass_on_interrupt
from fedbench.core.contract.defense import Defense
from fedbench.core.contract.errors import SkipCell, UserError
from fedbench.core.words.explain import named
from fedbench.testing.results import Failed, Skipped, Warned
from fedbench.testing.subject import Subject
from fedbench.testing.trials import defense as defenses
from fedbench.testing.trials import end_to_end as whole
from fedbench.testing.trials.trial import reference, trial
from fedbench.testing.watch.own import Own

_DEAR = 20.0  # times the plain training, from which on the author is told


def located(error: BaseException, subject: Subject) -> str:
    """An error in words, with the last line of the component's own that it came through."""
    own, chain, found = Own(subject.cls), error, ""
    while chain is not None:
        for frame, line in traceback.walk_tb(chain.__traceback__):
            if own.has(str(frame.f_globals.get("__name__", ""))):
                found = f" [{Path(frame.f_code.co_filename).name}:{line}]"
        chain = chain.__cause__  # type: ignore[assignment]
    text = str(error) if isinstance(error, UserError | RuntimeError) and str(error) else named(error)
    return text if found.strip(" []") in text else f"{text}{found}"


def runs(subject: Subject) -> None:
    """It gets through one small run."""
    try:
        trial(subject)
    except (Skipped, Failed):
        raise
    except BaseException as error:  # somebody's code
        pass_on_interrupt(error)
        text = located(error, subject)
        raise Failed(text if "expected" in text else f"{text}; expected that it gets through a small run") from error


def runs_on_cuda(subject: Subject) -> None:
    """What trains or computes on tensors does so on a GPU too, where there is one."""
    if not torch.cuda.is_available():
        raise Skipped("this machine has no CUDA device")
    if torch.cuda._is_in_bad_fork():
        raise Skipped("CUDA was started before this process was forked: use `fedbench check`, or a process of its own")
    reference(subject)
    try:
        if subject.kind == "defense":
            defenses.run(subject.make(), defenses.Federated(device="cuda"))
        else:
            whole.on_device(subject, "cuda")
    except SkipCell as why:
        raise Skipped(f"it does not apply: {why}") from None
    except (Skipped, Failed):
        raise
    except Exception as error:
        raise Failed(f"on CUDA: {located(error, subject)}; make new tensors on ctx.device, or with torch.zeros_like") from error


def cost(subject: Subject) -> str:
    """What it costs, as a multiple of plain training; never a failure."""
    reference(subject)
    if subject.kind == "defense":
        clients = defenses.begun(subject.make(), defenses.Federated()).setup.clients  # more samples for some defenses
        plain = defenses.Federated(sizes=tuple(len(data.y) for data in clients))
        ratio = _seconds(lambda: trial(subject)) / _seconds(lambda: defenses.run(Defense(), plain))
    else:
        ratio = _seconds(lambda: trial(subject)) / _seconds(whole.plain_training)
    text = f"{ratio:.2g} x the small plain training"
    if ratio > _DEAR:
        raise Warned(f"{text}; that much CPU counts against it on a board")
    return text


def _seconds(work: Callable[[], Any], times: int = 2) -> float:
    """Of CPU, the best of a few."""
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return max(best, 1e-6)
