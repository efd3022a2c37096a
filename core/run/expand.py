"""Expand a validated suite into jobs and cells with keys. Data is loaded here once, so that
mistakes are found before training.

Only components of fedbench itself are imported in this process. Declarations of another package's
components, their data and their answers come from processes of their own (``ask_apart``), so that
no import of theirs changes a plan or a split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from fedbench.core.contract.components import Data
from fedbench.core.contract.errors import UserError
from fedbench.core.federation.guard import remarks_of, require_served
from fedbench.core.federation.setup import public_facts
from fedbench.core.population.audit import Target, split_digest
from fedbench.core.population.labels import origin_of_nonmembers
from fedbench.core.process.ask import ask_apart, is_own
from fedbench.core.registry.components import Registry
from fedbench.core.registry.digest import engine_digest
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.checks import (
    Loaded,
    bytes_of,
    check_device,
    load_data,
    load_outline,
    require_all_coins,
)
from fedbench.core.run.declarations import Declared, Misspelt, declared
from fedbench.core.run.job import Cell, Job, cell_identity
from fedbench.core.run.model_checks import try_model
from fedbench.core.run.needs import Signals
from fedbench.core.run.plan import Plan
from fedbench.core.run.provenance import gather, stored_suite
from fedbench.core.run.refusals import Refusals
from fedbench.core.run.rows import Declaration, PlannedRow, planned_rows
from fedbench.core.run.scene import defense_of, make_scene, targets_of
from fedbench.core.spec.load import LoadedSuite
from fedbench.core.spec.resolve import Resolved
from fedbench.core.spec.setting import Setting
from fedbench.core.store.integrity import key_of
from fedbench.core.store.record import remark_note
from fedbench.core.store.stems import stem
from fedbench.core.words import debugging

_DTYPE = "float32"

_SplitKey = tuple[int, tuple[Target, ...], int, bool]
_Split = tuple[str, tuple[int, int]]


class Expansion:
    """A suite that is expanded for a results folder and a device."""

    def __init__(
        self,
        loaded: LoadedSuite,
        resolved: Resolved,
        registry: Registry,
        results: Path,
        device: str,
    ) -> None:
        self.loaded = loaded
        self.spec = loaded.spec
        self.resolved = resolved
        self.results = results
        self.device = device
        self.provenance = gather(device, _DTYPE)
        self.engine = engine_digest()
        self.notes: dict[str, None] = {}
        # remarks of a defense, by setting, coalition and its label
        self.remarks: dict[tuple[str, str, str], list[str]] = {}
        self.sizes: dict[tuple[str, str], int] = {}  # of a data set and a model
        self.applicable: dict[tuple[str, str], bool] = {}  # of an analysis and a setting
        self.disk: dict[str, int] = {}  # of a run
        self.misspelt = Misspelt()
        self.signals = Signals(registry, resolved.signals)
        self.refusals = Refusals(loaded, resolved)

    def plan(self, settings: set[str] | None = None) -> Plan:
        """Return all jobs of the suite, or of some of its settings: no data of the rest is loaded.

        Raises:
            UserError: with every mistake of the data and partitions at once.
        """
        defenses = self._declarations("defense", self.resolved.defenses)
        attacks = self._declarations("attack", self.resolved.attacks)
        self.refusals.note_unmatched(defenses, attacks)
        self.analyses = self._declarations("analysis", self.resolved.analyses)
        tuning = any(declaration.tuning for _, declaration in self.analyses)
        if self.spec.tuning_seeds and not tuning:
            note = "tuning_seeds: no analysis of the suite reads their runs; `tuned` does"
            self.notes[note] = None
        rows = list(planned_rows(self.refusals, settings, defenses, attacks))
        jobs = self._in_order(self._jobs_of_rows(rows), len(rows))
        self.refusals.raise_all()
        names = [setting.name for setting in self.spec.settings]
        uses = self.resolved.analyses
        return Plan(
            suite=self.spec.name,
            title=self.spec.title or self.spec.name,
            jobs=jobs,
            published=tuple(entry.model_dump(mode="json") for entry in self.spec.published),
            analyses=tuple({"label": u.label, "name": u.name, "params": u.params} for u in uses),
            left_out=tuple(n for n in names if settings is not None and n not in settings),
            notes=tuple(self.notes),
            disk=self.disk,
            stored=stored_suite(self.loaded, self.resolved, self.device),
        )

    def _in_order(
        self,
        by_row: dict[tuple[int, int], list[Job]],
        n_rows: int,
    ) -> list[Job]:
        """Return the jobs in the order of the file, whatever the order in which data is loaded."""
        jobs: dict[str, Job] = {}
        for place in product(range(n_rows), self.spec.all_seeds):
            for job in by_row.get(place, ()):
                self.refusals.note_twins(jobs.setdefault(job.run_key, job), job)
        return list(jobs.values())

    # -- rows --------------------------------------------------------------------------------------

    def _declarations(
        self,
        kind: str,
        uses: Sequence[ComponentUse],
    ) -> list[Declaration]:
        """Return the components with a valid declaration; the mistakes of the rest are noted."""
        declarations: list[Declaration] = []
        for use in uses:
            place = self.refusals.place_of(kind, use)
            party = f"{kind} {use}"
            declaration = self.refusals.ask(place, party, partial(self._declared, kind, use))
            if declaration is not None:
                declarations.append((use, declaration))
        return declarations

    def _declared(self, kind: str, use: ComponentUse) -> Declared:
        declaration = declared(kind, use)
        if declaration.tuning and not self.spec.tuning_seeds:
            raise UserError(
                f"analysis '{use.name}': it chooses strengths on runs that are not reported, and "
                "the suite names no seeds for them: add for example `tuning_seeds: [100, 101]`, "
                "none of them among `seeds`"
            )
        self.signals.require(f"{kind} {use}", declaration.request.needs)
        self.notes |= dict.fromkeys(self.misspelt.of([use]))
        return declaration

    # -- jobs --------------------------------------------------------------------------------------

    def _jobs_of_rows(self, rows: list[PlannedRow]) -> dict[tuple[int, int], list[Job]]:
        """Return (position of the row, seed) -> its jobs. One data set of one seed is in memory at
        a time.
        """
        by_data: dict[tuple[str, int | None], list[int]] = {}
        for n, row in enumerate(rows):
            setting = self.resolved.settings[row.i]
            key = key_of(setting.dataset.identity()), setting.spec.data_seed
            by_data.setdefault(key, []).append(n)
        jobs: dict[tuple[int, int], list[Job]] = {}
        for positions in by_data.values():
            first = rows[positions[0]]
            setting = self.resolved.settings[first.i]
            dataset = setting.dataset
            for seed in self.spec.all_seeds:
                load = partial(load_outline, dataset, setting.spec.seed_of_data(seed))
                loaded = self.refusals.ask(self._place(first), f"dataset {dataset}", load)
                if loaded is None:
                    continue
                if loaded.repeated:
                    share = f"{loaded.repeated:.2%} of the hold-out repeats training samples"
                    self.notes.setdefault(f"dataset '{dataset.name}', seed {seed}: {share}")
                splits: dict[_SplitKey, _Split | None] = {}
                for n in positions:
                    jobs[n, seed] = list(self._jobs(rows[n], seed, loaded, splits))
        return jobs

    def _place(self, row: PlannedRow) -> str:
        return self.refusals.place_of_setting(row.i)

    def _jobs(
        self,
        row: PlannedRow,
        seed: int,
        loaded: Loaded,
        splits: dict[_SplitKey, _Split | None],
    ) -> Iterator[Job]:
        """Return the passive run with all passive attacks, and one run for every active one."""
        if seed == self.spec.seeds[0]:
            self._check_fit(row, seed, loaded.data)
        passive = [(use, attack) for use, attack in row.attacks if not attack.active]
        trainings: list[tuple[ComponentUse | None, list[Declaration]]] = [(None, passive)]
        trainings += [(use, [(use, attack)]) for use, attack in row.attacks if attack.active]
        for attacker, attacks in trainings:
            planned = self._job(row, seed, loaded, splits, attacker) if attacks else None
            if planned is not None:
                job = self._with_cells(planned[0], attacks)
                self.disk[job.stem] = bytes_of(job, *planned[1])
                yield job

    def _job(
        self,
        row: PlannedRow,
        seed: int,
        loaded: Loaded,
        splits: dict[_SplitKey, _Split | None],
        attacker: ComponentUse | None,
    ) -> tuple[Job, tuple[int, int]] | None:
        """Return a job without cells, and the arguments of :func:`bytes_of`."""
        resolved = self.resolved.settings[row.i]
        setting = resolved.spec
        adversary = row.adversary
        malicious = adversary.malicious(setting.federation.clients) if adversary else 0
        targets = targets_of(setting, row.members or row.observed, malicious)
        # what a split depends on: many defenses and attacks share one
        key = (row.i, targets, row.defense.root_samples, attacker is not None)
        if key not in splits:
            digest = partial(_split_of, row, setting, targets, seed, loaded.data, key[-1])
            splits[key] = self.refusals.ask(self._place(row), "partition", digest)
        split = splits[key]
        if split is None:
            return None
        job = Job(
            suite=self.spec.name,
            setting=setting,
            coalition=row.coalition,
            members=row.members,
            coalitions=row.coalitions,
            observed=row.observed,
            targets=targets,
            seed=seed,
            tuning=seed in self.spec.tuning_seeds,
            dataset=resolved.dataset,
            model=resolved.model,
            defense=row.use,
            attacker=attacker,
            adversary=adversary,
            signals=self.signals.uses,
            analyses=(),
            digests={"data": loaded.digest, "split": split[0], "engine": self.engine},
            repeated_holdout=loaded.repeated,
            nonmembers=origin_of_nonmembers(loaded.data, setting.federation.clients),
            device=self.device,
            results=str(self.results),
            provenance=self.provenance,
            limits=self.spec.limits,
            debug=debugging(),
        )
        return self._with_analyses(job, self._place(row)), split[1]

    def _with_analyses(self, job: Job, place: str) -> Job:
        """Return the job with the analyses that compute something and apply to its setting."""
        described = job.described()
        key = key_of(described)
        analyses: list[Declaration] = []
        for use, declaration in self.analyses:
            if not declaration.computes:
                continue
            if (use.label, key) not in self.applicable:
                party = f"analysis {use}"
                applies = partial(
                    ask_apart, party, use.distributions, partial(_applies, use, described)
                )
                self.applicable[use.label, key] = bool(self.refusals.ask(place, party, applies))
            if self.applicable[use.label, key]:
                analyses.append((use, declaration))
        return replace(
            job,
            analyses=tuple(use for use, _ in analyses),
            requests={use.label: declaration.request for use, declaration in analyses},
        )

    def _with_cells(self, job: Job, attacks: list[Declaration]) -> Job:
        """Return the job with a cell for each attack."""
        setting = job.setting.name
        coalition = job.coalition
        defense = job.defense.label
        remarks = self.remarks.get((setting, coalition, defense), [])
        cells: list[Cell] = []
        for use, attack in attacks:
            cell = Cell(key="", stem="", attack=use, request=attack.request)
            key = key_of({**cell_identity(job, cell), "run": job.run_key})
            signals = job.signals_of(cell).values()
            parts = [job.dataset, job.model, job.defense, use, *job.analyses, *signals]
            notes = (*self.misspelt.of(parts), *remarks)
            name = stem(
                setting,
                coalition,
                defense,
                use.label,
                job.seed,
                key,
            )
            cells.append(replace(cell, key=key, stem=name, notes=notes))
            self.notes |= dict.fromkeys(notes)
        return replace(job, cells=tuple(cells))

    # -- whether model, precision and defense can serve a setting ----------------------------------

    def _check_fit(
        self,
        row: PlannedRow,
        seed: int,
        data: Data,
    ) -> None:
        setting = self.spec.settings[row.i]
        place = self._place(row)
        size = self._size(row, seed, data)
        self.refusals.ask(place, "precision", partial(check_device, setting, self.device))
        party = f"defense {row.use}"
        place = f"{self.refusals.place_of('defense', row.use)}: in {place}"
        self.refusals.ask(place, party, row.require_members)
        remarks = partial(_remarks, row, setting, data.n_classes, size or 0)
        question = partial(ask_apart, party, row.use.distributions, remarks)
        texts = self.refusals.ask(place, party, question) or []
        self.remarks[setting.name, row.coalition, row.use.label] = [
            remark_note(row.use.label, setting.name, text) for text in texts
        ]

    def _size(
        self,
        row: PlannedRow,
        seed: int,
        data: Data,
    ) -> int | None:
        """Return the number of parameters of a setting's model, tried on its data; None with its
        mistake noted.
        """
        resolved = self.resolved.settings[row.i]
        dataset = resolved.dataset
        model = resolved.model
        key = key_of(dataset.identity()), key_of(model.identity())

        def try_it() -> int:
            samples = data if is_own(dataset.distributions) else load_data(dataset, seed).data
            return try_model(model.make()[0], samples)

        if key not in self.sizes:
            party = f"model {model}"
            distributions = [*dataset.distributions, *model.distributions]
            question = partial(ask_apart, party, distributions, try_it)
            size = self.refusals.ask(self._place(row), party, question)
            if size is None:
                return None
            self.sizes[key] = size
        return self.sizes[key]


def _remarks(
    row: PlannedRow,
    setting: Setting,
    n_classes: int,
    n_params: int,
) -> list[str]:
    """Return the remarks of a defense on a setting. Raises ``UserError`` if it cannot serve it."""
    clients = setting.federation.clients
    adversary = row.adversary
    defense = defense_of(row.use)
    facts = public_facts(
        setting.federation,
        defense=defense,
        clients=clients,
        n_classes=n_classes,
        n_params=n_params,
        expected_malicious=adversary.expected(clients) if adversary else 0,
        thresholds=setting.thresholds is not None,
    )
    require_served(defense, facts)
    return remarks_of(defense, facts)


def _applies(use: ComponentUse, described: dict[str, Any]) -> bool:
    return bool(use.make()[0].applies(described))


def _split_of(
    row: PlannedRow,
    setting: Setting,
    targets: tuple[Target, ...],
    seed: int,
    data: Data,
    poisoned: bool,
) -> _Split:
    """Return the digest of who trains on what and of the candidates, and the numbers of samples
    that signals are measured on and of candidates: a plan keeps no data.
    """
    scene = make_scene(
        data,
        setting,
        targets,
        seed,
        adversary=row.adversary,
        poisoned=poisoned,
        root=row.defense.root_samples,
    )
    if setting.federation.test_by == "coin" and setting.audit.members_from == "training":
        require_all_coins(scene)
    candidates = sum(len(audit.ids) for audit in scene.audits)
    return split_digest(scene.split, scene.audits), (len(scene.pool), candidates)
