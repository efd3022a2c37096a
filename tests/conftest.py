"""Fixtures that several test modules use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fedbench.core.cli.main import main
from fedbench.core.registry.components import Registry
from fedbench.core.toolkit.download import data_folder

# machines are shared: nothing here asserts on absolute time
settings.register_profile("fedbench", deadline=None)
settings.load_profile("fedbench")


def pytest_configure(config: pytest.Config) -> None:
    """Switch pytest-benchmark off where tests run side by side; it would warn that it is."""
    if config.getoption("numprocesses", None) or "PYTEST_XDIST_WORKER" in os.environ:
        config.option.benchmark_disable = True


@pytest.fixture(autouse=True, scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests remember of plugins is not what the user's commands do; the data stay where
    they are.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDBENCH_DATA", str(data_folder()))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """torch with one thread, as in a worker; nothing where no test has imported it."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def registry() -> Registry:
    """What is installed."""
    return Registry.discover()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path for made-up packages; modules imported from it are forgotten
    afterwards.
    """
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own, and no network."""
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDBENCH_OFFLINE", "1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """What runs a command in this process: the status and the words of it."""

    def called(*args: object) -> tuple[int, str]:
        if args[0] in ("run", "validate"):
            from running import plan_once

            plan_once()
        try:
            status = main([str(arg) for arg in args])
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        return status, " ".join((said.out + said.err).split())

    return called


@pytest.fixture
def words_of(call: Callable[..., tuple[int, str]]) -> Callable[..., str]:
    """What runs a command that must end with this status: the words of it."""

    def words(*args: object, status: int = 0) -> str:
        ended, said = call(*args)
        assert ended == status, said
        return said

    return words


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one real `fedbench run`: defenses none and grad-noise, attacks loss-series and
    fedmia-ii, pair, seed 0.

    Shared by all tests of a worker: read it, or copy it with ``shutil.copytree`` before changing
    it. The suite's file lies beside it as ``../tiny.yaml``. A Python without torch is given the
    folder that another one made, in ``FINISHED``.
    """
    if "FINISHED" in os.environ:
        return Path(os.environ["FINISHED"])
    from running import finish

    return finish(tmp_path_factory.mktemp("finished"))
