"""The commands that compute nothing, and what a shell completes."""

import errno
import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import click
import pytest
from click.shell_completion import get_completion_class
from fake_packages import ANNOUNCE, BROKEN, DEFENSE, described, install
from good_suite import edited as edited_spec

from fedbench.core import UserError
from fedbench.core.cli import machine
from fedbench.core.cli import main as cli_main
from fedbench.core.cli.main import COMMANDS, cli, main
from fedbench.core.registry.kinds import PLURAL
from fedbench.suites import shipped_suites

HEAVY = ("torch", "numpy", "sklearn", "rich")


def edited(*changes: tuple[str, str]) -> str:
    """The good suite with these replacements and six clients: of four, pair and half are the
    same.
    """
    return edited_spec(("clients: 4", "clients: 6"), *changes)


@pytest.fixture
def fedbench(capsys):
    """What calls a command in this process: its exit status, stdout and stderr."""

    def called(*args: object) -> tuple[int, str, str]:
        status = main([str(arg) for arg in args])
        return status, *capsys.readouterr()

    return called


def apart(*args: str) -> tuple[str, set[str]]:
    """What a command prints in a process of its own, and which of the heavy modules it imports."""
    code = (
        f"import atexit, sys; atexit.register(lambda: print('IMPORTED', *(m for m in {HEAVY!r} "
        "if m in sys.modules))); "
        f"from fedbench.core.cli.main import main; main({list(args)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *lines, last = done.stdout.splitlines()
    return "\n".join(lines), set(last.split()[1:])


def test_help_and_list_import_nothing_heavy():
    text, imported = apart("--help")
    assert imported == set() and "Examples:\n" in text
    rows = re.findall(
        r"^  ([a-z]+) +(\S.*)$",
        text.partition("\n\nMeasure:\n")[2].partition("Examples:")[0],
        re.MULTILINE,
    )
    assert [name for name, _ in rows] == list(cli_main.commands()) and len(rows) == len(set(rows))
    assert {name: said for name, said in rows if name in COMMANDS} == {
        name: said for name, (_, said) in COMMANDS.items()
    }
    assert apart("list")[1] == set()


def test_every_command_has_examples_and_a_near_miss_is_named(fedbench, words_of):
    without = [
        name
        for name in cli_main.commands()
        if f"fedbench {name}" not in fedbench(name, "--help")[1].partition("Examples:")[2]
    ]
    assert without == []
    assert "No such command 'lst' - did you mean 'list'?" in words_of("lst", status=2)
    assert fedbench("--version")[1].startswith("fedbench ") and fedbench("list", "nonsense")[0] == 2


def test_other_packages_of_the_distribution_announce_commands_and_a_broken_one_leaves_the_others(
    monkeypatch, fedbench
):
    class Distribution:
        entry_points = EntryPoints(
            [
                EntryPoint("weigh", "weighing:command", "fedbench.commands"),
                EntryPoint("gone", "no_such:command", "fedbench.commands"),
                EntryPoint("unasked", "weighing:command", "console_scripts"),
            ]
        )

    @click.command()
    def command():
        """Weigh a federation."""

    monkeypatch.setitem(sys.modules, "weighing", SimpleNamespace(command=command))
    monkeypatch.setattr(cli_main, "distribution", {"fedbench-privacy": Distribution}.__getitem__)
    monkeypatch.setattr(cli_main, "commands", cli_main.commands.__wrapped__)
    text = fedbench("--help")[1]
    assert (
        "weigh        Weigh a federation." in text
        and "the command 'gone' cannot be loaded" in text
        and "unasked" not in text
    )
    assert fedbench("weigh")[0] == fedbench("list", "models")[0] == 0
    assert fedbench("gone") == (
        2,
        "",
        "the command 'gone' cannot be loaded: No module named 'no_such'\n",
    )


@pytest.mark.parametrize(
    ("name", "record", "refused"),
    [
        ("fedbench", "fedbench/__init__.py,,\n", True),
        ("their_tool", "a.py,,\nfedbench/core/cli/main.py,,\n", True),
        ("fedbench", "../../../bin/fedbench,,\n", True),
        ("fedbench_privacy", "../../../bin/fedbench,,\nfedbench/__init__.py,,\n", False),
        (
            "fedbench_shield",
            "fedbench_shield/__init__.py,,\ntests/fedbench/a.py,,\n../../../bin/fedbench-shield,,\n",
            False,
        ),
    ],
)
def test_a_command_beside_files_of_another_package_says_so_and_stops(
    name, record, refused, tmp_path, monkeypatch, fedbench
):
    described(tmp_path, name, "a")
    (tmp_path / f"{name}-1.0.dist-info" / "RECORD").write_text(record)
    monkeypatch.syspath_prepend(tmp_path)
    cli_main.intruders.cache_clear()
    status, _, message = fedbench("schema")
    cli_main.intruders.cache_clear()
    assert status == 2 * refused
    called = name.replace("_", "-")
    install = "pip install --force-reinstall --no-deps fedbench-privacy"
    remedy = f"run `pip uninstall {called}`, then `{install}`\n"
    assert message.endswith(f": {called}; {remedy}") if refused else message == ""


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UserError("one", "two"), 2, "one\ntwo\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (click.UsageError("not so"), 2, "not so\n"),
        (click.exceptions.Exit(1), 1, ""),
        (OSError(errno.ENOSPC, "no", "/some/file"), 2, "/some/file: no\n"),
        (OSError(errno.EACCES, "no", "/x"), 2, "/x: no\n"),
        (MemoryError(), 2, "or name fewer results\n"),
    ],
)
def test_exit_status_of_main(monkeypatch, fedbench, error, status, message):
    raise_with(monkeypatch, error)
    found, _, said = fedbench("list")
    assert found == status and said.endswith(message)


def raise_with(monkeypatch, error: BaseException) -> None:
    """Every command raises this error."""

    @click.command()
    def command():
        raise error

    monkeypatch.setattr(cli_main.LazyGroup, "get_command", lambda *_: command)


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ("exec 3>&1 >&-", "standard output is closed: redirect it"),
        ("ulimit -v 300000", "`ulimit -v` allows 292 MiB of address space"),
        (
            "trap '' PIPE; exec > >(exec true); wait $!",
            "standard output was closed before all was printed",
        ),
    ],
    ids=["closed", "little memory", "closed early"],
)
def test_a_terminal_that_cannot_be_used_is_one_line(shell, said):
    command = f"{shell}; exec {sys.executable} -m fedbench.core.cli.main list suites"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), done.stderr[: len(said)]) == (2, 1, said)


def test_a_defect_is_not_hidden_as_a_message(monkeypatch):
    raise_with(monkeypatch, OSError(errno.EBADF, "no"))
    with pytest.raises(OSError, match="no"):
        main(["list"])


# list


def test_list_shows_every_component_and_its_parameters(fedbench, registry):
    for kind in ("defense", "attack", "model", "signal"):
        lines = fedbench("list", PLURAL[kind])[1].splitlines()
        assert lines[0].split() == ["name", "summary", "paper", "package", "version"]
        assert [line.split()[0] for line in lines[1:]] == [
            c.name for c in registry.components(kind)
        ]
    text = fedbench("list", "datasets", "--params")[1]
    assert re.search(
        r"^digits +test +int +397 +\[1, 1795\] +test samples, clean labels$", text, re.MULTILINE
    )
    assert re.search(r"^cifar10 .* 170\.\d+ .*", fedbench("list", "datasets")[1], re.MULTILINE)
    found = json.loads(fedbench("list", "defenses", "--params", "--json")[1])["defenses"]
    (noise,) = (entry for entry in found if entry["name"] == "grad-noise")
    assert {"name": "sigma", "type": "float", "range": ">= 0"}.items() <= noise["params"][0].items()


def test_list_suites_shows_names_and_titles(fedbench, tmp_path, monkeypatch):
    (tmp_path / "good.yaml").write_text(edited(("name: small", "name: small\ntitle: Partial")))
    monkeypatch.setattr("fedbench.suites.files", lambda package: tmp_path)
    status, text, _ = fedbench("list", "suites")
    assert status == 0 and re.search(r"^good +Partial$", text, re.MULTILINE)
    assert fedbench("list", "suites", "--params")[0] == 2


# validate


def test_validate_prints_a_line_a_suite_and_gathers_all_mistakes(tmp_path, fedbench):
    for name, edits in {
        "a": [("rounds: 10", "rounds: 0")],
        "b": [("- none", "- nonne")],
        "c": [],
    }.items():
        (tmp_path / f"{name}.yaml").write_text(edited(*edits))
    status, out, err = fedbench("validate", *(tmp_path / f"{name}.yaml" for name in "abc"))
    assert (status, out) == (
        2,
        f"{tmp_path}/c.yaml: ok: 1 setting, 2 defenses, 1 attack, 2 seeds, up to 8 cells\n",
    )
    assert [line.split(": ")[0].removeprefix(f"{tmp_path}/") for line in err.splitlines()] == [
        "a.yaml:10:15",
        "b.yaml:16:5",
    ]
    assert (
        "1 seed, up to 4 cells"
        in fedbench("validate", tmp_path / "c.yaml", "--set", "seeds=[5]")[1]
    )


def test_validate_finds_what_needs_the_data_unless_told_not_to(tmp_path, words_of):
    (tmp_path / "a.yaml").write_text(
        edited(("partition: iid", "partition: {name: iid, min_samples: 900}"))
    )
    words = words_of("validate", tmp_path / "a.yaml", status=2)
    assert f"{tmp_path}/a.yaml:5:5: setting 'digits': " in words
    words_of("validate", "--no-data", tmp_path / "a.yaml")


def test_json_is_one_document_and_quiet_prints_what_failed_alone(tmp_path, fedbench):
    for name, edits in {"bad": [("- none", "- nonne")], "good": []}.items():
        (tmp_path / f"{name}.yaml").write_text(edited(*edits))
    both = [tmp_path / "bad.yaml", tmp_path / "good.yaml", "--no-data"]
    status, out, _ = fedbench("validate", *both, "--json")
    bad, good = json.loads(out)
    assert (
        status == 2
        and "unknown defense 'nonne'" in bad["mistakes"][0]
        and bad["suite"] == str(both[0])
    )
    assert (good["mistakes"], good["defenses"], good["most_cells"]) == ([], 2, 8)
    status, out, err = fedbench("validate", *both, "--quiet")
    assert (status, out) == (2, "") and "nonne" in err


# plugins, doctor


@pytest.fixture
def crowded(site):
    """A broken package, and two that claim one name."""
    install(site, "broken", BROKEN["exit"][0], version="0.3", distribution="broken-dist")
    for name in ("one", "two"):
        install(
            site,
            f"{name}_plugin",
            ANNOUNCE.format(name="shield", target=f"{name}_class:Shield"),
            distribution=f"{name}-dist",
        )
    (site / "one_class.py").write_text(DEFENSE)
    return site


def test_plugins_shows_the_broken_and_the_clashing_and_list_points_to_it(crowded, fedbench):
    status, out, _ = fedbench("plugins")
    rows = [line.split() for line in out.splitlines()]
    assert status == 0 and ["broken", "broken-dist", "0.3", "BROKEN", "nothing"] in rows
    assert ["one_plugin", "one-dist", "1.0", "ok", "1", "defense"] in rows
    assert "BROKEN 'broken' (broken-dist 0.3): cannot import 'broken': it called sys.exit(3)" in out
    assert (
        "CLASH defense 'shield' is claimed by one-dist 1.0 (one_class:Shield) and two-dist 1.0"
        in out
    )
    told = json.loads(fedbench("plugins", "--json")[1])
    (broken,) = (p for p in told["plugins"] if not p["ok"])
    assert (
        broken["package"] == "broken-dist"
        and "sys.exit(3)" in broken["reason"]
        and "'shield'" in told["clashes"][0]
    )
    _, out, err = fedbench("list", "defenses")
    assert "1 broken plugin(s): see `fedbench plugins`" in err and not re.search(
        r"^shield ", out, re.MULTILINE
    )


def test_doctor_reports_the_machine_and_names_problems(tmp_path, monkeypatch, fedbench):
    (tmp_path / "purchase.npz").write_bytes(bytes(2**20))
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path))
    status, text, _ = fedbench("doctor")
    assert status == 0 and {"python", "torch", "cores", "threads", "cuda", "plugins"} <= {
        line.split()[0] for line in text.splitlines()
    }
    assert f"{tmp_path} ($FEDBENCH_DATA)" in text and "1 files and folders" in text
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "purchase.npz" / "below"))
    monkeypatch.setattr(machine, "_PACKAGES", ("fedbench", "no-such-package-here"))
    status, text, _ = fedbench("doctor")
    assert status == 1 and "PROBLEM the package 'no-such-package-here' is not installed" in text
    assert f"PROBLEM the data folder {tmp_path}/purchase.npz/below cannot be written" in text


# completion


def names(*words: str, incomplete: str = "") -> set[str]:
    """What a shell offers after these words; ``(type)`` where it looks for files itself."""
    found = get_completion_class("bash")(cli, {}, "fedbench", "_FEDBENCH_COMPLETE").get_completions(
        list(words), incomplete
    )
    return {item.value if item.type == "plain" else f"({item.type})" for item in found}


def test_a_tab_offers_commands_options_and_suites():
    assert (
        set(COMMANDS) <= names()
        and names("list") == {*PLURAL.values(), "suites"}
        and "--version" in names(incomplete="--")
    )
    assert names("run", "x", "--rerun") == {"missing", "failed", "always", "never"}
    assert names("run") == names("validate", "clustered") == set(shipped_suites())
    assert names("run", incomplete="../elsewhere/a") == names("show") == {"(file)"}


def test_results_folders_and_workers_are_by_default_those_of_the_environment(
    tmp_path, monkeypatch, words_of
):
    monkeypatch.setenv("FEDBENCH_RESULTS", str(tmp_path / "all"))
    words = words_of("run", "partial_defense", "--dry-run")
    assert str(tmp_path / "all" / "partial_defense") in words
    monkeypatch.setenv("FEDBENCH_WORKERS", "0")
    assert "FEDBENCH_WORKERS" in words_of("run", "partial_defense", "--dry-run", status=2)
