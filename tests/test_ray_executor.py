"""What the driver of a cluster does with what nodes tell it: retries, refusals, records that it checks. No Ray is needed here."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from running import called, fingerprint, records, suite

from fedbench.core.cli.run import build_plan
from fedbench.core.contract.errors import UserError
from fedbench.core.run import node, ray_cluster
from fedbench.core.run.job import key_of_run
from fedbench.core.run.local import Watcher
from fedbench.core.run.node import Request, serve
from fedbench.core.run.provenance import needs_of
from fedbench.core.run.ray_cluster import Event, RayCluster
from fedbench.core.run.ray_executor import MOST_RETRIES, Node, Runs, Shipped, packed, require_room, unpack
from fedbench.core.spec.suite import Limits
from fedbench.core.store.integrity import sealed
from fedbench.core.store.results import Results

NODES = [Node(id="a" * 8, name="one", cpus=2, gpus=0, memory_gb=4.0), Node(id="b" * 8, name="two", cpus=1, gpus=1, memory_gb=8.0)]


class FakeCluster:
    """Answers every submitted run with the next of ``script``, each a list of (kind, node, value)."""

    def __init__(self, *script) -> None:
        self.nodes, self.script, self.waiting = list(NODES), list(script), []
        self.submitted, self.cancelled = [], []

    def submit(self, ticket, name, request, options):
        self.submitted.append((pickle.loads(request.job), options))
        self.waiting += [Event(ticket, *event) for event in self.script.pop(0)]

    def cancel(self, ticket):
        self.cancelled.append(ticket)

    def look(self):
        pass

    def events(self, seconds):
        found, self.waiting = self.waiting, []
        return found


@pytest.fixture(scope="module")
def done(finished, tmp_path_factory):
    """(a finished job of two cells, the files of its run, as a node sends them)."""
    job = build_plan(str(finished.parent / "tiny.yaml"), (), finished, "cpu").jobs[0]
    return job, packed(job)


@pytest.fixture
def job(done, tmp_path):
    Results.create(tmp_path / "here", "tiny")
    return replace(done[0], results=str(tmp_path / "here"))


def came(shipped):
    return ("run", "a" * 8, shipped)


STARTED, END = ("started", "a" * 8, None), ("end", None, None)


def work(job, cluster) -> list[str]:
    """The notes that were made on the way."""
    notes: list[str] = []
    Runs(cluster, Watcher(note=notes.append), 4).work([job])
    return notes


def test_records_that_come_are_kept_byte_by_byte(job, done):
    work(job, FakeCluster([STARTED, came(done[1]), END]))
    assert {p.name: p.read_bytes() for p in Results(Path(job.results)).records.iterdir()} == done[1].files


def test_a_loss_is_retried_and_names_the_node_that_is_gone(job, done):
    cluster = FakeCluster([STARTED, ("lost", None, "NodeDiedError: gone")], [STARTED, came(done[1]), END])
    cluster.look = lambda: setattr(cluster, "nodes", NODES[1:])
    (note,) = work(job, cluster)
    assert [sent.cells for sent, _ in cluster.submitted] == [job.cells, job.cells]
    assert "on node one (aaaaaaaa): NodeDiedError: gone; tried again, 1 of 3" in note


def test_losses_are_bounded_and_leave_no_record(job, tmp_path):
    cluster = FakeCluster(*[[STARTED, ("lost", None, "NodeDiedError: gone")]] * 9)
    *tried, last = work(job, cluster)
    assert len(tried) == MOST_RETRIES and len(cluster.submitted) == 1 + MOST_RETRIES
    assert "lost 4 times, the last time on node one (aaaaaaaa): NodeDiedError: gone; it has no record" in last
    assert not records(tmp_path / "here")


def test_a_node_that_refuses_is_asked_no_more(job, done):
    cluster = FakeCluster([("refused", "a" * 8, ["the package 'toys': version 1, not 2"]), END], [STARTED, came(done[1]), END])
    assert work(job, cluster) == ["node one (aaaaaaaa) is not used: the package 'toys': version 1, not 2"]
    assert cluster.submitted[1][1]["label_selector"] == {"ray.io/node-id": f"!in({'a' * 8})"}


def test_where_every_node_refuses_nothing_is_recorded(job, tmp_path):
    cluster = FakeCluster([("refused", "a" * 8, ["no package"])], [("refused", "b" * 8, ["no data"])])
    with pytest.raises(UserError) as told:
        work(job, cluster)
    assert "node one (aaaaaaaa): no package | node two (bbbbbbbb): no data" in str(told.value)
    assert not records(tmp_path / "here")


# -- what came is checked ------------------------------------------------------------------------------------------------


def changed(shipped: Shipped, suffix: str, change: Callable[[bytes], bytes]) -> Shipped:
    """With another content of the files of this kind."""
    return Shipped({name: change(content) if name.endswith(suffix) else content for name, content in shipped.files.items()})


def flipped(content: bytes) -> bytes:
    run = json.loads(content)
    run["run"]["seed"] += 1
    return json.dumps(run).encode()


def of_another_suite(content: bytes) -> bytes:
    run = json.loads(content)  # a name for people, which no key proves
    run["run"]["suite"] = "other"
    return sealed(run)


def with_one_cell(content: bytes) -> bytes:
    run = json.loads(content)
    del run["cells"][1]
    return sealed(run)


@pytest.mark.parametrize(("suffix", "change", "why"), [
    (".json", flipped, "damaged or changed"), (".npz", lambda content: content[:-9], "does not end as numpy's archives do"),
    (".json", with_one_cell, "what came is the record of another run"),
    (".json", of_another_suite, "what came is the record of another run"),
], ids=["changed", "cut", "a cell is missing", "another suite"])  # fmt: skip
def test_a_record_that_is_damaged_or_of_another_run_is_not_kept(job, done, suffix, change, why, tmp_path):
    with pytest.raises(UserError, match=why):
        unpack(job, changed(done[1], suffix, change))
    assert not records(tmp_path / "here")


def test_a_file_with_the_name_of_another_run_is_not_kept(job, done):
    with pytest.raises(UserError, match="the file of another run"):
        unpack(job, Shipped({f"../{name}": content for name, content in done[1].files.items()}))


def test_what_cannot_be_used_is_computed_again_and_the_task_that_sent_it_cancelled(job, done):
    cluster = FakeCluster([STARTED, came(changed(done[1], '.json', flipped))], [STARTED, came(done[1]), END])
    (note,) = work(job, cluster)
    assert "what it sent cannot be used" in note and cluster.cancelled == [1]


# -- resources -----------------------------------------------------------------------------------------------------------


def test_more_than_any_node_has_is_refused_with_what_each_has():
    with pytest.raises(UserError, match=r"limits\.cpus is 2, limits\.gpus is 1, .* but one has gpus: 0; two has cpus: 1"):
        require_room(Limits(cpus=2, gpus=1), NODES)
    require_room(Limits(cpus=1, gpus=0.25, memory_gb=8), NODES)
    with pytest.raises(ValueError, match="above 1 is a number of whole GPUs"):
        Limits(gpus=1.5)
    require_room(Limits(cpus=1, gpus=1, memory_gb=8), NODES)


# -- the node's side, without Ray ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """This machine as a node, with a cache of its own; the folder of that."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield cache / "fedbench"
    if node._process is not None:
        node._process.end()
        node._process = None


def request(job, **needs) -> Request:
    return Request(needs=needs_of(job) | needs, job=pickle.dumps(job), environment={})


@pytest.mark.slow
@pytest.mark.nightly
def test_a_node_computes_the_bytes_that_one_machine_computes_also_after_its_process_was_killed(done, job, here, tmp_path):
    said = serve(request(job))
    assert next(said) == ("started", None)
    node._process.process.kill()
    *_, last = said
    assert last[0] == "lost" and "exit status -9" in last[1]
    (records,) = [unpack(job, came) for kind, came in serve(request(job)) if kind == "run"]
    assert [record.outcome for record in records] == ["ok", "ok"]
    unpack(replace(job, results=str(tmp_path / "local")), done[1])
    assert fingerprint(tmp_path / "here") == fingerprint(tmp_path / "local")


def of_other_data(job) -> Request:
    other = replace(job, digests={**job.digests, "data": "0" * 64})
    return request(replace(other, run_key=key_of_run(other)))


@pytest.mark.slow
@pytest.mark.parametrize(("made", "why"), [
    (lambda job: replace(request(job, core="0" * 64), job=b"no pickle"), "the package 'fedbench': version "),
    (lambda job: request(job, uses=[["toys 1.0", "toys", "toy", "0"]]), "the package 'toys' 1.0, of 'toy': not installed"),
    (of_other_data, "the data of 'digits', seed 0, are not those that the suite was planned with"),
], ids=["engine", "package", "data"])  # fmt: skip
def test_a_node_that_differs_from_the_driver_refuses(job, here, made, why):
    ((kind, said),) = serve(made(job))
    assert kind == "refused" and why in said[0]


# -- the command line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("address", "why"), [
    ("127.0.0.1:1", "nobody answers"), ("ray://head:10001", "run this command on a machine of the cluster"),
    ("head:99999", "expected HOST:PORT"),
])  # fmt: skip
def test_an_address_that_cannot_be_a_cluster_is_refused_before_ray_is_imported(address, why, monkeypatch):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: True)
    with pytest.raises(UserError, match=why):
        RayCluster.connect(address)


@pytest.mark.parametrize(("arguments", "why"), [
    (["--ray-address", "auto"], "--ray-address goes with --executor ray"),
    (["--executor", "ray", "--device", "cuda:1"], "write --device cuda"),
    (["--executor", "ray", "--device", "cuda"], "the suite asks for no GPU; add --set limits.gpus=1"),
])  # fmt: skip
def test_arguments_that_do_not_fit_together_are_refused(tmp_path, arguments, why):
    with pytest.raises(UserError, match=why):
        called(suite(tmp_path), "--results", tmp_path / "r", "--dry-run", *arguments)
