"""The commands that compute nothing: help, list, validate, plugins, doctor."""

import errno
import json
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from fake_packages import ANNOUNCE, BROKEN, DEFENSE, install
from good_suite import edited as edited_spec

from fedbench.core.cli import main as cli_main
from fedbench.core.cli import validate
from fedbench.core.cli.main import COMMANDS, cli, main
from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry

GOOD = edited_spec(("clients: 4", "clients: 6"))  # with four, pair and half are the same clients
LIGHT = ("validate", "list", "plugins", "doctor", "schema", "completion")


def edited(*changes: tuple[str, str]) -> str:
    """GOOD with these replacements."""
    return edited_spec(("clients: 4", "clients: 6"), *changes)


def fedbench(*args: str):
    """One call in this process; a traceback fails the test."""
    result = CliRunner().invoke(cli, args, prog_name="fedbench")
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


def imported_by(*args: str) -> set[str]:
    """Which of the heavy modules a call imports, in a process of its own."""
    code = (
        "import sys; from fedbench.core.cli.main import main; "
        f"main({list(args)!r}); print('HEAVY', *(m for m in ('torch', 'numpy', 'sklearn', 'rich') if m in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(out.splitlines()[-1].split()[1:])


def test_help_is_quick_and_teaches():
    assert imported_by("--help") == set()
    text = fedbench("--help").output
    for name, (_, summary) in COMMANDS.items():
        assert f"{name} " in text and summary in text
    assert "Examples:\n    fedbench list " in text


def test_help_lists_every_command_once_by_what_it_is_for_and_whole():
    text = fedbench("--help").output
    rows = re.findall(r"^  ([a-z]+) +(\S.*)$", text.partition("\n\nMeasure:\n")[2].partition("Examples:")[0], re.MULTILINE)
    assert [name for name, _ in rows] == list(cli_main.commands())
    assert {name for names in cli_main.SECTIONS.values() for name in names} == set(cli_main.commands())
    assert all(summary.endswith((".", "`.")) and not summary.endswith("...") for _, summary in rows)
    columns = {line.index(summary) for name, summary in rows for line in text.splitlines() if line.split()[:1] == [name]}
    assert len(columns) == 1, columns


def test_a_command_that_no_section_names_is_listed_last():
    found = cli_main.sections(["run", "dance", "list"])
    assert list(found.items()) == [("Measure", ["list", "run"]), ("Other commands", ["dance"])]


@pytest.mark.parametrize("what", ["", "defenses", "attacks", "models", "signals", "suites"])
def test_list_imports_no_target(what):
    assert imported_by("list", *what.split()) == set()


def test_list_datasets_asks_the_classes_but_not_torch():
    assert "torch" not in imported_by("list", "datasets")
    text = fedbench("list", "datasets").output
    assert "licence" in text and "CC BY 4.0" in text and "built in" in text and "170 MB" in text


@pytest.mark.parametrize("name", LIGHT)
def test_every_command_has_examples(name):
    text = fedbench(name, "--help").output
    assert f"Examples:\n    fedbench {name}" in text.replace("FEDBENCH_DATA=/data/fedbench ", "")


def test_a_near_miss_of_a_command():
    result = fedbench("lst")
    assert result.exit_code == 2 and "No such command 'lst' - did you mean 'list'?" in result.output


def test_a_command_that_cannot_be_imported_leaves_the_others(monkeypatch):
    monkeypatch.setattr(cli_main, "commands", lambda: {"run": "fedbench.core.cli.no_such:command", "list": COMMANDS["list"][0]})
    result = fedbench("run", "x")
    assert result.exit_code == 2
    assert result.stderr == "the command 'run' cannot be loaded: No module named 'fedbench.core.cli.no_such'\n"
    assert fedbench("list", "models").exit_code == 0 and fedbench("--help").exit_code == 0


def test_other_packages_of_the_distribution_announce_commands(monkeypatch):
    class Distribution:
        entry_points = EntryPoints([
            EntryPoint("weigh", "weighing:command", "fedbench.commands"),
            EntryPoint("gone", "no_such:command", "fedbench.commands"),
            EntryPoint("unasked", "weighing:command", "console_scripts"),
        ])  # fmt: skip

    @click.command()
    def command():
        """Weigh a federation."""

    monkeypatch.setitem(sys.modules, "weighing", SimpleNamespace(command=command))
    monkeypatch.setattr(cli_main, "distribution", {"fedbench": Distribution}.__getitem__)
    monkeypatch.setattr(cli_main, "commands", cli_main.commands.__wrapped__)
    text = fedbench("--help").output
    assert "weigh        Weigh a federation." in text and "the command 'gone' cannot be loaded" in text and "unasked" not in text
    assert fedbench("weigh").exit_code == 0


def _raising(error):
    @click.command()
    def command():
        raise error

    return command


@pytest.mark.parametrize(("error", "status", "message"), [
    (UserError("one", "two"), 2, "one\ntwo\n"),
    (KeyboardInterrupt(), 130, "interrupted\n"),
    (click.UsageError("not so"), 2, "not so\n"),
    (click.exceptions.Exit(1), 1, ""),
])  # fmt: skip
def test_exit_status_of_main(monkeypatch, capsys, error, status, message):
    monkeypatch.setattr(cli_main.LazyGroup, "get_command", lambda *_: _raising(error))
    assert main(["list"]) == status
    assert capsys.readouterr().err.endswith(message)


def test_main_returns_zero_and_usage_errors_two(capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out.startswith("fedbench ")
    assert main(["list", "nonsense"]) == 2


@pytest.mark.parametrize(("code", "status"), [(errno.ENOSPC, 2), (errno.EACCES, 2)])
def test_a_disk_that_refuses_is_a_message(monkeypatch, capsys, code, status):
    monkeypatch.setattr(cli_main.LazyGroup, "get_command", lambda *_: _raising(OSError(code, "no", "/some/file")))
    assert main(["list"]) == status and capsys.readouterr().err == "/some/file: no\n"


def test_a_defect_is_not_hidden_as_a_message(monkeypatch):
    monkeypatch.setattr(cli_main.LazyGroup, "get_command", lambda *_: _raising(OSError(errno.EBADF, "no")))
    with pytest.raises(OSError, match="no"):
        main(["list"])


def test_a_reader_that_closes_the_pipe_gets_no_traceback():
    call = "from fedbench.core.cli.main import main; raise SystemExit(main(['list', '--params']))"
    process = subprocess.Popen([sys.executable, "-c", call], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.wait() == 1 and process.stderr.read() == ""
    process.stderr.close()


def test_a_terminal_without_the_letter_gets_another():
    call = "import click; from fedbench.core.cli import main; main.cli.main = lambda **_: click.echo('a \u2192 b'); main.main()"
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, env=env)
    assert done.returncode == 0 and done.stdout == "a ? b\n", done.stderr


# list


def test_list_in_a_pipe_is_one_line_each():
    names = [c.name for c in Registry.discover().components("attack")]
    lines = fedbench("list", "attacks").output.splitlines()
    assert lines[0].split() == ["attack", "summary", "paper", "package"]
    assert [line.split()[0] for line in lines[1:]] == names


def test_list_without_a_kind_has_all_sections():
    text = fedbench("list").output
    for title in ("defenses", "attacks", "datasets", "models", "signals", "suites"):
        assert f"{title}\n" in text
    assert "partial_defense" in text


def test_list_params_shows_type_default_range_and_description():
    rows = [line.split("  ") for line in fedbench("list", "datasets", "--params").output.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[0] == ["dataset", "name", "type", "default", "range", "description"]
    assert ["digits", "test", "int", "397", "[1, 1795]", "test samples, clean labels"] in cells


def test_list_json():
    (none,) = (e for e in json.loads(fedbench("list", "defenses", "--json").output)["defenses"] if e["name"] == "none")
    assert none["target"] == "fedbench.plugins.defenses.none:NoDefense" and none["package"] == "fedbench"
    found = json.loads(fedbench("list", "defenses", "--params", "--json").output)["defenses"]
    (noise,) = (e for e in found if e["name"] == "grad-noise")
    assert {"name": "sigma", "type": "float", "range": ">= 0"}.items() <= noise["params"][0].items()
    suites = json.loads(fedbench("list", "suites", "--json").output)["suites"]
    assert {"name", "title", "cells", "path"} <= suites[0].keys()


def test_list_suites_counts_cells_and_has_no_params():
    assert fedbench("list", "suites").output.splitlines()[0].split("  ")[0] == "suite"
    assert fedbench("list", "suites", "--params").exit_code == 2


def test_list_shows_a_suite_that_does_not_load(tmp_path, monkeypatch):
    (tmp_path / "bad.yaml").write_text(edited(("rounds: 10", "rounds: 0")))
    monkeypatch.setattr("fedbench.core.spec.shipped.files", lambda package: tmp_path)
    result = fedbench("list", "suites")
    assert result.exit_code == 0 and "bad.yaml:10:15: settings[0].federation.rounds" in result.output


def test_list_params_of_a_class_that_cannot_be_imported(site):
    install(site, "my_plugin", ANNOUNCE.format(name="shield", target="nowhere_at_all:X"), distribution="my-dist")
    result = fedbench("list", "defenses", "--params")
    assert result.exit_code == 0
    (line,) = (row for row in result.stdout.splitlines() if row.startswith("shield "))
    assert "defense 'shield' (my-dist 1.0): cannot import 'nowhere_at_all': ModuleNotFoundError" in line


def test_on_a_terminal_the_table_is_ruled_and_brackets_survive():
    from fedbench.core.cli.table import show_table

    @click.command()
    def command():
        sys.stdout.isatty = lambda: True
        show_table(("label",), [("grad-noise[sigma=0.1]",)])

    text = CliRunner().invoke(command).output
    assert "grad-noise[sigma=0.1]" in text and "━" in text


# validate


def test_validate_prints_a_line_a_suite(tmp_path):
    (tmp_path / "a.yaml").write_text(GOOD)
    result = fedbench("validate", str(tmp_path / "a.yaml"), "partial_defense")
    assert result.exit_code == 0 and result.stderr == ""
    first, second = result.stdout.splitlines()
    assert first == f"{tmp_path}/a.yaml: ok: 1 setting, 2 defenses, 1 attack, 2 seeds, up to 8 cells"
    assert "partial_defense.yaml: ok: " in second


def test_validate_gathers_the_mistakes_of_all_suites(tmp_path):
    for name, edit in (("a", ("rounds: 10", "rounds: 0")), ("b", ("- none", "- nonne")), ("c", ("- none", "- none"))):
        (tmp_path / f"{name}.yaml").write_text(edited(edit))
    result = fedbench("validate", *(str(tmp_path / f"{name}.yaml") for name in "abc"))
    assert result.exit_code == 2
    assert [line.split(": ")[0].removeprefix(f"{tmp_path}/") for line in result.stderr.splitlines()] == [
        "a.yaml:10:15", "b.yaml:16:5",
    ]  # fmt: skip
    assert result.stdout.startswith(f"{tmp_path}/c.yaml: ok")


def test_validate_with_overrides(tmp_path):
    (tmp_path / "a.yaml").write_text(GOOD)
    assert "1 seed, up to 4 cells" in fedbench("validate", str(tmp_path / "a.yaml"), "--set", "seeds=[5]").stdout
    result = fedbench("validate", str(tmp_path / "a.yaml"), "--set", "seeds=[x]")
    wanted = "expected an integer in [0, 9223372036854775807], found the text 'x'"
    expected = f"{tmp_path}/a.yaml: --set seeds=[x]: seeds[0]: {wanted}\n"
    assert result.exit_code == 2 and result.stderr == expected


def test_validate_finds_what_needs_the_data_unless_told_not_to(tmp_path):
    (tmp_path / "a.yaml").write_text(edited(("partition: iid", "partition: {name: iid, min_samples: 900}")))
    result = fedbench("validate", str(tmp_path / "a.yaml"))
    assert result.exit_code == 2 and f"{tmp_path}/a.yaml:5:5: setting 'digits': " in result.stderr
    assert fedbench("validate", "--no-data", str(tmp_path / "a.yaml")).exit_code == 0


def refuse(loaded, resolved, settings):
    assert settings == {"digits"}
    raise UserError(f"{loaded.spec.name}: {resolved.settings[0].dataset.name} is too small")


def test_validate_runs_further_checks(tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text(GOOD)
    monkeypatch.setattr(validate, "CHECKS", (f"{__name__}:refuse",))
    result = fedbench("validate", str(tmp_path / "a.yaml"))
    assert result.exit_code == 2 and result.stderr == "small: digits is too small\n"


def test_a_suite_fails_only_where_it_names_what_is_broken(site):
    install(site, "broken", BROKEN["syntax"][0], distribution="broken-dist")
    install(site, "one_plugin", ANNOUNCE.format(name="shield", target="x:Shield"), distribution="one-dist")
    install(site, "two_plugin", ANNOUNCE.format(name="shield", target="y:Shield"), distribution="two-dist")
    (site / "good.yaml").write_text(GOOD)
    assert fedbench("validate", str(site / "good.yaml")).exit_code == 0
    (site / "clash.yaml").write_text(edited(("- none", "- shield")))
    assert "16:5: defenses[0]: defense 'shield' is claimed by one-dist 1.0" in fedbench(
        "validate", str(site / "clash.yaml")
    ).stderr
    (site / "gone.yaml").write_text(edited(("- none", "- promised")))
    message = fedbench("validate", str(site / "gone.yaml")).stderr
    assert "a broken plugin may have provided it: 'broken' (broken-dist 1.0): cannot import 'broken': Syntax" in message


# plugins, doctor


def test_plugins_shows_the_broken_and_the_clashing(site):
    install(site, "broken", BROKEN["exit"][0], version="0.3", distribution="broken-dist")
    install(site, "one_plugin", ANNOUNCE.format(name="shield", target="good_class:Shield"), distribution="one-dist")
    install(site, "two_plugin", ANNOUNCE.format(name="shield", target="good_class:Shield"), distribution="two-dist")
    (site / "good_class.py").write_text(DEFENSE)
    result = fedbench("plugins")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert ["broken", "broken-dist", "0.3", "BROKEN", "nothing"] in [line.split() for line in lines]
    assert ["one_plugin", "one-dist", "1.0", "ok", "1", "defense"] in [line.split() for line in lines]
    (broken,) = (line for line in lines if line.startswith("BROKEN "))
    assert broken.startswith("BROKEN 'broken' (broken-dist 0.3): cannot import 'broken': it called sys.exit(3)")
    (clash,) = (line for line in lines if line.startswith("CLASH "))
    assert "one-dist 1.0 (good_class:Shield) and two-dist 1.0" in clash
    listed = fedbench("list", "defenses")
    assert "1 broken plugin(s): see `fedbench plugins`" in listed.stderr and not re.search(r"^shield ", listed.stdout, re.M)


def test_doctor_reports_and_does_not_create_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "data"))
    result = fedbench("doctor")
    assert result.exit_code == 0 and not (tmp_path / "data").exists()
    rows = {line.split("  ")[0]: line for line in result.stdout.splitlines()}
    assert {"python", "torch", "numpy", "cores", "threads", "cuda", "data folder", "plugins"} <= rows.keys()
    assert f"{tmp_path}/data ($FEDBENCH_DATA)" in rows["data folder"] and "does not exist yet" in rows["data"]


def test_doctor_shows_what_is_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path))
    assert "the folder is empty" in fedbench("doctor").stdout
    (tmp_path / "cifar").mkdir()
    (tmp_path / "purchase.npz").write_bytes(bytes(2**20))
    text = fedbench("doctor").stdout
    assert "cifar/" in text and "purchase.npz (1.0 MiB)" in text


def test_doctor_names_problems_and_ends_with_one(tmp_path, monkeypatch):
    from fedbench.core.cli import doctor

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(doctor, "_PACKAGES", ("fedbench", "no-such-package-here"))
    result = fedbench("doctor")
    assert result.exit_code == 1
    assert "PROBLEM the package 'no-such-package-here' is not installed" in result.stdout
    assert f"PROBLEM the data folder {tmp_path}/file/below cannot be written" in result.stdout
