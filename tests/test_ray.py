"""Two real Ray nodes on this machine: the same bits as at home, whatever becomes of a plugin or of a node."""

from __future__ import annotations

import signal
import socket
import textwrap
from pathlib import Path

import psutil
import pytest
from fake_packages import install
from ray_nodes import AUTHENTICATION, Node, free_port
from running import HANG_S, called, fingerprint, invoke, outcomes, records, start, suite, wait_for

from fedbench.core.contract.errors import UserError
from fedbench.core.execution import ray_cluster
from fedbench.core.toolkit.folders import data_folder

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedbench[ray]'")
pytestmark = pytest.mark.slow

TOYS = '''
    import os, time
    from pathlib import Path
    from fedbench.core import Component, Defense, hookimpl

    HERE = Path("{folder}")

    class Raises(Defense):
        def protect(self, update, ctx):
            raise ValueError("out of ideas")

    class Hangs(Defense):
        def protect(self, update, ctx):
            while True:
                time.sleep(1)

    class Exits(Defense):
        def protect(self, update, ctx):
            os._exit(7)

    class Waits(Defense):
        """As long as there is a file `wait`; says where it waits."""
        def protect(self, update, ctx):
            if os.environ.get("FEDBENCH_NODE"):
                (HERE / f"waits-{{os.environ['FEDBENCH_NODE']}}").touch()
            while (HERE / "wait").exists():
                time.sleep(0.01)
            return update * 0.5

    @hookimpl
    def fedbench_defenses():
        for c in (Raises, Hangs, Exits, Waits):
            yield Component(f"toy-{{c.__name__.lower()}}", f"toys:{{c.__name__}}", "a toy")
'''


class Machines:
    """Two nodes, each with its own copy of the toys, and this process with a third."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sites = {name: folder / f"site-{name}" for name in ("home", "one", "two")}
        for site in self.sites.values():
            site.mkdir()
            install(site, "toys", TOYS.format(folder=folder))
        self.one = Node("one", folder, PYTHONPATH=str(self.sites["one"]))
        try:
            self.start_two()
        except BaseException:
            self.one.end()
            raise

    def install(self, name: str, more: str = "") -> None:
        """The toys' code with ``more`` at its end, in the package that is there."""
        (self.sites[name] / "toys.py").write_text(textwrap.dedent(TOYS.format(folder=self.folder)) + more)

    def start_two(self, **environment: str) -> None:
        environment = {"PYTHONPATH": str(self.sites["two"]), **environment}
        self.two = Node("two", self.folder, self.one.address, **environment)

    @property
    def address(self) -> str:
        return self.one.address

    def run(self, path: Path, results: Path, *more: str, **popen):
        """`fedbench run --executor ray` on them, in a process of its own."""
        return start(path, results, self.sites["home"], more=("--executor", "ray", "--ray-address", self.address, *more), **popen)


@pytest.fixture(scope="module", autouse=True)
def authenticated():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in AUTHENTICATION.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    made = Machines(tmp_path_factory.mktemp("machines"))
    yield made
    made.two.end()
    made.one.end()


@pytest.fixture
def at_home(machines, monkeypatch):
    """This process finds the toys, too."""
    monkeypatch.syspath_prepend(str(machines.sites["home"]))
    monkeypatch.setenv("PYTHONPATH", str(machines.sites["home"]))
    return machines


def ended(process) -> tuple[int, str]:
    output, _ = process.communicate(timeout=HANG_S)
    return process.returncode, output


def test_two_nodes_and_one_machine_give_the_same_bits_and_a_plugin_costs_its_own_cells(tmp_path, at_home):
    path = suite(
        tmp_path, defenses=["none", "toy-raises", "toy-exits", "toy-hangs", "grad-sparse"], seeds=[0, 1],
        attacks=["loss-series", "fedmia-i"], limits={"idle_seconds": 5},
    )  # fmt: skip
    assert ended(at_home.run(path, tmp_path / "ray"))[0] == 1
    invoke(path, "--results", tmp_path / "local", status=1)
    assert fingerprint(tmp_path / "ray") == fingerprint(tmp_path / "local") and len(fingerprint(tmp_path / "local")) == 28
    assert outcomes(tmp_path / "ray", 0)["toy-hangs"] == ("timeout", "stopped: nothing moved for 5 s (limits.idle_seconds)")
    assert outcomes(tmp_path / "ray", 0)["toy-exits"][0] == "failed"
    logs = {folder: sorted(p.name for p in (tmp_path / folder / "logs").iterdir()) for folder in ("ray", "local")}
    assert logs["ray"] == logs["local"] != []
    kept = [len(list((at_home.folder / f"cache-{name}" / "fedbench" / "trainings").glob("*.npz"))) for name in ("one", "two")]
    assert sum(kept) == 4 and min(kept) > 0  # both worked; the caches stay where they were made
    assert not list((tmp_path / "ray" / "cache").iterdir())


def test_a_node_that_dies_in_the_middle_costs_a_retry_and_no_bit(tmp_path, at_home):
    path, wait = suite(tmp_path, defenses=["none", "toy-waits"], seeds=[0, 1, 2]), at_home.folder / "wait"
    invoke(path, "--results", tmp_path / "local")
    wait.touch()
    process = at_home.run(path, tmp_path / "ray")
    wait_for(lambda: all((at_home.folder / f"waits-{name}").exists() for name in ("one", "two")), process)
    ran = at_home.two.die()
    wait_for(lambda: all(not one.is_running() or one.status() == psutil.STATUS_ZOMBIE for one in ran[1:]))
    wait.unlink()
    status, output = ended(process)
    at_home.two.end()
    at_home.start_two()
    assert status == 0, output
    assert "node two" in output and "tried again, 1 of 3" in output
    assert fingerprint(tmp_path / "ray") == fingerprint(tmp_path / "local")


def test_a_node_with_other_code_refuses_the_run_and_says_which_package(tmp_path, at_home):
    at_home.install("two", "\n# edited\n")
    path = suite(tmp_path, defenses=["toy-waits"], seeds=[0, 1, 2])
    try:
        status, output = ended(at_home.run(path, tmp_path / "some"))
        at_home.install("one", "\n# edited\n")
        refused, why = ended(at_home.run(path, tmp_path / "none"))
    finally:
        at_home.install("one")
        at_home.install("two")
    assert status == 0, output
    assert "node two" in output
    assert "is not used: the package 'toys', of 'toy-waits': version 1.0 as well, but its files differ" in output
    assert refused == 2 and "no node of the Ray cluster can do it" in why and "its files differ" in why
    assert not records(tmp_path / "none")  # nothing failed, nothing lost


@pytest.mark.skipif(not (data_folder() / "location30").is_dir(), reason="needs location30/ in $FEDBENCH_DATA")
def test_a_node_without_the_data_set_is_not_used(tmp_path, at_home):
    at_home.two.end()
    at_home.start_two(FEDBENCH_DATA=str(tmp_path / "empty"), FEDBENCH_OFFLINE="1")
    path = suite(tmp_path, settings=[{
        "name": "images", "dataset": "location30", "model": {"name": "mlp", "params": {"hidden": [16]}},
        "federation": {"clients": 4, "rounds": 2, "local_epochs": 1, "batch_size": 50, "optimizer": {"lr": 0.2}},
        "audit": {"every": 2, "nonmembers": 80},
    }], seeds=[0, 1])  # fmt: skip
    try:
        status, output = ended(at_home.run(path, tmp_path / "r"))
    finally:
        at_home.two.end()
        at_home.start_two()
    assert status == 0, output
    assert "node two" in output and "is not used" in output and "$FEDBENCH_OFFLINE is set: download" in output
    assert {r["outcome"] for r in records(tmp_path / "r").values()} == {"ok"}


def test_ctrl_c_cancels_and_keeps_what_is_finished_and_a_second_driver_is_refused_meanwhile(tmp_path, at_home):
    path, wait = suite(tmp_path, defenses=["none", "toy-waits"], seeds=[5]), at_home.folder / "wait"
    wait.touch()
    process = at_home.run(path, tmp_path / "r", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        wait_for(lambda: len(records(tmp_path / "r")) == 1, process)
        with pytest.raises(UserError, match="another `fedbench run` is writing here"):
            called(path, "--results", tmp_path / "r", "--executor", "ray", "--ray-address", at_home.address)
        process.send_signal(signal.SIGINT)
        status, output = ended(process)
        assert status == 130, output
        assert "1 of 2 cells are done and kept; the same command goes on from here" in output
        wait_for(lambda: not [one for node in (at_home.one, at_home.two) for one in node.everything() if runs(one)])
    finally:
        wait.unlink()


def runs(process: psutil.Process) -> bool:
    """Whether it is a process that this package started on a node."""
    return process.is_running() and "fedbench.core.execution.node" in process.cmdline()


def test_more_gpus_than_any_node_has_and_an_address_that_does_not_answer_are_told_at_once(tmp_path, at_home):
    path = suite(tmp_path)
    ray = ("--results", tmp_path / "r", "--executor", "ray", "--ray-address")
    with pytest.raises(UserError) as told:
        called(path, *ray, at_home.address, "--set", "limits.gpus=4", "--device", "cpu")
    assert "limits.gpus is 4, but" in str(told.value) and "one has gpus: 0" in str(told.value)
    assert "--set limits.gpus=" in str(told.value)
    with pytest.raises(UserError, match=r"nobody answers .*`ray start --head` prints the address"):
        called(path, *ray, f"127.0.0.1:{free_port()}")
    assert not records(tmp_path / "r")


def test_a_cluster_of_ones_own_is_started_and_ended_with_the_command(tmp_path):
    process = start(suite(tmp_path), tmp_path / "ray", tmp_path, more=("--executor", "ray", "--ray-address", "local"))
    wait_for(lambda: list(of_no_node()), process)
    assert ended(process)[0] == 0
    invoke(suite(tmp_path), "--results", tmp_path / "local")
    assert fingerprint(tmp_path / "ray") == fingerprint(tmp_path / "local")
    wait_for(lambda: not list(of_no_node()))


def of_no_node():
    """Processes of Ray's that this test session started, but for those of its nodes."""
    for one in psutil.process_iter(["name", "environ"]):
        its = one.info["environ"] or {}
        ours = its.get("RAY_AUTH_TOKEN") == AUTHENTICATION["RAY_AUTH_TOKEN"] and "FEDBENCH_NODE" not in its
        if ours and one.info["name"] in ("raylet", "gcs_server"):
            yield one


def test_a_port_that_is_not_rays_is_told_in_a_bounded_time(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_JOIN_S", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        address = f"127.0.0.1:{somebody.getsockname()[1]}"
        with pytest.raises(UserError, match=f"the Ray cluster at {address} did not answer within 5 s; is it a Ray head"):
            called(suite(tmp_path), "--results", tmp_path / "r", "--executor", "ray", "--ray-address", address)
    assert not records(tmp_path / "r")
