"""Code of README, reference and examples/: it runs, keeps to the public contract, and changes what
it says.
"""

from __future__ import annotations

import json
import re
import subprocess
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

from fedbench.core import Defense
from fedbench.core.contract.phases import PHASES
from fedbench.core.federation.loop import answered
from fedbench.core.registry.components import Registry

ROOT = Path(__file__).parents[1]
PAGES, EXAMPLES = ROOT / "docs" / "reference", ROOT / "examples"
PACKAGES = sorted(p.parent for p in EXAMPLES.glob("*/pyproject.toml"))


def examples(page, language="python"):
    """Blocks of code that stand on a page by themselves, not in what is made of the code."""
    text = re.sub(
        r"<!-- made:.*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def defense_of(code):
    """The defense that an example makes."""
    space = {"__name__": "example"}
    exec(compile(code, "example", "exec", dont_inherit=True), space)
    (found,) = (
        v
        for v in space.values()
        if isinstance(v, type) and issubclass(v, Defense) and v is not Defense
    )
    return found


# --- documents ------------------------------------------------------------------------------------


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
    assert defended.facts() == (
        {"bytes sent": 6 * 4 * plain.models.shape[1]} if phase == "report" else {}
    )
    assert calls_of


@pytest.mark.slow
@pytest.mark.nightly
def test_the_examples_of_readme_and_reference_run_together_in_a_suite(site, tmp_path, words_of):
    codes = [
        examples(page)[0]
        for page in (PAGES / "classes").glob("*.md")
        if "@hookimpl" in page.read_text()
    ]
    pages = [*examples(ROOT / "README.md"), *examples(ROOT / "docs" / "plugins.md")]
    codes.append("\n\n".join(pages))
    for code in codes:
        (module,) = set(re.findall(r'"(\w+):\w+"', code))
        install(site, module, code)
    assert [str(p) for p in Registry.discover().broken] == []
    federation = {"clients": 4, "rounds": 4, "batch_size": 20, "optimizer": {"lr": 0.1}}
    passive = {"coalitions": ["pair"], "audit": {"nonmembers": 40}, "federation": federation}
    active = {
        "federation": federation,
        "defenses": ["none"],
        "audit": {"targets": "honest", "members": 20, "nonmembers": 20},
    }
    settings = [
        {
            "name": "blobs",
            "dataset": "blobs",
            "model": "wide",
            **passive,
            "defenses": ["none", "update-noise"],
            "attacks": ["last-loss", "learnt-loss", "tempered-last"],
        },
        {
            "name": "stripes",
            "dataset": "stripes",
            **passive,
            "defenses": ["none"],
            "attacks": ["tempered-last"],
        },
        {
            "name": "digits",
            "dataset": "digits",
            **active,
            "attacks": ["passive", "ascent"],
            "adversary": {"mask_set": 10},
        },
    ]
    every = {
        kind: sorted({name for s in settings for name in s[kind]})
        for kind in ("defenses", "attacks")
    }
    path = suite(
        tmp_path,
        settings=settings,
        coalitions=["none"],
        analyses=["pool-loss", "loss-spread"],
        **every,
    )
    invoke(path, "--results", tmp_path / "r")
    assert outcomes(tmp_path / "r") == dict.fromkeys(every["attacks"], ("ok", ""))
    found = records(tmp_path / "r")
    learnt, noise = found["update-noise", "learnt-loss", 0], found["update-noise", "last-loss", 0]
    assert learnt["analyses"]["pool-loss"]["numbers"]["pool loss"]["value"] > 0
    assert noise["defense"]["params"] == {"sigma": 0.01}
    assert noise["pooled"] != found["none", "last-loss", 0]["pooled"]
    accuracy = {
        attack: found["none", attack, 0]["utility"]["accuracy"] for attack in ("passive", "ascent")
    }
    assert accuracy["ascent"] < accuracy["passive"]
    words_of("leaderboard", tmp_path / "r", "--report", "outcomes")
    assert (
        "update-noise,tempered-last,ok\n"
        in (tmp_path / "r" / "leaderboard" / "outcomes.csv").read_text()
    )
    # what CI installs
    assert (ROOT / "tests" / "plugin_example" / "my_package.py").read_text() == pages[0]


@pytest.mark.slow
def test_the_suite_of_the_reference_is_valid_here_and_in_an_editor(tmp_path, words_of):
    (text,) = examples(PAGES / "suite.md", "yaml")
    (tmp_path / "example.yaml").write_text(text)
    words_of("validate", "--no-data", tmp_path / "example.yaml")
    schema = json.loads((ROOT / "suites" / "suite.schema.json").read_text())
    assert list(Draft202012Validator(schema).iter_errors(YAML(typ="safe").load(text))) == []


# --- packages of examples/ ------------------------------------------------------------------------


def test_example_packages_use_the_public_contract():
    private = {}
    for folder in PACKAGES:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        (module,) = project["entry-points"]["fedbench"].values()
        private |= {
            path: found
            for path, text in sources(folder).items()
            if (found := private_imports(text, module))
        }
    assert private == {}
    assert private_imports("from fedbench.core import Batches", "own") == {"fedbench.core.Batches"}


@pytest.mark.slow
def test_runs_are_event_files_of_tensorboard(site, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (site / "fedbench_tensorboard").symlink_to(
        EXAMPLES / "tensorboard" / "src" / "fedbench_tensorboard"
    )
    described(site, "fedbench-tensorboard", "fedbench_tensorboard", "0.2.0")
    results = tmp_path / "r"
    invoke(suite(tmp_path), "--results", results)
    for path in (results / "records").glob("*.json"):
        record = json.loads(path.read_text())
        events = EventAccumulator(str(results / "leaderboard" / "tensorboard" / path.stem)).Reload()
        history = [
            (row["round"], pytest.approx(row["accuracy"])) for row in record["run"]["history"]
        ]
        assert [(e.step, e.value) for e in events.Scalars("accuracy")] == history
        auc = record["cells"][0]["pooled"]["ofl"]["values"]["auc"]["value"]
        assert events.Scalars(f"AUC ofl/{record['cells'][0]['attack']['label']}")[
            0
        ].value == pytest.approx(auc)


# --- clusters -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kubernetes_accepts_the_job_and_each_pod_has_its_part():
    job = YAML(typ="safe").load(EXAMPLES / "cluster" / "kubernetes_job.yaml")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    parts = next(one["value"] for one in container["env"] if one["name"] == "PARTS")
    assert int(parts) == job["spec"]["completions"] == job["spec"]["parallelism"]
    environment = {"JOB_COMPLETION_INDEX": "7", "PARTS": parts}
    command = [*container["command"], "echo " + container["args"][0]]
    shown = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert shown[:2] == ["fedbench", "run"]
    assert shown[shown.index("--part") + 1] == "8/8"
    validate = pytest.importorskip(
        "kubernetes_validate", reason="not installed: pip install 'fedbench-privacy[clusters]'"
    )
    assert validate.validate(job, "1.31", strict=True) is not None
