"""From a validated suite to jobs and cells with keys. Data is loaded here once, so its mistakes are found before training."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbench.core.apart.channel import at_work
from fedbench.core.contract.analysis import Analysis
from fedbench.core.contract.attack import ActiveAttack, Attack
from fedbench.core.contract.dataset import Data
from fedbench.core.contract.defense import Defense, needs_coalition
from fedbench.core.contract.errors import UserError
from fedbench.core.execution.plugin_checks import declaration_mistake, require_data, try_model
from fedbench.core.execution.provenance import gather
from fedbench.core.execution.refusals import Refusals
from fedbench.core.experiment.candidates import targets_of
from fedbench.core.experiment.job import Cell, Job, key_of_run
from fedbench.core.experiment.parts import defense_of
from fedbench.core.experiment.scene import make_scene
from fedbench.core.federation.setup import public_facts
from fedbench.core.numerics.precision import check_precision
from fedbench.core.population.audit import split_digest
from fedbench.core.registry.ask import long_patience
from fedbench.core.registry.components import Registry
from fedbench.core.registry.digest import engine_digest
from fedbench.core.registry.use import ComponentUse, UseMaker
from fedbench.core.signals.measure import PRE_DEFENSE
from fedbench.core.spec.coalition import resolve_coalition
from fedbench.core.spec.load import LoadedSuite
from fedbench.core.spec.resolve import Resolved
from fedbench.core.spec.suite import Adversary, Setting
from fedbench.core.store.canonical import key_of

_DTYPE = "float32"
_MOST_OF_A_NAME = 48  # letters: five names and a key stay below the 255 that a file name may have


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Every job of a suite with all of its cells, in the order of the file."""

    suite: str
    title: str
    jobs: list[Job]
    published: tuple[dict[str, Any], ...] = ()
    """published numbers that the board prints beside ours"""
    analyses: tuple[dict[str, Any], ...] = ()
    """the suite's analyses, as a board finds and draws them: label, name, params"""
    left_out: tuple[str, ...] = ()
    """settings of the suite that were not planned"""

    @property
    def cells(self) -> list[str]:
        """Every cell's stem."""
        return [cell.stem for job in self.jobs for cell in job.cells]

    def and_left_out(self, cells: Iterable[str]) -> list[str]:
        """The plan's cells and, of ``cells``, those of settings that were not planned now."""
        names = tuple(f"{_word(name)}--" for name in self.left_out)
        return [*self.cells, *(c for c in cells if names and c.startswith(names))]

    def only(self, **wanted: set[str]) -> Plan:
        """The part whose ``setting``, ``coalition``, ``defense``, ``attack`` and ``seed`` are among the wanted ones."""
        jobs = []
        for job in self.jobs:
            mine = {
                "setting": {job.setting.name}, "coalition": {job.coalition}, "seed": {str(job.seed)},
                "defense": {job.defense.label, job.defense.name},
            }  # fmt: skip
            if not job.members:  # an undefended run serves every coalition
                mine["coalition"] |= wanted.get("coalition", set())
            if any(not mine[k] & v for k, v in wanted.items() if k in mine):
                continue
            attacks = wanted.get("attack")
            cells = tuple(c for c in job.cells if not attacks or attacks & {c.attack.label, c.attack.name})
            if cells:
                jobs.append(replace(job, cells=cells))
        if not jobs:
            raise UserError(f"--only {_only_text(wanted)} leaves no cell; `fedbench run SUITE --dry-run` shows what there is")
        return replace(self, jobs=jobs)


def make_plan(
    loaded: LoadedSuite, resolved: Resolved, registry: Registry, results: Path, device: str, settings: set[str] | None = None
) -> Plan:
    """All jobs of a suite, or of some of its settings: no data of the others is asked for.

    Raises ``UserError`` with every mistake of the data and partitions at once.
    """
    return _Planner(loaded, resolved, registry, results, device).plan(settings)


def check_plan(loaded: LoadedSuite, resolved: Resolved) -> None:
    """Everything ``fedbench run`` would refuse: data, partitions, audits, models. Raises ``UserError`` with all of it."""
    make_plan(loaded, resolved, Registry.discover(), Path(), "cpu")


class _Planner:
    def __init__(
        self, loaded: LoadedSuite, resolved: Resolved, registry: Registry, results: Path, device: str
    ) -> None:
        self.spec, self.resolved = loaded.spec, resolved
        self.results, self.device = results, device
        self.provenance = gather(device, _DTYPE)
        self.engine = engine_digest()
        self._loads: dict[tuple[str, int], tuple[Data, str]] = {}
        self._scenes: dict[Any, Any] = {}
        use = UseMaker()
        self.signals = {c.name: use(c, {}, c.name) for c in registry.components("signal")}
        self.refusals = Refusals(loaded, resolved)

    def plan(self, settings: set[str] | None) -> Plan:
        defenses = [(use, made) for use in self.resolved.defenses if (made := self._made("defense", use))]
        attacks = [(use, made) for use in self.resolved.attacks if (made := self._made("attack", use))]
        self.analyses = [(use, made) for use in self.resolved.analyses if (made := self._made("analysis", use))]
        jobs: dict[str, Job] = {}
        for i, setting in enumerate(self.spec.settings):
            if settings is not None and setting.name not in settings:
                continue
            for coalition in self.resolved.settings[i].coalitions:
                members = tuple(resolve_coalition(coalition, setting.federation.clients))
                judges = self._wanted(i, "attacks", attacks)
                adversary = self._adversary(i, judges)
                if adversary:
                    first = setting.federation.clients - adversary.malicious(setting.federation.clients)
                    if self.refusals.adversary_misfits(i, coalition, first):
                        continue
                    members = tuple(k for k in members if k < first)  # who attacks does not defend
                for use, defense in self._wanted(i, "defenses", defenses):
                    if not members and use.label in self.resolved.floors:
                        continue  # where nobody defends, nobody can do so in name only
                    where = (coalition.name, members) if needs_coalition(defense) else ("none", ())
                    for seed in self.spec.seeds:
                        for job in self._jobs(i, *where, use, defense, judges, seed, adversary):
                            self.refusals.note_twins(jobs.setdefault(job.run_key, job), job)
        self.refusals.raise_all()
        published = tuple(entry.model_dump(mode="json") for entry in self.spec.published)
        asked = tuple({"label": u.label, "name": u.name, "params": u.params} for u in self.resolved.analyses)
        return Plan(
            suite=self.spec.name, title=self.spec.title or self.spec.name, jobs=list(jobs.values()), published=published,
            analyses=asked,
            left_out=tuple(s.name for s in self.spec.settings if settings is not None and s.name not in settings),
        )  # fmt: skip

    def _wanted(self, i: int, kind: str, uses: list[tuple[ComponentUse, Any]]) -> list[tuple[ComponentUse, Any]]:
        """The ``defenses`` or ``attacks`` that a setting runs: all, or those it names (floors too must be named there)."""
        labels = self.refusals.known_labels(i, kind, [use.label for use, _ in uses])
        return [(use, made) for use, made in uses if use.label in labels]

    def _adversary(self, i: int, attacks: list[tuple[ComponentUse, Attack]]) -> Adversary | None:
        """The setting's adversary; the default one where it names none but an active attack takes part."""
        own = self.spec.settings[i].adversary
        return own or (Adversary() if any(isinstance(a, ActiveAttack) for _, a in attacks) else None)

    def _made(self, kind: str, use: ComponentUse) -> Any:
        """The component, or None with its mistake noted."""

        def build() -> Any:
            made = defense_of(use) if kind == "defense" else use.make()[0]
            if mistake := declaration_mistake(made):
                raise UserError(f"{kind} '{use.name}': {mistake}")
            return made

        return self.refusals.ask(self.refusals.place_of(kind, use), f"{kind} '{use.name}'", build)

    def _jobs(
        self, i: int, coalition: str, members: tuple[int, ...], use: ComponentUse, defense: Defense,
        attacks: list[tuple[ComponentUse, Attack]], seed: int, adversary: Adversary | None,
    ) -> Iterable[Job]:  # fmt: skip
        """The passive run with all passive attacks, and one run for every active one."""
        passive = [(a, made) for a, made in attacks if not isinstance(made, ActiveAttack)]
        for attacker in (None, *(a for a, made in attacks if isinstance(made, ActiveAttack))):
            mine = passive if attacker is None else [(a, made) for a, made in attacks if a is attacker]
            base = self._base(i, coalition, members, use, defense, seed, adversary, attacker) if mine else None
            if base is not None:
                yield self._with_cells(base, mine)

    def _base(
        self, i: int, coalition: str, members: tuple[int, ...], use: ComponentUse, defense: Defense, seed: int,
        adversary: Adversary | None, attacker: ComponentUse | None,
    ) -> Job | None:  # fmt: skip
        setting, used = self.spec.settings[i], self.resolved.settings[i]
        targets = targets_of(setting, members, adversary.malicious(setting.federation.clients) if adversary else 0)
        where = self.refusals.place_of_setting(i)
        found = self.refusals.ask(where, f"dataset '{used.dataset.name}'", lambda: self._load(used.dataset, seed))
        if found is None:
            return None
        data, digest = found
        root, poisoned = defense.root_samples, attacker is not None
        at = (i, seed, targets, root, poisoned)  # what a scene depends on: many defenses and attacks share one
        if at not in self._scenes:
            self._scenes[at] = self.refusals.ask(where, "partition", lambda: make_scene(
                data, setting, targets, seed, adversary=adversary, poisoned=poisoned, root=root
            ))  # fmt: skip
        scene = self._scenes[at]
        if seed == self.spec.seeds[0]:
            self._check_fit(where, setting, used.model, use, defense, data, adversary)
        if scene is None:
            return None
        job = Job(
            suite=self.spec.name, setting=setting, coalition=coalition, members=members, targets=targets, seed=seed,
            dataset=used.dataset, model=used.model, defense=use, attacker=attacker, adversary=adversary,
            signals=self.signals, analyses=(),
            digests={"data": digest, "split": split_digest(scene.shards, scene.audits), "engine": self.engine},
            device=self.device, results=str(self.results), provenance=self.provenance, limits=self.spec.limits,
        )  # fmt: skip
        return replace(job, analyses=self._asked(job, where))

    def _asked(self, job: Job, where: str) -> tuple[ComponentUse, ...]:
        """The analyses that compute something and have something to say in the job's setting."""
        described = job.described()

        def applies(use: ComponentUse, made: Analysis) -> bool:
            return bool(self.refusals.ask(where, f"analysis '{use.name}'", lambda: made.applies(described)))

        computing = [(use, made) for use, made in self.analyses if type(made).analyse is not Analysis.analyse]
        return tuple(use for use, made in computing if applies(use, made))

    def _check_fit(
        self, where: str, setting: Setting, model: ComponentUse, use: ComponentUse, defense: Defense, data: Data,
        adversary: Adversary | None,
    ) -> None:  # fmt: skip
        """Whether model, precision and defense can serve this setting; asked once a setting and defense."""
        federation = setting.federation
        size = self.refusals.ask(where, f"model '{model.name}'", lambda: try_model(model.make()[0], data))
        self.refusals.ask(where, "precision", lambda: check_precision(federation.precision, self.device))
        facts = public_facts(
            federation, clients=federation.clients, n_classes=data.n_classes, n_params=size or 0,
            expected_malicious=adversary.expected(federation.clients) if adversary else 0,
            thresholds=setting.thresholds is not None,
        )  # fmt: skip
        place = f"{self.refusals.place_of('defense', use)}: in {where}"
        self.refusals.ask(place, f"defense '{use.name}'", lambda: defense.check(facts))

    def _load(self, dataset: ComponentUse, seed: int) -> tuple[Data, str]:
        at = (key_of(dataset.identity()), seed)
        if at not in self._loads:
            made = dataset.make()[0]
            with at_work(f"dataset {dataset}", long_patience()):
                data = require_data(made.load(seed), dataset.name)
            self._loads[at] = data, data.digest()
        return self._loads[at]

    def _with_cells(self, base: Job, attacks: list[tuple[ComponentUse, Attack]]) -> Job:
        job = replace(base, run_key=key_of_run(base))
        analyses = {use.label: use.identity() for use in job.analyses}
        read = {name for use, made in self.analyses if use in job.analyses for name in made.needs}
        cells = []
        for use, made in attacks:
            names = {n: n.removesuffix(PRE_DEFENSE) for n in sorted({*made.needs, *read})}
            needs = {n: self.signals[base].identity() for n, base in names.items() if base in self.signals}
            key = key_of({"run": job.run_key, "attack": use.identity(), "signals": needs, "analyses": analyses})
            cells.append(Cell(key=key, stem=_stem(job, use, key), attack=use, view=made.view))
        return replace(job, cells=tuple(cells))


def _stem(job: Job, attack: ComponentUse, key: str) -> str:
    """A file name people can read; the key's first letters make it unique."""
    words = [job.setting.name, job.coalition, job.defense.label, attack.label, f"s{job.seed}", key[:12]]
    return "--".join(map(_word, words))


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9=.,_-]+", "_", name)[:_MOST_OF_A_NAME]


def _only_text(wanted: dict[str, set[str]]) -> str:
    return ",".join(f"{k}={v}" for k, vs in wanted.items() for v in sorted(vs))
