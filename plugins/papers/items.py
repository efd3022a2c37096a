"""Tables, figures and experiments of the papers: the suites that make them, the claims that name
them, and the hours that a suite at the paper's scale trains.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil

from fedbench.core import ActiveAttack
from fedbench.core.registry.components import Registry
from fedbench.core.spec.base import MethodUse, grid_of
from fedbench.core.spec.load import open_document
from fedbench.core.spec.setting import Setting
from fedbench.core.spec.suite import SuiteSpec
from fedbench.plugins.papers.claim_files import shipped_papers

# Plain steps a second: ResNet18 in fp32 on an H100 (docs/gpu.md), which stands for every
# convolutional net; networks of linear layers in a bare PyTorch loop on one core of a Xeon with
# AVX-512 (CPU seconds, median of 5, a busy machine). Defenses, attacks and audits come on top.
GPU_STEPS = 47.7
CPU_STEPS = {"mlp": 840.0, "mlp-512-128": 17.0, "membershield-mlp4": 64.0}
SAMPLES = {  # training samples of a data set, where a suite does not say how many
    "cifar10": 50_000,
    "cifar100": 50_000,
    "tiny-imagenet": 100_000,
    "dermnet": 15_557,
    "ch-mnist": 5_000,
    "purchase100": 197_324,
    "femnist": 600_000,
}
_PLACES = re.compile(r"(Table|Figure)s? ((?:(?:A\.)?\d+[a-d]?(?:, | and | to | beside )?)+)")
_LABELS = re.compile(r"((?:A\.)?\d+[a-d]?)(?: to (\d+))?")


@dataclass(frozen=True)
class Item:
    """Table, figure or experiment of a paper."""

    paper: str
    """name of the paper's claims"""
    item: str
    """as the paper calls it; in brackets a part"""
    what: str
    reduced: tuple[str, ...]
    """suites of less data, smaller models or fewer rounds"""
    full: tuple[str, ...]
    """suites at the paper's scale"""
    reason: str
    """why there is no suite"""

    @property
    def claims(self) -> set[str]:
        """Ids of the paper's claims that name it."""
        name = self.item.partition(" (")[0]
        names = {name, name.rstrip("abcd")}  # Figure 5 names all of its parts
        claims = shipped_papers()[self.paper].claims
        return {claim.id for claim in claims if names & set(named_in(claim.place))}


@cache
def paper_items() -> tuple[Item, ...]:
    """Return the rows of ``plugins/papers/items.csv``."""
    text = (files("fedbench.plugins.papers") / "items.csv").read_text(encoding="utf-8")
    items = []
    for row in csv.DictReader(text.splitlines()):
        reduced, full = (tuple(row.pop(name).split()) for name in ("reduced", "full"))
        items.append(Item(**row, reduced=reduced, full=full))
    return tuple(items)


def named_in(place: str) -> Iterator[str]:
    """Yield the items that a claim's place names: ``Table 1``, ``Table 21`` and so on of
    ``Tables 1, 21 to 23``.
    """
    for kind, labels in _PLACES.findall(place):
        for low, high in _LABELS.findall(labels):
            numbers = range(int(low), int(high) + 1) if high else [low]
            yield from (f"{kind} {number}" for number in numbers)


# ---------------------------------------------------------------- cost


def cost(suites: Iterable[str]) -> str:
    """Return hours of plain training of all runs of suites at the paper's scale, one after another,
    in words: ``23 GPU + 22 CPU``.
    """
    hours = {"GPU": 0.0, "CPU": 0.0}
    for spec in map(_spec, suites):
        for setting in spec.settings:
            model = setting.model.name if setting.model else ""
            device = "CPU" if model in CPU_STEPS else "GPU"
            seconds = steps_of(setting) / CPU_STEPS.get(model, GPU_STEPS)
            hours[device] += _runs(spec, setting) * seconds / 3600
    return " + ".join(f"{h:,.{int(h < 3)}f} {device}" for device, h in hours.items() if h)


@cache
def _spec(suite: str) -> SuiteSpec:
    return SuiteSpec.model_validate(open_document(f"papers/{suite}").data)


def steps_of(setting: Setting) -> float:
    """Return the local steps of all clients in one federation."""
    federation = setting.federation
    params = setting.dataset.params
    drawn = federation.clients * federation.participation
    batches = federation.local_batches
    if batches is None:
        samples = params.get("train") or SAMPLES[setting.dataset.name]
        own = samples * (1 - federation.validation - federation.test) / federation.clients
        batches = ceil(own / federation.batch_size)
    return federation.rounds * federation.local_epochs * drawn * batches


def _runs(spec: SuiteSpec, setting: Setting) -> int:
    """Count the federations: the undefended one is trained once for all coalitions, and each active
    attack has one of its own.
    """
    attacks = list(_rows(spec.attacks, setting.attacks))
    active = [name for name in attacks if is_active(name)]
    threats = len(active) + (len(active) < len(attacks))
    defenses = list(_rows(spec.defenses, setting.defenses))
    undefended = defenses.count("none")
    defended = (len(defenses) - undefended) * len(spec.coalitions_of(setting))
    return len(spec.seeds) * threats * (undefended + defended)


def _rows(uses: list[MethodUse], labels: list[str] | None) -> Iterator[str]:
    """Yield the component of each row that a setting has."""
    for use in uses:
        for point in use.points():
            if labels is None or {point.label, grid_of(point.label)} & {*labels}:
                yield use.name


@cache
def is_active(attack: str) -> bool:
    """Tell whether an attack takes part in training."""
    return issubclass(Registry.discover().get("attack", attack).load(), ActiveAttack)
