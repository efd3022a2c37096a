"""Plan a validated suite: jobs and cells with keys. Data is loaded here once, so that mistakes are
found before training.

Only components of fedbench itself are imported in this process. What another package's say of
themselves, their data and their answers come from processes of their own (``ask_apart``), so that
no import of theirs changes a plan or a split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedbench.core.contract.analysis import Analysis
from fedbench.core.contract.attack import ActiveAttack
from fedbench.core.contract.components import Data
from fedbench.core.contract.defense import Defense, needs_coalition
from fedbench.core.contract.errors import UserError
from fedbench.core.federation.guard import remarks_of, require_served
from fedbench.core.federation.setup import public_facts
from fedbench.core.numerics.wrappers import check_precision
from fedbench.core.population.audit import Target, split_digest
from fedbench.core.process.ask import ask_apart, is_own
from fedbench.core.registry.components import Registry
from fedbench.core.registry.digest import engine_digest
from fedbench.core.registry.use import ComponentUse
from fedbench.core.run.checks import (
    Loaded,
    Misspelt,
    declaration_mistake,
    load_data,
    load_outline,
    require_room,
)
from fedbench.core.run.job import Cell, Job, Look, cell_identity, key_of_run
from fedbench.core.run.model_checks import try_model
from fedbench.core.run.needs import Signals
from fedbench.core.run.plan import Plan
from fedbench.core.run.provenance import asked_for, gather
from fedbench.core.run.refusals import Refusals
from fedbench.core.run.scene import defense_of, make_scene, targets_of
from fedbench.core.signals.measure import PRE_DEFENSE
from fedbench.core.spec.load import LoadedSuite
from fedbench.core.spec.resolve import Resolved
from fedbench.core.spec.setting import Adversary, Setting, groups_of, resolve_coalition
from fedbench.core.store.integrity import key_of
from fedbench.core.store.record import remark_note
from fedbench.core.store.stems import stem
from fedbench.core.words import debugging

_DTYPE = "float32"


def make_plan(
    loaded: LoadedSuite,
    resolved: Resolved,
    registry: Registry,
    results: Path,
    device: str,
    settings: set[str] | None = None,
) -> Plan:
    """All jobs of a suite, or of some of its settings: no data of the others is asked for.

    Raises ``UserError`` with every mistake of the data and partitions at once.
    """
    return _Planner(loaded, resolved, registry, results, device).plan(settings)


_NO_LOOK = Look(needs=frozenset(), view="server")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What a component says of itself, known without its code. ``in_coalition``: whether clients
    act in a defense; ``look``: of an attack or an analysis; ``active``: whether an attack takes
    part in training; ``tuning``, ``computes``: whether an analysis reads the runs of tuning seeds,
    and whether it analyses runs.
    """

    root_samples: int = 0
    least_members: int = 1
    in_coalition: bool = False
    look: Look = _NO_LOOK
    active: bool = False
    tuning: bool = False
    computes: bool = False


_DECLARED = TypeAdapter(Declared)


def _declared(kind: str, use: ComponentUse) -> Any:
    """A component's :class:`Declared` as JSON. Raises ``UserError`` for an invalid declaration."""
    made = defense_of(use) if kind == "defense" else use.make()[0]
    if mistake := declaration_mistake(made):
        raise UserError(f"{kind} '{use.name}': {mistake}")
    if isinstance(made, Defense):
        declared = Declared(
            root_samples=made.root_samples,
            least_members=made.least_members,
            in_coalition=needs_coalition(made),
        )
    else:
        declared = Declared(
            look=Look.of(made),
            active=isinstance(made, ActiveAttack),
            tuning=getattr(made, "needs_tuning_seeds", False),
            computes=isinstance(made, Analysis) and type(made).analyse is not Analysis.analyse,
        )
    return _DECLARED.dump_python(declared, mode="json")


Made = tuple[ComponentUse, Declared]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A defense in a coalition of a setting, with its attacks. ``i``: position of the setting;
    ``members`` of the coalition, and of each of several ``coalitions``; ``observed``: for an
    undefended row beside a coalition's, the clients of that coalition.
    """

    i: int
    coalition: str
    members: tuple[int, ...]
    coalitions: tuple[tuple[int, ...], ...]
    use: ComponentUse
    defense: Declared
    attacks: list[Made]
    adversary: Adversary | None
    observed: tuple[int, ...] = ()

    def require_members(self) -> None:
        """Raise ``UserError`` for a coalition, or one of several, of fewer clients than the defense
        takes.
        """
        least = self.defense.least_members
        for group in self.coalitions or (self.members,):
            if 0 < len(group) < least:
                alone = (
                    f"client {group[0]} is"
                    if len(group) == 1
                    else f"clients {', '.join(map(str, group))} are"
                )
                raise UserError(
                    f"'{self.use.label}' takes {least} clients or more, and in the coalition "
                    f"'{self.coalition}' {alone} alone: "
                    "add clients to it, or choose a mode of the defense in which every member "
                    "defends by itself"
                )


class _Planner:
    def __init__(
        self,
        loaded: LoadedSuite,
        resolved: Resolved,
        registry: Registry,
        results: Path,
        device: str,
    ) -> None:
        self.spec, self.resolved, self.results, self.device = loaded.spec, resolved, results, device
        self.provenance = gather(device, _DTYPE)
        self.engine = engine_digest()
        self.notes: dict[str, None] = {}
        # of a setting, a coalition and a defense
        self.remarks: dict[tuple[str, str, str], list[str]] = {}
        self.sizes: dict[tuple[str, str], int] = {}
        self.applicable: dict[tuple[str, str], bool] = {}
        self.misspelt = Misspelt()
        self.signals = Signals(registry, resolved.signals)
        self.refusals = Refusals(loaded, resolved)
        self.asked = asked_for(loaded, resolved, device)

    def plan(self, settings: set[str] | None) -> Plan:
        defenses = [
            (use, made) for use in self.resolved.defenses if (made := self._made("defense", use))
        ]
        attacks = [
            (use, made) for use in self.resolved.attacks if (made := self._made("attack", use))
        ]
        self.analyses = [
            (use, made) for use in self.resolved.analyses if (made := self._made("analysis", use))
        ]
        self._note_unread()
        rows = list(self._rows(settings, defenses, attacks))
        made = self._jobs_of_all(rows)
        jobs: dict[str, Job] = {}
        # the order of the file, whatever the order in which data is needed
        for n in range(len(rows)):
            for seed in self.spec.all_seeds:
                for job in made.get((n, seed), ()):
                    self.refusals.note_twins(jobs.setdefault(job.run_key, job), job)
        self.refusals.raise_all()
        published = tuple(entry.model_dump(mode="json") for entry in self.spec.published)
        asked = tuple(
            {"label": u.label, "name": u.name, "params": u.params} for u in self.resolved.analyses
        )
        return Plan(
            suite=self.spec.name,
            title=self.spec.title or self.spec.name,
            jobs=list(jobs.values()),
            published=published,
            analyses=asked,
            left_out=tuple(
                s.name
                for s in self.spec.settings
                if settings is not None and s.name not in settings
            ),
            notes=tuple(self.notes),
            asked=self.asked,
        )

    def _wanted(self, i: int, kind: str, uses: list[Made]) -> list[Made]:
        """The ``defenses`` or ``attacks`` that a setting runs: all, or those it names (floors too
        must be named there).
        """
        labels = self.refusals.known_labels(i, kind, [use.label for use, _ in uses])
        return [(use, made) for use, made in uses if use.label in labels]

    def _adversary(self, i: int, attacks: list[Made]) -> Adversary | None:
        """The setting's adversary; the default one where it names none but an active attack takes
        part.
        """
        own = self.spec.settings[i].adversary
        return own or (Adversary() if any(a.active for _, a in attacks) else None)

    def _made(self, kind: str, use: ComponentUse) -> Any:
        """The component, or None with its mistake noted."""

        def build() -> Declared:
            made = _DECLARED.validate_python(
                ask_apart(f"{kind} {use}", use.distributions, partial(_declared, kind, use))
            )
            self._require_tuning(use, made)
            self.signals.require(f"{kind} {use}", made.look.needs)
            self.notes |= dict.fromkeys(self.misspelt.of([use]))
            return made

        return self.refusals.ask(self.refusals.place_of(kind, use), f"{kind} '{use.name}'", build)

    def _require_tuning(self, use: ComponentUse, made: Declared) -> None:
        if made.tuning and not self.spec.tuning_seeds:
            raise UserError(
                f"analysis '{use.name}': it chooses strengths on runs that are not reported, and "
                "the suite names no seeds for "
                "them: add for example `tuning_seeds: [100, 101]`, none of them among `seeds`"
            )

    def _note_unread(self) -> None:
        if self.spec.tuning_seeds and not any(made.tuning for _, made in self.analyses):
            self.notes.setdefault(
                "tuning_seeds: no analysis of the suite reads their runs; `tuned` does"
            )

    def _rows(
        self, settings: set[str] | None, defenses: list[Made], attacks: list[Made]
    ) -> Iterator[Row]:
        """Every defense of every coalition of every setting, in the order of the file."""
        for i, setting in enumerate(self.spec.settings):
            if settings is not None and setting.name not in settings:
                continue
            for coalition in self.resolved.settings[i].coalitions:
                members = tuple(resolve_coalition(coalition, setting.federation.clients))
                judges = self._wanted(i, "attacks", attacks)
                adversary = self._adversary(i, judges)
                if adversary:
                    first = setting.federation.clients - adversary.malicious(
                        setting.federation.clients
                    )
                    if self.refusals.adversary_misfits(i, coalition, first):
                        continue
                    members = tuple(k for k in members if k < first)  # who attacks does not defend
                for use, defense in self._wanted(i, "defenses", defenses):
                    if not members and use.label in self.resolved.floors:
                        continue  # a floor stands for a coalition, and there is none
                    one = Row(
                        i=i,
                        coalition=coalition.name,
                        members=members,
                        coalitions=groups_of(coalition),
                        use=use,
                        defense=defense,
                        attacks=judges,
                        adversary=adversary,
                    )
                    yield from (one,) if defense.in_coalition else self._without_members(one)

    def _without_members(self, row: Row) -> Iterator[Row]:
        """The rows of a defense that has no members: one for all coalitions and, for attacks on a
        coalition's mean, one for each coalition, with the mean of the clients that defend in the
        rows beside it.
        """
        setting = self.spec.settings[row.i]
        named = self.resolved.settings[row.i].coalitions
        defended = any(
            resolve_coalition(coalition, setting.federation.clients) for coalition in named
        )
        on_mean = [
            a for a in row.attacks if defended and a[1].look.view == "coalition" and not a[1].active
        ]
        rest = [a for a in row.attacks if a not in on_mean]
        yield replace(row, coalition="none", members=(), coalitions=(), attacks=rest)
        if row.members and on_mean:
            yield replace(row, members=(), observed=row.members, attacks=on_mean)

    def _jobs_of_all(self, rows: list[Row]) -> dict[tuple[int, int], list[Job]]:
        """(position of the row, seed) -> its jobs. One data set of one seed is in memory at a
        time.
        """
        by_data: dict[str, list[int]] = {}
        for n, row in enumerate(rows):
            by_data.setdefault(key_of(self.resolved.settings[row.i].dataset.identity()), []).append(
                n
            )
        found: dict[tuple[int, int], list[Job]] = {}
        for positions in by_data.values():
            for seed in self.spec.all_seeds:
                dataset, place = (
                    self.resolved.settings[rows[positions[0]].i].dataset,
                    self._place(rows[positions[0]]),
                )
                loaded = self.refusals.ask(
                    place, f"dataset '{dataset.name}'", partial(load_outline, dataset, seed)
                )
                if loaded is None:
                    continue
                if loaded.repeated:
                    share = f"{loaded.repeated:.2%} of the hold-out repeats training samples"
                    self.notes.setdefault(f"dataset '{dataset.name}', seed {seed}: {share}")
                splits: dict[Any, str | None] = {}
                found |= {
                    (n, seed): list(self._jobs(rows[n], seed, loaded, splits)) for n in positions
                }
        return found

    def _place(self, row: Row) -> str:
        return self.refusals.place_of_setting(row.i)

    def _jobs(
        self, row: Row, seed: int, loaded: Loaded, splits: dict[Any, str | None]
    ) -> Iterator[Job]:
        """The passive run with all passive attacks, and one run for every active one."""
        if seed == self.spec.seeds[0]:
            self._check_fit(row, seed, loaded.data)
        passive = [(a, made) for a, made in row.attacks if not made.active]
        for attacker in (None, *(a for a, made in row.attacks if made.active)):
            attacks = (
                passive
                if attacker is None
                else [(a, made) for a, made in row.attacks if a is attacker]
            )
            job = self._job(row, seed, loaded, splits, attacker) if attacks else None
            if job is not None:
                yield self._with_cells(job, attacks)

    def _job(
        self,
        row: Row,
        seed: int,
        loaded: Loaded,
        splits: dict[Any, str | None],
        attacker: ComponentUse | None,
    ) -> Job | None:
        setting, used, adversary = (
            self.spec.settings[row.i],
            self.resolved.settings[row.i],
            row.adversary,
        )
        malicious = adversary.malicious(setting.federation.clients) if adversary else 0
        targets = targets_of(setting, row.members or row.observed, malicious)
        root, poisoned = row.defense.root_samples, attacker is not None
        # what a split depends on: many defenses and attacks share one
        at = (row.i, targets, root, poisoned)
        if at not in splits:
            splits[at] = self.refusals.ask(
                self._place(row),
                "partition",
                lambda: split_of(
                    loaded.data,
                    setting,
                    targets,
                    seed,
                    adversary=adversary,
                    poisoned=poisoned,
                    root=root,
                ),
            )
        if (split := splits[at]) is None:
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
            dataset=used.dataset,
            model=used.model,
            defense=row.use,
            attacker=attacker,
            adversary=adversary,
            signals=self.signals.uses,
            analyses=(),
            repeated_holdout=loaded.repeated,
            digests={"data": loaded.digest, "split": split, "engine": self.engine},
            device=self.device,
            results=str(self.results),
            provenance=self.provenance,
            limits=self.spec.limits,
            debug=debugging(),
        )
        analyses = self._analyses_of(job, self._place(row))
        looks = {use.label: made.look for use, made in analyses}
        return replace(job, analyses=tuple(use for use, _ in analyses), looks=looks)

    def _analyses_of(self, job: Job, place: str) -> list[Made]:
        """The analyses that compute something and apply to the job's setting."""
        described = job.described()
        key = key_of(described)

        def applies(use: ComponentUse) -> bool:
            if (use.label, key) not in self.applicable:
                question = partial(
                    ask_apart,
                    f"analysis {use}",
                    use.distributions,
                    lambda: bool(use.make()[0].applies(described)),
                )
                self.applicable[use.label, key] = bool(
                    self.refusals.ask(place, f"analysis '{use.name}'", question)
                )
            return self.applicable[use.label, key]

        return [(use, made) for use, made in self.analyses if made.computes and applies(use)]

    def _check_fit(self, row: Row, seed: int, data: Data) -> None:
        """Whether model, precision and defense can serve this setting."""
        setting, place = self.spec.settings[row.i], self._place(row)
        federation = setting.federation
        size = self._size(row, seed, data)
        self.refusals.ask(
            place, "precision", lambda: check_precision(federation.precision, self.device)
        )

        def remarks() -> list[str]:
            defense = defense_of(row.use)
            facts = public_facts(
                federation,
                defense=defense,
                clients=federation.clients,
                n_classes=data.n_classes,
                n_params=size or 0,
                expected_malicious=row.adversary.expected(federation.clients)
                if row.adversary
                else 0,
                thresholds=setting.thresholds is not None,
            )
            require_served(defense, facts)
            return remarks_of(defense, facts)

        place, party = (
            f"{self.refusals.place_of('defense', row.use)}: in {place}",
            f"defense '{row.use.name}'",
        )
        self.refusals.ask(place, party, row.require_members)
        question = partial(ask_apart, f"defense {row.use}", row.use.distributions, remarks)
        texts = self.refusals.ask(place, party, question) or []
        self.remarks[setting.name, row.coalition, row.use.label] = [
            remark_note(row.use.label, setting.name, t) for t in texts
        ]

    def _size(self, row: Row, seed: int, data: Data) -> int | None:
        """Number of parameters of a setting's model, tried on its data; None with its mistake
        noted.
        """
        dataset, model = self.resolved.settings[row.i].dataset, self.resolved.settings[row.i].model
        pair = key_of(dataset.identity()), key_of(model.identity())

        def tried() -> int:
            whole = data if is_own(dataset.distributions) else load_data(dataset, seed).data
            return try_model(model.make()[0], whole)

        if pair not in self.sizes:
            distributions = [*dataset.distributions, *model.distributions]
            question = partial(ask_apart, f"model {model}", distributions, tried)
            size = self.refusals.ask(self._place(row), f"model '{model.name}'", question)
            if size is None:
                return None
            self.sizes[pair] = size
        return self.sizes[pair]

    def _with_cells(self, base: Job, attacks: list[Made]) -> Job:
        """The job with its key and a cell for each attack."""
        job, cells = replace(base, run_key=key_of_run(base)), list[Cell]()
        read_by_analyses = {name for look in job.looks.values() for name in look.needs}
        remarks = self.remarks.get((job.setting.name, job.coalition, job.defense.label), [])
        for use, made in attacks:
            names = (
                (n, n.removesuffix(PRE_DEFENSE))
                for n in sorted({*made.look.needs, *read_by_analyses})
            )
            signals = {
                n: self.signals.uses[base_name]
                for n, base_name in names
                if base_name in self.signals.uses
            }
            identity = cell_identity(job, use, signals)
            key = key_of({**identity, "run": job.run_key})
            name = stem(
                job.setting.name, job.coalition, job.defense.label, use.label, job.seed, key
            )
            parts = [job.dataset, job.model, job.defense, use, *job.analyses, *signals.values()]
            notes = (*self.misspelt.of(parts), *remarks)
            cells.append(
                Cell(key=key, stem=name, attack=use, look=made.look, identity=identity, notes=notes)
            )
        self.notes |= dict.fromkeys(note for cell in cells for note in cell.notes)
        return replace(job, cells=tuple(cells))


def split_of(
    data: Data, setting: Setting, targets: tuple[Target, ...], seed: int, **adversary: Any
) -> str:
    """The digest of who trains on what and of the candidates: a plan keeps no data."""
    require_room(len(targets), setting, len(data.train_y), len(data.holdout_y))
    scene = make_scene(data, setting, targets, seed, **adversary)
    return split_digest(scene.split, scene.audits)
