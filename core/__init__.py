"""fedbench's public names: all that a plugin needs. Loaded on first use, so announcing a component stays cheap."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.core.contract.analysis import Analysis, Findings, FinishedRun, Judged, Judgement, Number
    from fedbench.core.contract.attack import (
        ActiveAttack,
        Attack,
        Audit,
        Colluder,
        Knowledge,
        Observations,
        ShadowModels,
    )
    from fedbench.core.contract.board import (
        Block,
        Bullets,
        Column,
        Content,
        Figure,
        Fold,
        Heading,
        Image,
        Note,
        Numbers,
        Quote,
        Shortfall,
        Style,
        Table,
        Text,
        Value,
        Words,
        opened,
        value,
    )
    from fedbench.core.contract.candidates import EXCLUDED, IFL, MEMBER, OFL
    from fedbench.core.contract.contexts import (
        AnswerContext,
        CoalitionContext,
        Federation,
        Layer,
        MemberContext,
        ReportContext,
        ServerContext,
    )
    from fedbench.core.contract.courses import Courses
    from fedbench.core.contract.dataset import Data, Dataset
    from fedbench.core.contract.defense import Defense, FactValue
    from fedbench.core.contract.errors import Diverged, SkipCell, UserError
    from fedbench.core.contract.hooks import CONTRACT_VERSION, Component, hookimpl
    from fedbench.core.contract.interval import Interval
    from fedbench.core.contract.model import Model
    from fedbench.core.contract.params import Params
    from fedbench.core.contract.report import Report, Summary
    from fedbench.core.contract.samples import Batch, MemberData, Selection
    from fedbench.core.contract.section import AuditedRound, ClientGroup, Duel, Entry, Family, Row, Section, Standing, Sweep
    from fedbench.core.contract.signal import Probe, Signal
    from fedbench.core.contract.strengths import Strengths
    from fedbench.core.metrics import (
        TF01_MIN_NONMEMBERS,
        auc,
        combined_interval,
        exact_interval,
        hypervolume,
        pareto_front,
        t_interval,
        tf01,
    )
    from fedbench.core.numerics.norms import norm, norms
    from fedbench.core.toolkit.archive import archive_files, unpack
    from fedbench.core.toolkit.cache import Arrays, cached, file_lines
    from fedbench.core.toolkit.check import check_labels, check_size
    from fedbench.core.toolkit.download import Remote, fetch
    from fedbench.core.toolkit.folders import data_folder
    from fedbench.core.toolkit.images import Labelled, class_folders, decode_images

_HOME = {
    "analysis": ("Analysis", "Findings", "FinishedRun", "Judged", "Judgement", "Number"),
    "report": ("Report", "Summary"),
    "attack": ("ActiveAttack", "Attack", "Audit", "Knowledge", "Observations", "ShadowModels", "Colluder"),
    "board": (
        "Block", "Bullets", "Column", "Content", "Figure", "Fold", "Heading", "Image", "Note", "Numbers", "Quote",
        "Shortfall", "Style", "Table", "Text", "Value", "Words", "opened", "value",
    ),
    "section": ("AuditedRound", "ClientGroup", "Duel", "Entry", "Family", "Row", "Section", "Standing", "Sweep"),
    "courses": ("Courses",),
    "strengths": ("Strengths",),
    "contexts": (
        "AnswerContext", "CoalitionContext", "Federation", "Layer", "MemberContext", "ReportContext", "ServerContext",
    ),
    "samples": ("Batch", "MemberData", "Selection"),
    "dataset": ("Data", "Dataset"),
    "defense": ("Defense", "FactValue"),
    "candidates": ("EXCLUDED", "IFL", "MEMBER", "OFL"),
    "errors": ("Diverged", "SkipCell", "UserError"),
    "hooks": ("CONTRACT_VERSION", "Component", "hookimpl"),
    "interval": ("Interval",),
    "model": ("Model",),
    "params": ("Params",),
    "signal": ("Probe", "Signal"),
}  # fmt: skip
_TOOLS = {  # what data-set plugins share
    "archive": ("archive_files", "unpack"),
    "cache": ("Arrays", "cached", "file_lines"),
    "check": ("check_labels", "check_size"),
    "download": ("Remote", "fetch"),
    "folders": ("data_folder",),
    "images": ("Labelled", "class_folders", "decode_images"),
}  # fmt: skip
_METRICS = (
    "TF01_MIN_NONMEMBERS", "auc", "combined_interval", "exact_interval", "hypervolume", "pareto_front", "t_interval", "tf01",
)  # fmt: skip
_MODULE = {name: f"fedbench.core.contract.{module}" for module, names in _HOME.items() for name in names}
_MODULE |= {name: f"fedbench.core.toolkit.{module}" for module, names in _TOOLS.items() for name in names}
_MODULE |= dict.fromkeys(_METRICS, "fedbench.core.metrics")
_MODULE |= dict.fromkeys(("norm", "norms"), "fedbench.core.numerics.norms")

__all__ = [  # noqa: RUF022 - grouped by what a plugin author looks for
    "Component", "hookimpl", "Params", "CONTRACT_VERSION",
    "Defense", "Batch", "MemberData", "Selection", "MemberContext", "CoalitionContext", "ServerContext",
    "AnswerContext", "ReportContext", "FactValue", "Federation",
    "Layer", "norm", "norms",
    "Attack", "ActiveAttack", "Observations", "Audit", "Colluder", "Knowledge", "ShadowModels",
    "Dataset", "Data", "Model", "Signal", "Probe",
    "Analysis", "Findings", "Number", "FinishedRun", "Judgement", "Judged", "Report", "Summary",
    "Section", "Row", "Entry", "Sweep", "Duel", "Family", "Standing", "Strengths", "Courses", "ClientGroup",
    "AuditedRound",
    "Block", "Heading", "Note", "Bullets", "Table", "Column", "Content", "Value", "value", "Shortfall", "Figure", "Style",
    "Image", "Numbers", "Fold", "opened", "Text", "Words", "Quote",
    "Interval", "combined_interval", "exact_interval", "t_interval", "auc", "tf01", "TF01_MIN_NONMEMBERS", "hypervolume",
    "pareto_front",
    "data_folder", "Remote", "fetch", "archive_files", "unpack", "cached", "Arrays", "file_lines", "class_folders",
    "decode_images", "Labelled", "check_labels", "check_size",
    "MEMBER", "OFL", "IFL", "EXCLUDED",
    "UserError", "SkipCell", "Diverged",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'fedbench.core' has no attribute {name!r}")
    return getattr(import_module(_MODULE[name]), name)
