"""`--only` asks for no data but that of the settings in which something of it runs, in `run` and in `validate`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML
from running import records

from fedbench.core.cli.main import cli
from fedbench.core.execution.planned import settings_asked
from fedbench.core.registry.components import Registry
from fedbench.core.spec.resolve import load_and_check

SPEC = {
    "schema": 1, "name": "parts", "seeds": [0], "floors": [],
    "settings": [
        {"name": "here", "dataset": {"name": "digits", "params": {"test": 1400}}, "coalitions": ["pair"]},
        {"name": "away", "dataset": {"name": "dermnet"}, "model": "mlp", "coalitions": ["half"], "defenses": ["none", "kd"],
         "attacks": ["fta-l"]},
    ],
    "defenses": ["none", {"name": "mixup", "label": "mixed"}, "kd"], "attacks": ["loss-series", "fta-l"],
    "published": [{"source": "fedmia", "setting": s, "where": {"table": "Table 1", "dataset": "dermnet"}}
                  for s in ("here", "away")],
}  # fmt: skip
FEDERATION = {"clients": 6, "rounds": 2, "batch_size": 20, "optimizer": {"lr": 0.1}}


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A suite of two settings, of which the data of one is not on this machine."""
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "nothing"))
    spec = {**SPEC, "settings": [{**s, "federation": FEDERATION, "audit": {"nonmembers": 60}} for s in SPEC["settings"]]}
    with (tmp_path / "parts.yaml").open("w") as file:
        YAML(typ="safe").dump(spec, file)
    return tmp_path / "parts.yaml"


def fedbench(*args):
    """One call in this process: (exit status, what it said)."""
    result = CliRunner().invoke(cli, list(map(str, args)), prog_name="fedbench")
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("only", "asked"),
    [
        ({}, None),
        ({"setting": {"here"}}, {"here"}),
        ({"setting": {"nowhere"}}, set()),
        ({"coalition": {"half"}}, {"away"}),
        ({"coalition": {"none"}}, None),  # the undefended run of each
        ({"defense": {"mixed"}}, {"here"}),
        ({"defense": {"mixup"}}, {"here"}),  # the component's name, too
        ({"defense": {"kd"}}, None),
        ({"attack": {"loss-series"}}, {"here"}),
        ({"attack": {"fta-l"}, "coalition": {"pair"}, "seed": {"0"}}, {"here"}),
    ],
)
def test_the_settings_in_which_something_of_a_part_runs(path, only, asked):
    _, resolved = load_and_check(path, Registry.discover())
    assert settings_asked(resolved, only) == asked


@pytest.mark.parametrize("only", ["setting=here", "defense=mixup", "coalition=pair,attack=loss-series"])
def test_a_run_of_a_part_needs_the_data_of_that_part_alone(path, tmp_path, only):
    status, said = fedbench("run", path, "--results", tmp_path / "r", "--only", only, "--no-plots")
    assert status == 0, said
    assert {r["setting"] for r in records(tmp_path / "r").values()} == {"here"}
    board = (tmp_path / "r" / "leaderboard" / "board.md").read_text()
    assert "### fedmia Table 1, here" in board and "- not run: fedmia Table 1, away" in board
    assert "the paper's data set is dermnet, ours digits" in board


@pytest.mark.parametrize("only", ["setting=away", "defense=kd", "coalition=half", "seed=0"])
def test_a_part_with_absent_data_is_refused_before_anything_is_written(path, tmp_path, only):
    status, said = fedbench("run", path, "--results", tmp_path / "r", "--only", only)
    assert status == 2 and "setting 'away'" in said and "dermnet is not in" in said and not (tmp_path / "r").exists()


def test_validate_checks_every_setting_whose_data_is_here(path):
    assert fedbench("validate", path)[1].endswith("; data not checked: dermnet not on this machine\n")
    path.write_text(path.read_text().replace("test: 1400", "test: 1795"))
    status, said = fedbench("validate", path)
    assert status == 2 and "setting 'here'" in said and "away" not in said


def test_validate_of_a_part_says_nothing_of_the_data_of_the_others(path):
    status, said = fedbench("validate", path, "--only", "setting=here")
    assert status == 0 and "not checked" not in said and "2 settings" in said
    assert "dermnet not on this machine" in fedbench("validate", path, "--only", "setting=away")[1]
    status, said = fedbench("validate", path, "--only", "weather=fine")
    assert status == 2 and "expected KIND=NAME with a kind among setting" in said
