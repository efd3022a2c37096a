"""One check of one component, in this process."""

from __future__ import annotations

import time

from fedbench.core.apart.channel import pass_on_interrupt
from fedbench.core.contract.errors import UserError
from fedbench.core.words.explain import explain
from fedbench.testing.results import Failed, Result, Skipped, Warned
from fedbench.testing.subject import Subject
from fedbench.testing.table import Check


def run_check(subject: Subject, check: Check) -> Result:
    """Ask, and say what came of it; nothing that the component raises passes, but the user's Ctrl-C."""
    began = time.perf_counter()

    def ended(outcome, message=""):  # type: ignore[no-untyped-def]
        return Result(check.name, outcome, message, time.perf_counter() - began)

    try:
        check.function(subject)
    except Failed as error:
        return ended("failed", str(error))
    except Skipped as error:
        return ended("skipped", str(error))
    except Warned as error:
        return ended("warned", str(error))
    except UserError as error:
        return ended("failed", str(error))
    except BaseException as error:
        pass_on_interrupt(error)
        return ended("failed", f"{explain(error)}")
    return ended("passed")
