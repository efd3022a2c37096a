"""`examples/cluster/`: each file by its own tool's parser, and what it calls by calling it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click import NoSuchOption
from jsonschema import ValidationError
from ruamel.yaml import YAML
from running import records, suite

from fedbench.core.cli.main import cli

FOLDER = Path(__file__).parents[1] / "examples" / "cluster"
SLURM, RAY, KUBERNETES = (FOLDER / name for name in ("slurm_array.sh", "ray_cluster.yaml", "kubernetes_job.yaml"))
# of sbatch(1), with the form of their values
SBATCH = {
    "job-name": r"\w+", "array": r"1-\d+", "cpus-per-task": r"\d+", "mem": r"\d+[KMGT]", "time": r"\d\d:\d\d:\d\d",
    "signal": r"B:[A-Z]+@\d+", "output": r"[\w%.-]+",
}  # fmt: skip


def parsed(path: Path):
    return YAML(typ="safe").load(path)


def parse(words: list[str]) -> None:
    """Have the command line parse the words after `fedbench run`; nothing is run."""
    cli.get_command(None, "run").make_context("run", list(words))


def test_every_command_of_the_page_is_one_of_ours():
    page = (FOLDER.parents[1] / "docs" / "clusters.md").read_text()
    lines = [shlex.split(line) for block in re.findall(r"```\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    ours = [words for words in lines if words[:2] == ["fedbench", "run"]]
    for words in ours:
        parse(words[2:])
    extras = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [words for words in lines if words not in ours] == [["pip", "install", "fedbench[ray]"]] and "ray" in extras


def test_every_example_is_described():
    listed = set(re.findall(r"\]\((\w+\.\w+)\)", (FOLDER / "README.md").read_text()))
    assert listed == {path.name for path in FOLDER.iterdir()} - {"README.md"}


def test_the_slurm_script_parses_and_its_directives_are_sbatchs():
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    lines = SLURM.read_text().splitlines()
    directives = dict(re.fullmatch(r"#SBATCH --([\w-]+)=(\S+)", line).groups() for line in lines if line.startswith("#SBATCH"))
    assert directives.keys() == SBATCH.keys()
    assert all(re.fullmatch(form, directives[name]) for name, form in SBATCH.items())
    last = max(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[:last])  # sbatch reads none after the first command


@pytest.mark.slow
def test_the_slurm_array_computes_a_suite(tmp_path):
    path, results = suite(tmp_path, seeds=[0, 1, 2]), tmp_path / "shared" / "results"
    results.parent.mkdir()
    for i in (1, 2):
        array = {"SLURM_ARRAY_TASK_ID": str(i), "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_CPUS_PER_TASK": "1"}
        environment = {**os.environ, **array, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        subprocess.run([str(SLURM), str(path), str(results), "--no-plots"], env=environment, check=True)
    assert len(records(results)) == 3 and (results / "leaderboard" / "board.md").is_file()


def test_ray_accepts_the_cluster_file():
    util = pytest.importorskip("ray.autoscaler._private.util", reason="Ray is not installed: pip install 'fedbench[ray]'")
    config = parsed(RAY)
    util.validate_config(util.prepare_config(parsed(RAY)))
    with pytest.raises(ValidationError, match="cluster_nam"):
        util.validate_config(util.prepare_config(parsed(RAY) | {"cluster_nam": "x"}))
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    starts = [c for kind in ("head", "worker") for c in config[f"{kind}_start_ray_commands"] if " start " in c]
    for start in starts:
        words = shlex.split(start)
        help_of = [sys.executable, "-m", "ray.scripts.scripts", "start", "--help"]
        known = subprocess.run(help_of, capture_output=True, text=True, check=True).stdout
        assert {w.partition("=")[0] for w in words if w.startswith("--")} <= set(re.findall(r"--[\w-]+", known))
        assert "RAY_AUTH_MODE=token" in words


def test_kubernetes_accepts_the_job():
    validate = pytest.importorskip("kubernetes_validate", reason="not installed: pip install 'fedbench[clusters]'")
    job = parsed(KUBERNETES)
    assert validate.validate(job, "1.31", strict=True) is not None
    job["spec"]["completion"] = 8
    with pytest.raises(validate.ValidationError):
        validate.validate(job, "1.31", strict=True)


def test_the_job_has_as_many_parts_as_pods_and_its_command_is_one_of_ours():
    spec = parsed(KUBERNETES)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    parts = next(one["value"] for one in container["env"] if one["name"] == "PARTS")
    assert int(parts) == spec["completions"] == spec["parallelism"]
    shown = subprocess.run(
        [*container["command"], "echo " + container["args"][0]], env={"JOB_COMPLETION_INDEX": "7", "PARTS": parts},
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert shown[:2] == ["fedbench", "run"] and shown[shown.index("--part") + 1] == "8/8"
    parse(shown[2:])
    with pytest.raises(NoSuchOption):
        parse([*shown[2:], "--prat", "1/8"])
