"""From a validated suite to jobs and cells with keys. Data is loaded here once, so its mistakes are found before training."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedbench.core.contract.attack import ActiveAttack, Attack, KnowledgeLevel
from fedbench.core.contract.contexts import Federation
from fedbench.core.contract.dataset import Data
from fedbench.core.contract.defense import Defense, overrides
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import CONTRACT_VERSION
from fedbench.core.execution.plugin_checks import declaration_mistake, require_data, try_model
from fedbench.core.execution.provenance import gather
from fedbench.core.experiment.job import Cell, Job, Use, key_of
from fedbench.core.experiment.scene import make_scene
from fedbench.core.numerics.precision import check_precision
from fedbench.core.population.audit import FIRST_GROUP, HONEST, split_digest
from fedbench.core.registry.components import RegisteredComponent, Registry
from fedbench.core.registry.digest import engine_digest, source_digest
from fedbench.core.signals.measure import PRE_DEFENSE
from fedbench.core.spec.coalition import Coalition, resolve_coalition
from fedbench.core.spec.load import LoadedSuite
from fedbench.core.spec.resolve import Resolved, ResolvedUse
from fedbench.core.spec.suite import Adversary
from fedbench.core.words.explain import explain
from fedbench.core.words.nearest import did_you_mean

PHASES = (
    "begin", "prepare", "assign", "select", "transform", "loss", "local_step", "local_train", "protect", "coordinate",
    "aggregate", "after_round",
)  # fmt: skip
_DTYPE = "float32"
_LEVELS: dict[str, KnowledgeLevel] = {"none": "none", "partial": "own", "full": "honest", "rule": "rule"}
_MOST_OF_A_NAME = 48  # letters: five names and a key stay below the 255 that a file name may have


@dataclass(frozen=True)
class Plan:
    """Every job of a suite with all of its cells, in the order of the file."""

    suite: str
    title: str
    jobs: list[Job]
    published: tuple[dict[str, Any], ...] = ()
    """published numbers that the board prints beside ours"""

    @property
    def cells(self) -> list[str]:
        """Every cell's stem."""
        return [cell.stem for job in self.jobs for cell in job.cells]

    def only(self, **wanted: set[str]) -> Plan:
        """The part whose ``setting``, ``coalition``, ``defense``, ``attack`` and ``seed`` are among the wanted ones."""
        jobs = []
        for job in self.jobs:
            mine = {
                "setting": {job.setting}, "coalition": {job.coalition}, "seed": {str(job.seed)},
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


def make_plan(loaded: LoadedSuite, resolved: Resolved, registry: Registry, results: Path, device: str) -> Plan:
    """All jobs of a suite. Raises ``UserError`` with every mistake of the data and partitions at once."""
    return _Planner(loaded, resolved, registry, results, device).plan()


def check_plan(loaded: LoadedSuite, resolved: Resolved) -> None:
    """Everything ``fedbench run`` would refuse: data, partitions, audits, models. Raises ``UserError`` with all of it."""
    make_plan(loaded, resolved, Registry.discover(), Path(), "cpu")


def coalition_free(defense: Defense) -> bool:
    """Whether no client does anything: one run (of an undefended federation, of a server's rule) serves every coalition."""
    return defense.n_models == 1 and not any(overrides(defense, p) for p in PHASES if p != "aggregate")


class _Planner:
    def __init__(
        self, loaded: LoadedSuite, resolved: Resolved, registry: Registry, results: Path, device: str
    ) -> None:
        self.spec, self.resolved = loaded.spec, resolved
        self.loaded = loaded
        self.results, self.device = results, device
        self.provenance = gather(device, _DTYPE)
        self.engine = engine_digest()
        self._digests: dict[str, str] = {}
        self._loads: dict[tuple[str, int], tuple[Data, str]] = {}
        self._scenes: dict[Any, Any] = {}
        self.signals = {c.name: self._use(c, {}, c.name) for c in registry.components("signal")}
        self.problems: list[str] = []

    def plan(self) -> Plan:
        defenses = [(use, made) for use in self.resolved.defenses if (made := self._made("defense", use))]
        attacks = [(use, made) for use in self.resolved.attacks if (made := self._made("attack", use))]
        jobs: dict[str, Job] = {}
        for i, setting in enumerate(self.spec.settings):
            for coalition in self.resolved.settings[i].coalitions:
                members = tuple(resolve_coalition(coalition, setting.federation.clients))
                judges = self._wanted(i, "attacks", attacks)
                insider = self._insider(i, judges)
                if insider:
                    first = setting.federation.clients - insider["malicious"]
                    if self._adversary_misfits(i, coalition, first):
                        continue
                    members = tuple(k for k in members if k < first)  # who attacks does not defend
                for use, defense in self._wanted(i, "defenses", defenses):
                    where = ("none", ()) if coalition_free(defense) else (coalition.name, members)
                    for seed in self.spec.seeds:
                        for job in self._jobs(i, *where, use, defense, judges, seed, insider):
                            self._note_twins(jobs.setdefault(job.run_key, job), job)
        if self.problems:
            raise UserError(*dict.fromkeys(self.problems))
        published = tuple(entry.model_dump(mode="json") for entry in self.spec.published)
        return Plan(self.spec.name, self.spec.title or self.spec.name, list(jobs.values()), published)

    def _wanted(self, i: int, kind: str, uses: list[tuple[ResolvedUse, Any]]) -> list[tuple[ResolvedUse, Any]]:
        """The ``defenses`` or ``attacks`` that a setting runs: all, or those it names."""
        names = getattr(self.spec.settings[i], kind)
        if names is None:
            return uses
        labels = [use.label for use, _ in uses]
        for j, name in enumerate(names):
            if name not in labels:
                line, column = self.loaded.position(("settings", i, kind, j))
                text = f"unknown label '{name}'{did_you_mean(name, labels)}; the suite's are {', '.join(labels)}"
                self.problems.append(f"{self.loaded.path}:{line}:{column}: settings[{i}].{kind}[{j}]: {text}")
        return [(use, made) for use, made in uses if use.label in names]

    def _insider(self, i: int, attacks: list[tuple[ResolvedUse, Attack]]) -> dict[str, Any] | None:
        """The setting's adversary in numbers; the default one where it names none but an active attack takes part."""
        setting = self.spec.settings[i]
        who = setting.adversary or (Adversary() if any(isinstance(a, ActiveAttack) for _, a in attacks) else None)
        if who is None:
            return None
        malicious = who.malicious(setting.federation.clients)
        return {
            "malicious": malicious, "knowledge": _LEVELS[who.knowledge], "mask_set": who.mask_set,
            "start_round": who.start_round, "assumed": malicious if who.assumed is None else who.assumed,
        }  # fmt: skip

    def _adversary_misfits(self, i: int, coalition: Coalition, first: int) -> bool:
        """Whether nobody is left to attack, or a malicious client (from id ``first`` on) is named as a member or a target.

        Asked here, not of the file alone: a setting that names no adversary has one where an active attack takes part.
        """
        setting, found = self.spec.settings[i], []
        targets = [] if isinstance(setting.audit.targets, str) else setting.audit.targets
        if first < 1:
            found.append("an active attack controls a client, which leaves nobody to attack: raise federation.clients")
        else:
            found += [
                f"{what} names client {k}, which is malicious (those from {first} on are): {remedy}"
                for what, ids, remedy in (
                    ("audit.targets", targets, "an adversary does not attack its own clients; remove it"),
                    (f"the coalition '{coalition.name}'", coalition.clients or [], "who attacks does not defend; remove it"),
                )
                for k in ids if k >= first
            ]  # fmt: skip
        line, column = self.loaded.position(("settings", i))
        self.problems += [f"{self.loaded.path}:{line}:{column}: setting '{setting.name}': {text}" for text in found]
        return bool(found)

    def _made(self, kind: str, use: ResolvedUse) -> Any:
        """The component, or None with its mistake noted."""

        def build() -> Any:
            made = use.build()
            if mistake := declaration_mistake(made):
                raise UserError(f"{kind} '{use.name}': {mistake}")
            return made

        return self._ask(self._place(use), f"{kind} '{use.name}'", build)

    def _place(self, use: ResolvedUse) -> str:
        return f"{self.loaded.path}:{use.position[0]}:{use.position[1]}"

    def _ask(self, place: str, who: str, question: Callable[[], Any]) -> Any:
        """What somebody's code answers, or None with its failure noted: here nothing may end in a traceback."""
        try:
            return question()
        except UserError as error:
            self.problems += [f"{place}: {message}" for message in error.messages]
        except (Exception, SystemExit) as error:
            self.problems.append(f"{place}: {who}: {explain(error)}")
        return None

    def _note_twins(self, kept: Job, job: Job) -> None:
        """Two rows of the suite that are one training would be one row of the board: refused, not dropped."""
        kinds = ("setting", "coalition", "defense")
        one, two = ((j.setting, j.coalition, j.defense.label) for j in (kept, job))
        for kind, a, b in zip(kinds, one, two, strict=True):
            if a != b:
                same = f"hold the same clients {list(job.members)}" if kind == "coalition" else "are the same in all that counts"
                remedy = "remove one"
                if kept.insider != job.insider:
                    passive = ", ".join(cell.attack.label for cell in job.cells)
                    same = f"differ in their adversary alone, which does not act under {passive}"
                    remedy = "give all of them but one `attacks:` without these"
                where = f"{self.loaded.path}: setting '{job.setting}'"
                self.problems.append(f"{where}: the {kind}s '{a}' and '{b}' {same}: {remedy}")

    def _jobs(
        self, i: int, coalition: str, members: tuple[int, ...], use: ResolvedUse, defense: Defense,
        attacks: list[tuple[ResolvedUse, Attack]], seed: int, insider: dict[str, Any] | None,
    ) -> Iterable[Job]:  # fmt: skip
        """The passive run with all passive attacks, and one run for every active one."""
        passive = [(a, made) for a, made in attacks if not isinstance(made, ActiveAttack)]
        for adversary in (None, *(a for a, made in attacks if isinstance(made, ActiveAttack))):
            mine = passive if adversary is None else [(a, made) for a, made in attacks if a is adversary]
            base = self._base(i, coalition, members, use, defense, seed, insider, adversary) if mine else None
            if base is not None:
                yield self._with_cells(base, mine)

    def _base(
        self, i: int, coalition: str, members: tuple[int, ...], use: ResolvedUse, defense: Defense, seed: int,
        insider: dict[str, Any] | None, adversary: ResolvedUse | None,
    ) -> Job | None:  # fmt: skip
        setting, limits = self.spec.settings[i], self.spec.limits
        federation, audit = setting.federation.model_dump(mode="json", exclude={"recipe"}), setting.audit.model_dump(mode="json")
        rule = setting.partition.model_dump()
        if rule["beta"] is not None:
            rule["beta"] = "inf" if math.isinf(rule["beta"]) else rule["beta"]
        wanted = audit["targets"]
        # an adversary does not infer the data of the clients it controls: the last ones
        honest = tuple(range(federation["clients"] - (insider["malicious"] if insider else 0)))
        groups = [g.model_dump(mode="json") for g in setting.groups] if setting.groups else None
        together = {"honest": (HONEST,), "groups": tuple(FIRST_GROUP - g for g in range(len(groups or ())))}
        targets = tuple(wanted) if isinstance(wanted, list) else together.get(wanted) or members or honest
        used = self.resolved.settings[i]
        dataset = self._of(used.dataset)
        line, column = self.loaded.position(("settings", i))
        where = f"{self.loaded.path}:{line}:{column}: setting '{setting.name}'"
        found = self._ask(where, f"dataset '{dataset.name}'", lambda: self._load(dataset, seed))
        if found is None:
            return None
        data, digest = found
        root, poisoned = defense.root_samples, adversary is not None
        at = (i, seed, targets, root, poisoned)  # what a scene depends on: many defenses and attacks share one
        if at not in self._scenes:
            self._scenes[at] = self._ask(where, "partition", lambda: make_scene(
                data, rule, federation, audit, targets, seed, insider, root, poisoned, groups, setting.thresholds
            ))  # fmt: skip
        scene = self._scenes[at]
        if seed == self.spec.seeds[0]:
            size = self._ask(where, f"model '{used.model.name}'", lambda: try_model(used.model.build(), data))
            self._ask(where, "precision", lambda: check_precision(federation["precision"], self.device))
            facts = Federation(
                federation["clients"], federation["rounds"], federation["local_epochs"], federation["batch_size"],
                federation["participation"], data.n_classes, size or 0, insider["assumed"] if insider else 0,
                setting.thresholds is not None,
            )  # fmt: skip
            self._ask(f"{self._place(use)}: in {where}", f"defense '{use.name}'", lambda: defense.check(facts))
        if scene is None:
            return None
        digests = {"data": digest, "split": split_digest(scene.shards, scene.audits), "engine": self.engine}
        return Job(
            "", self.spec.name, setting.name, coalition, members, targets, seed, dataset,
            self._of(self.resolved.settings[i].model), self._of(use), self._of(adversary) if adversary else None, insider,
            self.signals, rule, federation, audit, groups, setting.thresholds, digests, self.device, str(self.results),
            self.provenance, limits.run_seconds, limits.memory_gb,
        )  # fmt: skip

    def _load(self, dataset: Use, seed: int) -> tuple[Data, str]:
        at = (key_of(dataset.identity()), seed)
        if at not in self._loads:
            data = require_data(dataset.make().load(seed), dataset.name)
            self._loads[at] = data, data.digest()
        return self._loads[at]

    def _use(self, registered: RegisteredComponent, params: dict[str, Any], label: str) -> Use:
        target = registered.component.target
        module = target.partition(":")[0]
        if module not in self._digests:
            self._digests[module] = source_digest(module)
        distribution = f"{registered.distribution} {registered.version}"
        return Use(registered.name, label, params, target, distribution, self._digests[module])

    def _of(self, use: ResolvedUse) -> Use:
        then = tuple(self._of(part) for part in use.then)
        return replace(self._use(use.registered, use.params, use.label), then=then)

    def _with_cells(self, base: Job, attacks: list[tuple[ResolvedUse, Attack]]) -> Job:
        run_key = key_of(_identity(base, self.provenance))
        job = replace(base, run_key=run_key)
        cells = []
        for use, made in attacks:
            attack = self._of(use)
            names = {n: n.removesuffix(PRE_DEFENSE) for n in sorted(made.needs)}
            needs = {n: self.signals[base].identity() for n, base in names.items() if base in self.signals}
            key = key_of({"run": run_key, "attack": attack.identity(), "signals": needs})
            cells.append(Cell(key, _stem(job, attack, key), attack, made.view))
        return replace(job, cells=tuple(cells))


def _identity(job: Job, provenance: dict[str, Any]) -> dict[str, Any]:
    """Everything that can change what a training answers."""
    return {
        "contract": CONTRACT_VERSION, "torch": provenance["torch"], "device": job.device.split(":")[0], "dtype": _DTYPE,
        "digests": job.digests, "dataset": job.dataset.identity(), "model": job.model.identity(),
        "partition": job.partition, "federation": job.federation, "audit": job.audit, "members": job.members,
        "groups": job.groups, "thresholds": job.thresholds,
        "targets": job.targets, "defense": job.defense.identity(), "seed": job.seed,
        "adversary": job.adversary.identity() if job.adversary else None,
        # a plain run is the same whatever an adversary might do; what the server assumes reaches its rule all the same
        "insider": job.insider if job.adversary else job.insider and job.insider["assumed"],
    }  # fmt: skip


def _stem(job: Job, attack: Use, key: str) -> str:
    """A file name people can read; the key's first letters make it unique."""
    words = [job.setting, job.coalition, job.defense.label, attack.label, f"s{job.seed}", key[:12]]
    return "--".join(re.sub(r"[^A-Za-z0-9=.,_-]+", "_", w)[:_MOST_OF_A_NAME] for w in words)


def _only_text(wanted: dict[str, set[str]]) -> str:
    return ",".join(f"{k}={v}" for k, vs in wanted.items() for v in sorted(vs))
