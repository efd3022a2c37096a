"""What the driver of a cluster does with what nodes tell it: retries, refusals, records that it checks. No Ray is needed here."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from running import called, fingerprint, invoke, records, suite

from fedbench.core.cli.run import build_plan
from fedbench.core.contract.errors import UserError
from fedbench.core.execution import node, ray_cluster, ray_executor
from fedbench.core.execution.executor import Watcher
from fedbench.core.execution.node import Request, serve
from fedbench.core.execution.ray_cluster import Event, RayCluster
from fedbench.core.execution.ray_executor import MOST_RETRIES, Runs
from fedbench.core.execution.resources import Node, options, require_room
from fedbench.core.execution.same_code import needs_of
from fedbench.core.execution.shipped import Shipped, packed, unpack
from fedbench.core.experiment.job import key_of_run
from fedbench.core.spec.suite import Limits
from fedbench.core.store.integrity import sealed
from fedbench.core.store.results import Results

NODES = [Node(id="a" * 8, name="one", cpus=2, gpus=0, memory_gb=4.0), Node(id="b" * 8, name="two", cpus=1, gpus=1, memory_gb=8.0)]


class FakeCluster:
    """Answers every submitted run with the next of ``script``, each a list of (kind, node, value), or of what a function of the
    run gives."""

    def __init__(self, *script) -> None:
        self.nodes, self.script, self.waiting = list(NODES), list(script), []
        self.submitted, self.cancelled = [], []

    def submit(self, ticket, name, request, options):
        self.submitted.append((pickle.loads(request.job), options))
        said = self.script.pop(0)
        said = said(pickle.loads(request.job)) if callable(said) else said
        self.waiting += [Event(ticket, *event) for event in said]

    def cancel(self, ticket):
        self.cancelled.append(ticket)

    def look(self):
        pass

    def events(self, seconds):
        found, self.waiting = self.waiting, []
        return found


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(a job of two cells in a folder of its own, the files of its cells, as a node sends them)."""
    folder = tmp_path_factory.mktemp("done")
    path = suite(folder, attacks=["loss-series", "fedmia-i"])
    invoke(path, "--results", folder / "r")
    (job,) = build_plan(str(path), (), folder / "r", "cpu").jobs
    return job, [packed(job, cell.key) for cell in job.cells]


@pytest.fixture
def job(done, tmp_path):
    Results.create(tmp_path / "here", "tiny")
    return replace(done[0], results=str(tmp_path / "here"))


def cells(*shipped):
    return [("cell", "a" * 8, one) for one in shipped]


STARTED, END = ("started", "a" * 8, None), ("end", None, None)


def work(job, cluster) -> list[str]:
    """The notes that were made on the way."""
    notes: list[str] = []
    Runs(cluster, Watcher(note=notes.append), 4).work([job])
    return notes


def test_records_that_come_are_kept_byte_by_byte(job, done):
    work(job, FakeCluster([STARTED, *cells(*done[1]), END]))
    store = Results(Path(job.results))
    for cell, came in zip(job.cells, done[1], strict=True):
        assert store.path(cell.stem).read_bytes() == came.record
        assert store.path(cell.stem).with_suffix(".npz").read_bytes() == came.scores


def test_what_a_node_is_at_and_what_it_found_reach_the_display(job, done):
    told = []
    watcher = Watcher(
        advanced=lambda job, round: told.append(round), judging=lambda job, key: told.append(key),
        cell=lambda job, key, outcome, reason, by_adversary, auc: told.append((key, auc)),
    )  # fmt: skip
    first, second = done[1]
    at = "a" * 8
    events = [STARTED, ("round", at, 3), ("judging", at, first.key), ("cell", at, first), ("cell", at, second), END]
    Runs(FakeCluster(events), watcher, 4).work([job])
    aucs = {one.key: json.loads(one.record)["pooled"]["ofl"]["values"]["auc"]["value"] for one in done[1]}
    assert told == [3, first.key, *aucs.items()]


def test_a_loss_is_retried_with_the_cells_that_are_missing_alone(job, done):
    one, two = done[1]
    cluster = FakeCluster([STARTED, *cells(one), ("lost", None, "NodeDiedError: gone")], [STARTED, *cells(two), END])
    (note,) = work(job, cluster)
    assert [len(sent.cells) for sent, _ in cluster.submitted] == [2, 1]
    assert cluster.submitted[1][0].cells == job.cells[1:]
    assert "on node one (aaaaaaaa): NodeDiedError: gone; tried again, 1 of 3" in note


def test_a_node_keeps_its_name_when_it_is_known_to_be_gone_before_its_run_is_told_lost(job, done):
    one, two = done[1]
    cluster = FakeCluster([STARTED, *cells(one), ("lost", None, "NodeDiedError: gone")], [STARTED, *cells(two), END])
    cluster.look = lambda: setattr(cluster, "nodes", NODES[1:])
    notes = []
    runs = Runs(cluster, Watcher(note=notes.append), 4)
    runs._look()
    runs.work([job])
    assert "on node one (aaaaaaaa): NodeDiedError: gone; tried again, 1 of 3" in notes[0]


def test_losses_are_bounded_and_then_recorded_with_the_reason(job, tmp_path):
    cluster = FakeCluster(*[[STARTED, ("lost", None, "NodeDiedError: gone")]] * 9)
    assert len(work(job, cluster)) == MOST_RETRIES
    assert len(cluster.submitted) == 1 + MOST_RETRIES
    found = {(r["outcome"], r["reason"]) for r in records(tmp_path / "here").values()}
    assert found == {("failed", "lost 4 times, the last time on node one (aaaaaaaa): NodeDiedError: gone")}


def test_a_loss_after_the_last_cell_costs_nothing(job, done):
    cluster = FakeCluster([STARTED, *cells(*done[1]), ("lost", None, "gone")])
    assert work(job, cluster) == [] and len(cluster.submitted) == 1


def test_a_plugin_s_failure_is_a_record_and_not_retried(job, tmp_path):
    cluster = FakeCluster([STARTED, ("defect", "a" * 8, "Traceback: KeyError")])
    assert work(job, cluster) == [] and len(cluster.submitted) == 1
    assert {r["outcome"] for r in records(tmp_path / "here").values()} == {"failed"}


def test_a_node_that_refuses_is_asked_no_more(job, done):
    cluster = FakeCluster([("refused", "a" * 8, ["the package 'toys': version 1, not 2"]), END], [STARTED, *cells(*done[1]), END])
    assert work(job, cluster) == ["node one (aaaaaaaa) is not used: the package 'toys': version 1, not 2"]
    assert cluster.submitted[1][1]["label_selector"] == {"ray.io/node-id": f"!in({'a' * 8})"}


def test_where_every_node_refuses_nothing_is_recorded(job, tmp_path):
    cluster = FakeCluster([("refused", "a" * 8, ["no package"])], [("refused", "b" * 8, ["no data"])])
    with pytest.raises(UserError) as told:
        work(job, cluster)
    assert "node one (aaaaaaaa): no package | node two (bbbbbbbb): no data" in str(told.value)
    assert "the same command goes on from here" in str(told.value) and not records(tmp_path / "here")


def test_a_run_whose_nodes_are_gone_is_given_up_after_a_while(job, monkeypatch):
    monkeypatch.setattr(ray_executor, "_STRANDED_S", -1.0)
    cluster = FakeCluster([])
    cluster.events = lambda seconds: cluster.nodes.clear() or []
    with pytest.raises(UserError, match="the nodes with enough cores, GPUs and memory are gone"):
        work(job, cluster)


# -- what came is checked ------------------------------------------------------------------------------------------------


def flipped(shipped: Shipped) -> Shipped:
    content = json.loads(shipped.record)
    return replace(shipped, record=json.dumps(content | {"seed": content["seed"] + 1}).encode())


@pytest.mark.parametrize(("spoil", "why"), [
    (flipped, "damaged or changed"),
    (lambda one: replace(one, scores=one.scores[:-9]), "does not end as numpy's archives do"),
    (lambda one: replace(one, scores=None), "npz"),
    (lambda one: replace(one, key="0" * 64), "has no cell"),
    (lambda one: replace(one, record=b"{}"), "not a fedbench record"),
])  # fmt: skip
def test_a_record_that_is_damaged_on_its_way_is_not_kept(job, done, spoil, why, tmp_path):
    with pytest.raises(UserError, match=why):
        unpack(job, spoil(done[1][0]))
    assert not records(tmp_path / "here")


def test_another_cell_s_record_is_not_kept(job, done, tmp_path):
    one, two = done[1]
    with pytest.raises(UserError, match="holds another cell's record"):
        unpack(job, replace(one, record=two.record, scores=two.scores))
    content = json.loads(one.record)
    del content["digest"]
    for name in ("suite", "setting", "coalition"):  # names for people, which no key proves
        with pytest.raises(UserError, match="what came is the record of another cell"):
            unpack(job, replace(one, record=sealed(content | {name: "other"})))
    assert not records(tmp_path / "here")


def test_what_cannot_be_used_is_computed_again_and_the_task_that_sent_it_cancelled(job, done):
    cluster = FakeCluster([STARTED, *cells(flipped(done[1][0]))], [STARTED, *cells(*done[1]), END])
    (note,) = work(job, cluster)
    assert "what it sent cannot be used" in note and cluster.cancelled == [1]


# -- resources -----------------------------------------------------------------------------------------------------------


def test_resources_are_rays_words_for_the_limits():
    assert options(Limits(cpus=0.5, gpus=0.25, memory_gb=2), ()) == {
        "num_cpus": 0.5, "num_gpus": 0.25, "memory": 2 * 2**30, "scheduling_strategy": "SPREAD",
    }  # fmt: skip
    assert "memory" not in options(Limits(), ())


@pytest.mark.parametrize(("limits", "why"), [
    ({"gpus": 4}, "limits.gpus is 4, but one has gpus: 0; two has gpus: 1; ask for less with --set limits.gpus="),
    ({"cpus": 3}, "limits.cpus is 3, but one has cpus: 2; two has cpus: 1"),
    ({"memory_gb": 9}, "limits.memory_gb is 9, but one has memory_gb: 4; two has memory_gb: 8"),
    ({"cpus": 2, "gpus": 1}, "limits.cpus is 2, limits.gpus is 1, limits.memory_gb is 0, but one has gpus: 0; two has cpus: 1"),
])  # fmt: skip
def test_more_than_any_node_has_is_refused_with_what_each_has(limits, why):
    with pytest.raises(UserError) as told:
        require_room(Limits(**limits), NODES)
    assert why in str(told.value)
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
def test_a_node_computes_the_bytes_that_one_machine_computes(done, job, here, tmp_path):
    said = list(serve(request(job)))
    assert said[0] == ("started", None)
    for _, came in (event for event in said if event[0] == "cell"):
        unpack(job, came)
    assert len([one for one in said if one[0] == "cell"]) == 2
    for came in done[1]:
        unpack(replace(job, results=str(tmp_path / "local")), came)
    assert fingerprint(tmp_path / "here") == fingerprint(tmp_path / "local")
    assert [p.suffix for p in (here / "trainings").iterdir()] == [".npz"]


@pytest.mark.slow
def test_a_node_with_another_engine_refuses_before_it_looks_at_the_run(job, here):
    sent = Request(needs=needs_of(job) | {"core": "0" * 64}, job=b"not even a pickle", environment={})
    ((kind, why),) = serve(sent)
    assert kind == "refused" and why[0].startswith("the package 'fedbench': version ") and "its files differ" in why[0]


@pytest.mark.parametrize(("use", "why"), [
    (["toys 1.0", "toys", "toy", "0"], "the package 'toys' 1.0, of 'toy': not installed"),
    (["fedbench 9.9", "fedbench.plugins.attacks.series", "x", "0"], "not 9.9"),
])  # fmt: skip
def test_a_node_says_which_package_it_lacks(job, here, use, why):
    ((kind, said),) = serve(request(job, uses=[use]))
    assert kind == "refused" and why in said[0]


@pytest.mark.slow
def test_a_node_with_other_data_refuses(job, here):
    other = replace(job, digests={**job.digests, "data": "0" * 64})
    ((kind, said),) = serve(request(replace(other, run_key=key_of_run(other))))
    assert kind == "refused" and "the data of 'digits', seed 0, are not those that the suite was planned with" in said[0]


@pytest.mark.slow
def test_a_node_with_other_vector_instructions_refuses(job, here):
    other = replace(job, provenance=job.provenance.model_copy(update={"cpu_capability": "ALTIVEC"}))
    ((kind, said),) = serve(request(replace(other, run_key=key_of_run(other))))
    assert kind == "refused" and "cpu_capability ALTIVEC ->" in said[0]


@pytest.mark.slow
def test_the_process_on_a_node_that_is_killed_is_a_loss(job, here):
    said = serve(request(job))
    assert next(said) == ("started", None)
    node._process.process.kill()
    *_, last = said
    assert last[0] == "lost" and "exit status -9" in last[1]
    assert [kind for kind, _ in serve(request(job))].count("cell") == 2  # the next run has a new one


def test_a_node_s_own_settings_come_before_the_user_s(monkeypatch):
    monkeypatch.setenv("FEDBENCH_DATA", "/node")
    monkeypatch.delenv("FEDBENCH_OFFLINE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    given = {"FEDBENCH_DATA": "/user", "FEDBENCH_OFFLINE": "1", "PATH": "/user"}
    made = node._environment(Request(needs={}, job=b"", environment=given))
    assert made["FEDBENCH_DATA"] == "/node" and made["FEDBENCH_OFFLINE"] == "1" and made["PATH"] != "/user"
    assert "RAY_AUTH_TOKEN" not in made


def test_a_relative_path_is_whole_before_it_travels(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBENCH_DATA", "data")
    assert node.passed_on()["FEDBENCH_DATA"] == str(tmp_path / "data")
    monkeypatch.setenv("FEDBENCH_DATA", "~/data")  # a node's own home
    assert node.passed_on()["FEDBENCH_DATA"] == "~/data"


# -- the command line ----------------------------------------------------------------------------------------------------


def test_without_ray_the_message_names_the_pip_command(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fedbench\[ray\]'"):
        called(suite(tmp_path), "--results", tmp_path / "r", "--executor", "ray")
    assert not records(tmp_path / "r")


@pytest.mark.parametrize(("address", "why"), [
    ("127.0.0.1:1", "nobody answers"), ("ray://head:10001", "run this command on a machine of the cluster"),
    ("head", "expected HOST:PORT"), ("head:99999", "expected HOST:PORT"),
])  # fmt: skip
def test_an_address_that_cannot_be_a_cluster_is_told_before_ray_is_imported(address, why, monkeypatch):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: True)
    with pytest.raises(UserError, match=why):
        RayCluster.connect(address)


@pytest.mark.parametrize(("arguments", "why"), [
    (["--ray-address", "auto"], "--ray-address goes with --executor ray"),
    (["--executor", "ray", "--device", "cuda:1"], "write --device cuda"),
    (["--executor", "ray", "--device", "cuda"], "the suite asks for no GPU; add --set limits.gpus=1"),
    (["--set", "limits.gpus=1.5"], "limits.gpus above 1 is a number of whole GPUs"),
])  # fmt: skip
def test_what_does_not_fit_together_is_told(tmp_path, arguments, why):
    with pytest.raises(UserError, match=why):
        called(suite(tmp_path), "--results", tmp_path / "r", "--dry-run", *arguments)


def test_with_gpus_the_plan_is_one_for_cuda_though_this_machine_has_none(tmp_path):
    plan = build_plan(str(suite(tmp_path, limits={"gpus": 0.5})), (), tmp_path / "r", "auto", None, "ray")
    assert {job.device for job in plan.jobs} == {"cuda"}
