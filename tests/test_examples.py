"""Code of README, reference and examples/: it runs, keeps to the public contract, and changes what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from fake_packages import described, install
from jsonschema import Draft202012Validator
from public_names import private_imports, sources
from ruamel.yaml import YAML
from running import invoke, outcomes, records, suite
from tiny import tiny_setup, train_all

from fedbench.core import Defense, UserError
from fedbench.core.contract.phases import PHASES
from fedbench.core.federation.answering import answered
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import HOOKS

ROOT = Path(__file__).parents[1]
PAGES, EXAMPLES = ROOT / "docs" / "reference", ROOT / "examples"
PACKAGES = sorted(p.parent for p in EXAMPLES.glob("*/pyproject.toml"))


def examples(page, language="python"):
    """Blocks of code that stand on a page by themselves, not in what is made of the code."""
    text = re.sub(r"<!-- made:.*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def defense_of(code):
    """The defense that an example makes."""
    space = {"__name__": "example"}
    exec(compile(code, "example", "exec", dont_inherit=True), space)
    (found,) = (v for v in space.values() if isinstance(v, type) and issubclass(v, Defense) and v is not Defense)
    return found


def test_a_defense_made_of_gradients_trains_as_the_standard_way_does():
    class Same(Defense):
        """The gradient that the engine would have taken."""

        def local_step(self, batch, ctx):
            return ctx.gradient(self.loss(ctx.model(batch.x), batch, ctx))

    plain, same = (train_all(tiny_setup(d))[0].models for d in (Defense(), Same()))
    assert torch.equal(plain, same)


# --- documents --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_the_example_of_a_phase_is_called_in_it_and_changes_something(phase):
    (code,) = examples(PAGES / "phases" / f"{phase}.md")
    cls = defense_of(code)
    original, calls_of = getattr(cls, phase), []

    def counted(self, *args):
        calls_of.append(len(args))
        return original(self, *args)

    setattr(cls, phase, counted)
    plain, _ = train_all(tiny_setup(Defense(), n_models=cls.n_models))
    defended, _ = train_all(tiny_setup(cls(), n_models=cls.n_models))
    assert torch.equal(plain.models, defended.models) == (phase in ("report", "answer"))
    logits = torch.tensor([[1.234, -0.5, 3.0]])
    assert torch.equal(answered(defended, 0, logits), logits) == (phase != "answer")
    assert defended.facts() == ({"bytes sent": 6 * 4 * plain.models.shape[1]} if phase == "report" else {})
    assert calls_of


@pytest.mark.slow
def test_the_examples_of_helpers_params_and_check():
    helper, rounded, pairs = (
        defense_of(examples(PAGES / name)[0]) for name in ("contexts.md", "classes/component.md", "classes/defense.md")
    )
    federation, _ = train_all(tiny_setup(helper()))
    assert federation.parties.memory(0)["steps"] > 0
    train_all(tiny_setup(rounded(way="down")))
    train_all(tiny_setup(pairs()))
    with pytest.raises(UserError, match="an even number of clients, found 3"):
        train_all(tiny_setup(pairs(), clients=tiny_setup().clients[:3]))


@pytest.fixture
def announced(site):
    """The modules of all examples that announce something, each installed as a package of its own."""
    pages = [*(PAGES / "hooks" / f"{name}.md" for name in HOOKS.values()), *(PAGES / "classes").glob("*.md")]
    found = {}
    for code in (examples(page)[0] for page in pages if "@hookimpl" in page.read_text()):
        (module,) = set(re.findall(r'"(\w+):\w+"', code))
        install(site, module, code)
        found[module] = code
    return found


@pytest.mark.slow
@pytest.mark.nightly
def test_the_examples_of_the_reference_run_together_in_a_suite(announced, tmp_path, call):
    registry = Registry.discover()
    assert [str(p) for p in registry.broken] == []
    assert [kind for kind in HOOKS if not any(c.distribution in announced for c in registry.components(kind))] == []
    federation = {"clients": 4, "rounds": 2, "batch_size": 20, "optimizer": {"lr": 0.1}}
    passive = {"coalitions": ["pair"], "defenses": ["half-update"], "audit": {"nonmembers": 40}, "federation": federation}
    path = suite(
        tmp_path, coalitions=["none"], defenses=["none", "half-update"],
        attacks=["first-loss", "learnt-loss", "tempered-last", "boost"], analyses=["how-many", "loss-spread"],
        settings=[
            {"name": "rings", "dataset": "rings", "model": "one-layer", **passive,
             "attacks": ["first-loss", "learnt-loss", "tempered-last"]},
            {"name": "wide", "dataset": "rings", "model": "wide", **passive, "attacks": ["first-loss"]},
            {"name": "stripes", "dataset": "stripes", "federation": federation, "defenses": ["none"], "attacks": ["boost"],
             "adversary": {"mask_set": 10}, "audit": {"targets": "honest", "members": 20, "nonmembers": 20}},
        ],
    )  # fmt: skip
    invoke(path, "--results", tmp_path / "r")
    assert outcomes(tmp_path / "r") == dict.fromkeys(("first-loss", "learnt-loss", "tempered-last", "boost"), ("ok", ""))
    learnt = records(tmp_path / "r")["half-update", "learnt-loss", 0]
    assert learnt["analyses"]["how-many"]["numbers"]["members"]["value"] == 2
    assert set(learnt["analyses"]["loss-spread"]["arrays"]) == {"loss"}
    assert call("leaderboard", tmp_path / "r", "--report", "count", "--report", "outcomes")[0] == 0
    assert (tmp_path / "r" / "leaderboard" / "count.txt").read_text() == "5 records\n"
    assert "half-update,learnt-loss,ok" in (tmp_path / "r" / "leaderboard" / "outcomes.csv").read_text()


@pytest.mark.slow
@pytest.mark.nightly
def test_the_examples_of_the_readme_and_of_active_attacks_run(site, tmp_path):
    codes = examples(ROOT / "README.md")
    install(site, "my_package", "\n\n".join(codes))
    install(site, "active", examples(ROOT / "docs" / "adversaries.md")[0].replace("my_package", "active"))
    federation = {"clients": 4, "rounds": 4, "batch_size": 20, "optimizer": {"lr": 0.1}}
    settings = [
        {"name": "blobs", "dataset": "blobs", "federation": federation, "audit": {"every": 2},
         "coalitions": ["pair"], "defenses": ["none", "update-noise"], "attacks": ["last-loss"]},
        {"name": "digits", "dataset": "digits", "federation": federation, "adversary": {"clients": 1, "mask_set": 10},
         "audit": {"targets": "honest", "members": 50, "nonmembers": 50}, "attacks": ["passive", "my-ascent"]},
    ]  # fmt: skip
    path = suite(tmp_path, settings=settings, coalitions=["none"], attacks=["last-loss", "passive", "my-ascent"])
    invoke(path, "--results", tmp_path / "r")
    found = records(tmp_path / "r")
    noise, passive, active = (
        found[key] for key in (("update-noise", "last-loss", 0), ("none", "passive", 0), ("none", "my-ascent", 0))
    )
    assert noise["defense"]["params"] == {"sigma": 0.01}
    assert noise["pooled"] != found["none", "last-loss", 0]["pooled"]
    assert active["utility"]["accuracy"] < passive["utility"]["accuracy"]
    folder = ROOT / "tests" / "plugin_example"  # the package that CI installs
    assert (folder / "my_package.py").read_text() == codes[0]
    (toml,) = examples(ROOT / "README.md", "toml")
    entries = [tomllib.loads(text)["project"]["entry-points"] for text in (toml, (folder / "pyproject.toml").read_text())]
    assert entries[0] == entries[1]


@pytest.mark.slow
def test_the_suite_of_the_reference_is_valid_here_and_in_an_editor(tmp_path, call):
    (text,) = examples(PAGES / "suite.md", "yaml")
    (tmp_path / "example.yaml").write_text(text)
    status, words = call("validate", "--no-data", tmp_path / "example.yaml")
    assert status == 0, words
    schema = json.loads((ROOT / "suites" / "suite.schema.json").read_text())
    assert list(Draft202012Validator(schema).iter_errors(YAML(typ="safe").load(text))) == []


# --- packages of examples/ --------------------------------------------------------------------------------------------


def project(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


@pytest.fixture
def installed(site):
    """The packages of examples/ without pip: folder -> its module."""
    found = {folder: next(iter(project(folder)["entry-points"]["fedbench"].values())) for folder in PACKAGES}
    for folder, module in found.items():
        (site / module).symlink_to(folder / "src" / module)
        described(site, folder.name, module, project(folder)["version"])
    return found


@pytest.mark.slow
def test_example_packages_use_the_public_contract_and_are_described(installed, call):
    plugins = {plugin.distribution: plugin for plugin in Registry.discover().plugins}
    script, readme = (ROOT / ".ci" / "examples").read_text(), (EXAMPLES / "README.md").read_text()
    private, undescribed, kinds = {}, [], set()
    for folder, module in installed.items():
        private |= {path: found for path, text in sources(folder).items() if (found := private_imports(text, module))}
        components = plugins[folder.name].components
        kinds.add(tuple(sorted(c.kind for c in components)))
        texts = [(folder / path).read_text() for path in ("tests/test_conformance.py", "README.md")]
        undescribed += [c.name for c in components if not all(c.name in text for text in (*texts, script, readme))]
        undescribed += [folder.name] * (f'"{folder.name} {project(folder)["version"]}"' not in script)
    assert (private, undescribed) == ({}, [])
    assert kinds == {("defense",), ("attack", "signal"), ("dataset", "model")}
    assert private_imports("from fedbench.core import Batches", "own") == {"fedbench.core.Batches"}
    suites = [p for p in sorted(EXAMPLES.rglob("*.yaml")) if p.parent.name != "cluster"]
    assert len(suites) > 3
    status, words = call("validate", "--no-data", *suites)
    assert status == 0, words


# --- clusters ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nightly
def test_the_slurm_array_computes_a_suite(tmp_path):
    script = EXAMPLES / "cluster" / "slurm_array.sh"
    lines = script.read_text().splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[:last])  # sbatch reads none after the first command
    path, results = suite(tmp_path, seeds=[0, 1, 2]), tmp_path / "shared" / "results"
    results.parent.mkdir()
    for i in (1, 2):
        array = {"SLURM_ARRAY_TASK_ID": str(i), "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_CPUS_PER_TASK": "1"}
        environment = {**os.environ, **array, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        subprocess.run([str(script), str(path), str(results), "--no-plots"], env=environment, check=True)
    assert len(records(results)) == 3
    assert (results / "leaderboard" / "board.md").is_file()


@pytest.mark.slow
def test_ray_accepts_the_cluster_file():
    util = pytest.importorskip("ray.autoscaler._private.util", reason="Ray is not installed: pip install 'fedbench[ray]'")
    config = YAML(typ="safe").load(EXAMPLES / "cluster" / "ray_cluster.yaml")
    util.validate_config(util.prepare_config(dict(config)))
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    starts = [c for kind in ("head", "worker") for c in config[f"{kind}_start_ray_commands"] if " start " in c]
    assert all("RAY_AUTH_MODE=token" in shlex.split(start) for start in starts)


@pytest.mark.slow
def test_kubernetes_accepts_the_job_and_each_pod_has_its_part():
    job = YAML(typ="safe").load(EXAMPLES / "cluster" / "kubernetes_job.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    parts = next(one["value"] for one in container["env"] if one["name"] == "PARTS")
    assert int(parts) == job["spec"]["completions"] == job["spec"]["parallelism"]
    environment = {"JOB_COMPLETION_INDEX": "7", "PARTS": parts}
    command = [*container["command"], "echo " + container["args"][0]]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert shown[:2] == ["fedbench", "run"]
    assert shown[shown.index("--part") + 1] == "8/8"
    validate = pytest.importorskip("kubernetes_validate", reason="not installed: pip install 'fedbench[clusters]'")
    assert validate.validate(job, "1.31", strict=True) is not None
