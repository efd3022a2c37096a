"""One check of one component, in this process."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from fedbench.core.apart.channel import pass_on_interrupt
from fedbench.core.contract.errors import UserError
from fedbench.core.words.explain import explain, one_line
from fedbench.testing.results import Failed, Outcome, Result, Skipped, Warned
from fedbench.testing.subject import Subject
from fedbench.testing.table import Check
from fedbench.testing.watch.generators import global_generators_kept


def run_check(subject: Subject, check: Check) -> Result:
    """Ask, and say what came of it; nothing that the component raises passes, but the user's Ctrl-C."""
    began = time.perf_counter()
    outcome, message = _asked(subject, check)
    return Result(check.name, outcome, one_line(message, 2000), time.perf_counter() - began)


def _asked(subject: Subject, check: Check) -> tuple[Outcome, str]:
    try:
        with settled():
            return "passed", check.function(subject) or ""
    except Failed as error:
        return "failed", str(error)
    except Skipped as error:
        return "skipped", str(error)
    except Warned as error:
        return "warned", str(error)
    except BaseException as error:
        pass_on_interrupt(error)
        return "failed", str(error) if isinstance(error, UserError) else explain(error)


@contextmanager
def settled() -> Iterator[None]:
    """One thread, float32, gradients on, as in a run; afterwards whatever the component changed is as it was before."""
    import numpy as np
    import torch

    before = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(), np.geterr()
    folder, environment = os.getcwd(), dict(os.environ)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    try:
        with global_generators_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        threads, dtype, grad, errors = before
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.set_grad_enabled(grad)
        np.seterr(**errors)
        os.chdir(folder)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
