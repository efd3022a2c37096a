"""From data over training and attack to a record."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedbench.core.contract.errors import SkipCell
from fedbench.testing.checks.attacks import sound
from fedbench.testing.checks.runs import located
from fedbench.testing.results import Failed, Skipped
from fedbench.testing.subject import Subject
from fedbench.testing.trials import end_to_end as whole
from fedbench.testing.trials.trial import reference


def runs_end_to_end(subject: Subject) -> None:
    """From data over training and attack to a record that reads back."""
    reference(subject)
    if subject.kind == "attack":
        sound(subject)
    try:
        with tempfile.TemporaryDirectory(prefix="fedbench-check-") as folder:
            whole.run(subject, Path(folder))
    except SkipCell as why:
        raise Skipped(f"it does not apply to the small federation of the checks: {why}") from None
    except (Skipped, Failed):
        raise
    except Exception as error:
        raise Failed(f"{located(error, subject)}; expected a record of the run") from error
