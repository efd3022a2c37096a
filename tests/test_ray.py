"""Two real Ray nodes on this machine: the same bits as at home, whatever becomes of a plugin or of
a node.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from fake_packages import install
from ray_nodes import AUTHENTICATION, Node
from running import HANG_S, fingerprint, invoke, outcomes, start, suite, wait_for

pytest.importorskip("ray", reason="Ray is not installed: pip install 'fedbench-privacy[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.nightly]

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


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """(the folder of two nodes that find the toys, the nodes); this process finds the toys, too."""
    folder = tmp_path_factory.mktemp("nodes")
    site = str(install(folder / "site", "toys", TOYS.format(folder=folder)))
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in {**AUTHENTICATION, "PYTHONPATH": site}.items():
            patch.setenv(name, value)
        patch.syspath_prepend(site)
        one = Node("one", folder)
        stack.callback(one.end)
        two = Node("two", folder, one.address)
        stack.callback(two.end)
        yield folder, one, two


def on_nodes(path: Path, results: Path, nodes):
    """`fedbench run --executor ray` on the nodes, in a process of its own."""
    folder, one, _ = nodes
    return start(
        path, results, folder / "site", more=("--executor", "ray", "--ray-address", one.address)
    )


def test_two_nodes_and_one_machine_give_the_same_bits_and_a_plugin_costs_its_own_cells(
    tmp_path, nodes
):
    path = suite(
        tmp_path,
        defenses=["none", "toy-raises", "toy-exits", "toy-hangs", "grad-sparse"],
        seeds=[0, 1],
        attacks=["loss-series", "fedmia-i"],
        limits={"idle_seconds": 5},
    )
    process = on_nodes(path, tmp_path / "ray", nodes)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 1, output
    invoke(path, "--results", tmp_path / "local", status=1)
    assert (
        fingerprint(tmp_path / "ray") == fingerprint(tmp_path / "local")
        and len(fingerprint(tmp_path / "local")) == 28
    )
    assert outcomes(tmp_path / "ray", 0)["toy-hangs"] == (
        "timeout",
        "stopped: nothing moved for 5 s (limits.idle_seconds)",
    )


def test_a_node_that_dies_in_the_middle_costs_a_retry_and_no_bit(tmp_path, nodes):
    (folder, _, two), path = nodes, suite(tmp_path, defenses=["none", "toy-waits"], seeds=[0, 1, 2])
    invoke(path, "--results", tmp_path / "local")
    (folder / "wait").touch()
    process = on_nodes(path, tmp_path / "ray", nodes)
    wait_for(lambda: all((folder / f"waits-{name}").exists() for name in ("one", "two")), process)
    ran = two.die()
    wait_for(
        lambda: all(not one.is_running() or one.status() == psutil.STATUS_ZOMBIE for one in ran[1:])
    )
    (folder / "wait").unlink()
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, output
    assert fingerprint(tmp_path / "ray") == fingerprint(tmp_path / "local")
