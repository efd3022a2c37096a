"""The public names that a plugin needs. Loaded on first use, so that announcing a component stays
cheap.

Data sets also use ``fedbench.core.toolkit``, analyses ``fedbench.core.report`` and
``fedbench.core.metrics``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.core.contract.analysis import (
        Analysis,
        Findings,
        FinishedRun,
        Judged,
        Judgement,
        Number,
    )
    from fedbench.core.contract.attack import (
        EXCLUDED,
        IFL,
        MEMBER,
        OFL,
        ActiveAttack,
        Attack,
        Audit,
        Colluder,
        Knowledge,
        Observations,
        ShadowModels,
    )
    from fedbench.core.contract.components import (
        Data,
        Dataset,
        Model,
        Params,
        Probe,
        Report,
        Signal,
        Summary,
    )
    from fedbench.core.contract.contexts import (
        AnswerContext,
        CoalitionContext,
        Federation,
        Layer,
        MemberContext,
        ReportContext,
        ServerContext,
    )
    from fedbench.core.contract.defense import Defense, FactValue
    from fedbench.core.contract.errors import Diverged, SkipCell, UserError
    from fedbench.core.contract.hooks import Component, hookimpl
    from fedbench.core.contract.samples import Batch, MemberData, Selection
    from fedbench.core.contract.task import EVERY_TASK, Task, Utility
    from fedbench.core.numerics.flat import norm, norms
    from fedbench.core.numerics.gradients import gradient_features

_MODULES = (  # the first that has a name gives it: torch is imported by the last two alone
    "contract.hooks",
    "contract.events",
    "contract.errors",
    "contract.task",
    "contract.components",
    "contract.samples",
    "contract.contexts",
    "contract.defense",
    "contract.attack",
    "contract.analysis",
    "numerics.flat",
    "numerics.gradients",
)
__all__ = [  # noqa: RUF022 - grouped by what a plugin author looks for
    "Component",
    "hookimpl",
    "Params",
    "Defense",
    "Batch",
    "MemberData",
    "Selection",
    "MemberContext",
    "CoalitionContext",
    "ServerContext",
    "AnswerContext",
    "ReportContext",
    "FactValue",
    "Federation",
    "Layer",
    "norm",
    "norms",
    "Attack",
    "ActiveAttack",
    "Observations",
    "Audit",
    "Colluder",
    "Knowledge",
    "ShadowModels",
    "MEMBER",
    "OFL",
    "IFL",
    "EXCLUDED",
    "Dataset",
    "Data",
    "Model",
    "Task",
    "Utility",
    "EVERY_TASK",
    "Signal",
    "Probe",
    "gradient_features",
    "Analysis",
    "Findings",
    "Number",
    "FinishedRun",
    "Judgement",
    "Judged",
    "Report",
    "Summary",
    "RunInfo",
    "RunStarted",
    "RoundFinished",
    "CellFinished",
    "RunFinished",
    "BoardWritten",
    "UserError",
    "SkipCell",
    "Diverged",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for path in _MODULES:
            module = import_module(f"fedbench.core.{path}")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'fedbench.core' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
