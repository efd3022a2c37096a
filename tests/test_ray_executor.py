"""The driver of a cluster against a stand-in for Ray: refusals, losses, records that it checks; and
a node without Ray.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from running import called, fingerprint, records, suite

from fedbench.core.cli.run import build_plan
from fedbench.core.contract.errors import UserError
from fedbench.core.run.job import job_json
from fedbench.core.run.provenance import needs_of
from fedbench.core.run.ray_executor import (
    CANNOT,
    MOST_RETRIES,
    RayRuns,
    keep_run,
)
from fedbench.core.store.integrity import sealed
from fedbench.core.store.results import Results


class Gone(Exception):
    """What Ray raises after its own retries."""


class FakeRay:
    """Answers every submitted run with the next of ``script``: what the remote function returns, or
    an exception.
    """

    exceptions = SimpleNamespace(RayError=Gone)

    def __init__(self, *script):
        self.script, self.options, self.requests = list(script), [], []

    def remote(self, function):
        def submit(request, environment):
            self.requests.append(json.loads(request))
            return len(self.requests) - 1

        def with_options(**options):
            self.options.append(options)
            return SimpleNamespace(remote=submit)

        return SimpleNamespace(options=with_options)

    def wait(self, tasks, timeout):
        return tasks[:1], tasks[1:]

    def get(self, task):
        if isinstance(self.script[task], Exception):
            raise self.script[task]
        return self.script[task]

    def nodes(self):
        return [{"NodeID": name * 8, "Alive": True} for name in "ab"]


def returned(files=None, node="a" * 8, refused="", said=""):
    status, said = (CANNOT, refused) if refused else (0, said)
    return {"node": node, "status": status, "said": said, "records": files or {}, "logs": {}}


@pytest.fixture(scope="module")
def done(finished, tmp_path_factory):
    """(a finished job of two cells, the files of its run by name)."""
    job = build_plan(str(finished.parent / "tiny.yaml"), (), finished, "cpu").jobs[0]
    return job, {p.name: p.read_bytes() for p in Results(finished).records.glob(f"{job.stem}*")}


@pytest.fixture
def job(done, tmp_path):
    Results.create(tmp_path / "here", "tiny")
    return replace(done[0], results=str(tmp_path / "here"))


def work(job, ray):
    """The notes that were made on the way."""
    told = []
    RayRuns(ray, [job], lambda kind, values: told.append((kind, values))).work(4)
    assert {kind for kind, _ in told} <= {"note", "started", "cell", "finished"}
    return [values[1] for kind, values in told if kind == "note"]


def test_records_that_come_are_kept_byte_by_byte_and_retries_are_rays(job, done):
    ray = FakeRay(returned(done[1]))
    assert work(job, ray) == []
    assert {p.name: p.read_bytes() for p in Results(Path(job.results)).records.iterdir()} == done[1]
    assert ray.options[0]["max_retries"] == MOST_RETRIES


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (Gone("the node died"), "Gone: the node died"),
        (returned(said="it was killed"), "it was killed"),
    ],
)
def test_a_lost_run_leaves_no_record_and_a_note(job, tmp_path, result, why):
    (note,) = work(job, FakeRay(result))
    assert f"{why}; it has no record, and the same command tries it again" in note and not records(
        tmp_path / "here"
    )


def test_a_node_that_refuses_is_not_used_again(job, done):
    ray = FakeRay(returned(refused="the package 'toys': version 1, not 2"), returned(done[1]))
    assert work(job, ray) == ["node aaaaaaaa is not used: the package 'toys': version 1, not 2"]
    assert ray.options[1]["label_selector"] == {"ray.io/node-id": f"!in({'a' * 8})"}


def test_where_every_node_refuses_nothing_is_recorded(job, tmp_path):
    with pytest.raises(UserError, match=r"no package \| no data"):
        work(
            job, FakeRay(returned(refused="no package"), returned(refused="no data", node="b" * 8))
        )
    assert not records(tmp_path / "here")


# -- what came is checked --------------------------------------------------------------------------


def changed(files, suffix, change):
    """With another content of the files of this kind."""
    return {
        name: change(content) if name.endswith(suffix) else content
        for name, content in files.items()
    }


def flipped(content):
    run = json.loads(content)
    run["run"]["identity"]["seed"] += 1
    return json.dumps(run).encode()


def of_another_suite(content):
    run = json.loads(content)  # a name for people, which no key proves
    run["run"]["suite"] = "other"
    return sealed(run)


def with_one_cell(content):
    run = json.loads(content)
    del run["cells"][1]
    return sealed(run)


@pytest.mark.parametrize(
    ("suffix", "change", "why"),
    [
        (".json", flipped, "damaged or changed"),
        (".npz", lambda content: content[:-9], "does not end as numpy's archives do"),
        (".json", with_one_cell, "it is the record of another run"),
        (".json", of_another_suite, "it is the record of another run"),
    ],
    ids=["changed", "cut", "a cell is missing", "another suite"],
)
def test_a_record_that_is_damaged_or_of_another_run_is_not_kept(
    job, done, suffix, change, why, tmp_path
):
    with pytest.raises(UserError, match=why):
        keep_run(job, changed(done[1], suffix, change))
    assert not records(tmp_path / "here")


def test_a_file_with_the_name_of_another_run_is_not_kept(job, done):
    with pytest.raises(UserError, match="is the file of another run"):
        keep_run(job, {f"../{name}": content for name, content in done[1].items()})


def test_a_damaged_record_is_a_loss(job, done):
    (note,) = work(job, FakeRay(returned(changed(done[1], ".json", flipped))))
    assert "what the node returned cannot be used" in note


# -- the node's side, without Ray ------------------------------------------------------------------


def on_node(folder, job, **needs):
    """(exit status, standard error) of a run on this machine as a node with a cache of its own."""
    request = json.dumps(
        {"needs": needs_of(job) | needs, "job": job_json(replace(job, results=""))}
    )
    words = [sys.executable, "-m", "fedbench.core.run.ray_node", str(folder), str(os.getpid())]
    done = subprocess.run(
        words,
        input=request,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},
    )
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_node_computes_the_bytes_that_one_machine_computes(done, tmp_path):
    job, files = done
    assert on_node(tmp_path, job)[0] == 0
    keep_run(replace(job, results=str(tmp_path / "local")), files)
    assert fingerprint(tmp_path) == fingerprint(tmp_path / "local")


def of_other_data(job):
    return replace(job, digests={**job.digests, "data": "0" * 64})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "needs", "why"),
    [
        (lambda job: job, {"core": "0" * 64}, "the package 'fedbench-privacy': version "),
        (
            lambda job: job,
            {"uses": [["toys 1.0", "toys", "toy", "0", {}]]},
            "the package 'toys' 1.0, of 'toy': not installed",
        ),
        (
            of_other_data,
            {},
            "the data of 'digits', seed 0, are not those that the suite was planned with",
        ),
    ],
    ids=["engine", "package", "data"],
)
def test_a_node_that_differs_from_the_driver_refuses(job, tmp_path, made, needs, why):
    status, said = on_node(tmp_path, made(job), **needs)
    assert status == CANNOT and why in said


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--ray-address", "auto"], "--ray-address goes with --executor ray"),
        (["--executor", "ray", "--device", "cuda:1"], "write --device cuda"),
        (
            ["--executor", "ray", "--device", "cuda"],
            "the suite asks for no GPU; add --set limits.gpus=1",
        ),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(tmp_path, arguments, why):
    with pytest.raises(UserError, match=why):
        called(suite(tmp_path), "--results", tmp_path / "r", "--dry-run", *arguments)
