"""`fedbench new`: what it refuses, and that a package is there whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_packages import ANNOUNCE, install
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedbench.core
from fedbench.core import UserError
from fedbench.core.cli.main import cli
from fedbench.core.cli.new import _KINDS
from fedbench.core.scaffold import write
from fedbench.core.scaffold.names import names_of
from fedbench.core.scaffold.package import KINDS, package_files


def new(*args: object, status: int = 0) -> str:
    """The output of one call in this process."""
    result = CliRunner().invoke(cli, ["new", *map(str, args)], prog_name="fedbench")
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == status, result.output
    return result.stderr if status else result.stdout


def everything(folder: Path) -> dict[str, str]:
    """Path -> text of all below a folder."""
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


# --- names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "words"), [
    ("My Defense!", "'My Defense!' is no name for a defense: expected 2 to 30 letters, digits and single dashes, a letter first,"
     " e.g. 'my-defense'"),
    ("", "'' is no name for a defense"),
    ("x", "'x' is no name"),
    ("3d-noise", "a letter first, e.g. 'd-noise'"),
    ("a" * 200, "aaa…' is no name for a defense"),
    ("schärfe", "e.g. 'my-method'"),
    ("\u212aelvin", "e.g. 'my-method'"),
    ("a/b", "e.g. 'a-b'"),
    ("../up", "e.g. 'up'"),
    ("..", "is no name"),
    ("a\nb", "'a b' is no name"),
    ("-dash", "No such option"),
    ("dash-", "e.g. 'dash'"),
    ("class", "'class' is no name for a defense: it is a word of Python; try 'my-class'"),
    ("Lambda", "'lambda' is no name for a defense: it is a word of Python"),
    ("none", "'none' is no name for a defense: it is a word of suites; try 'my-none'"),
    ("fedbench-shield", "leave out 'fedbench-', the package gets it by itself"),
])  # fmt: skip
def test_a_bad_name_is_refused_with_a_good_one(tmp_path, given, words):
    assert words in new("defense", given, "--into", tmp_path, status=2)
    assert list(tmp_path.iterdir()) == []


def test_a_kind_that_is_none_lists_them(tmp_path):
    assert "'defence' is not one of 'defense', 'attack'" in new("defence", "shield", "--into", tmp_path, status=2)


def test_capitals_underscores_and_dots_become_what_pip_makes_of_them():
    names = names_of("attack", "My_Own.Attack")
    assert (names.name, names.distribution) == ("my-own-attack", "fedbench-my-own-attack")
    assert (names.module, names.method, names.cls) == ("fedbench_my_own_attack", "my_own_attack", "MyOwnAttack")


@pytest.mark.parametrize(("kind", "name"), [
    ("defense", "defense"), ("dataset", "data"), ("model", "field"), ("attack", "params"),
])  # fmt: skip
def test_the_class_never_hides_what_its_module_imports(kind, name):
    names = names_of(kind, name)
    assert names.cls not in {*fedbench.core.__all__, "Field"} and names.cls.isidentifier()


@example("model", "m" * 30)
@example("analysis", "a-" * 14 + "b")
@given(st.sampled_from(sorted(KINDS)), st.from_regex(r"[a-z][a-z0-9]*(-[a-z0-9]+){0,3}", fullmatch=True))
@settings(max_examples=60)
def test_whatever_is_accepted_gives_modules_that_compile_and_lines_that_fit(kind, name):
    try:
        names = names_of(kind, name)
    except UserError as refused:
        assert str(refused)
        return
    written = package_files(names, 'Jo "the \\ cat" Ünal', "0.3.1")
    for path, text in written.items():
        if path.endswith(".py"):
            compile(text, path, "exec")
            assert max(map(len, text.splitlines())) <= 130, path
    project = tomllib.loads(written["pyproject.toml"])["project"]
    assert project["authors"] == [{"name": 'Jo "the \\ cat" Ünal'}] and project["dependencies"] == ["fedbench>=0.3,<1"]
    assert project["entry-points"]["fedbench"] == {names.name: names.module}
    assert f"src/{names.module}/{names.method}.py" in written


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_suite_of_a_package_begins_with_the_schema_that_its_command_writes(kind):
    written = package_files(names_of(kind, "my-own"), "Jo", "0.3.1")
    first, second, *_ = written["suites/my-own.yaml"].splitlines()
    assert first == "# yaml-language-server: $schema=suite.schema.json"
    assert "fedbench schema --output suites/suite.schema.json" in second and second.startswith("# ")


@pytest.mark.parametrize(("kind", "name", "who"), [
    ("defense", "grad-noise", "there is the defense 'grad-noise' (fedbench "),
    ("attack", "entropy", "there is the signal 'entropy' (fedbench "),
    ("defense", "shield", "there is the defense 'shield' (other-dist 1.0)"),
    ("model", "shield", "there is the defense 'shield' (other-dist 1.0)"),
    ("model", "armour", "a package 'fedbench_armour' 1.0 is installed already"),
])  # fmt: skip
def test_a_name_that_is_taken_is_refused_with_whose_it_is(site, tmp_path, kind, name, who):
    install(site, "one_plugin", ANNOUNCE.format(name="shield", target="a:Shield"), distribution="other-dist")
    install(site, "two_plugin", ANNOUNCE.format(name="plate", target="a:Plate"), distribution="fedbench_armour")
    (tmp_path / "into").mkdir()
    assert who in new(kind, name, "--into", tmp_path / "into", status=2)
    assert list((tmp_path / "into").iterdir()) == []


# --- folders ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [
    lambda target: target.mkdir(),
    lambda target: (target.mkdir(), (target / "README.md").write_text("mine")),
    lambda target: target.write_text("mine"),
    lambda target: target.symlink_to("nowhere"),
], ids=["an empty folder", "a full folder", "a file", "a link to nothing"])  # fmt: skip
def test_what_exists_is_not_touched(tmp_path, make):
    target = tmp_path / "fedbench-shield"
    make(target)
    before = everything(tmp_path), os.lstat(target)
    assert f"{target} exists: nothing was written" in new("defense", "shield", "--into", tmp_path, status=2)
    assert (everything(tmp_path), os.lstat(target)) == before and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("content", [None, "README.md"], ids=["empty", "full"])
def test_a_folder_that_appears_while_writing_is_not_touched(tmp_path, monkeypatch, content):
    target = tmp_path / "fedbench-shield"

    def somebody_else() -> int:
        target.mkdir()
        if content:
            (target / content).write_text("mine")
        return 0o022

    monkeypatch.setattr(write, "_umask", somebody_else)
    with pytest.raises(UserError, match="exists: nothing was written"):
        write.write_folder(target, {"README.md": "new"})
    assert everything(tmp_path) == ({f"fedbench-shield/{content}": "mine"} if content else {})


def test_a_folder_that_fills_between_the_last_look_and_the_renaming_is_not_touched(tmp_path, monkeypatch):
    target = tmp_path / "fedbench-shield"
    target.mkdir()
    (target / "mine").write_text("mine")
    monkeypatch.setattr(write, "refuse_existing", lambda target: None)
    with pytest.raises(UserError, match="exists: nothing was written"):
        write.write_folder(target, {"README.md": "new"})
    assert everything(tmp_path) == {"fedbench-shield/mine": "mine"} and list(tmp_path.iterdir()) == [target]


def test_a_folder_that_is_not_there_or_cannot_be_written_to(tmp_path):
    assert f"{tmp_path}/no: no such folder; make it first" in new("defense", "shield", "--into", tmp_path / "no", status=2)
    assert "/proc: nothing can be written there: " in new("defense", "shield", "--into", "/proc", status=2)


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch):
    kept = Path.write_text

    def full(self, *args, **kwargs):
        if self.name == "README.md":
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return kept(self, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    assert "No space left on device" in new("defense", "shield", "--into", tmp_path, status=2)
    assert list(tmp_path.iterdir()) == []


def test_killed_midway_there_is_no_package_and_the_next_call_writes_it(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from fedbench.core.cli.main import main
kept = Path.write_text
def dies(self, *args, **kwargs):
    if self.name == "pyproject.toml":
        os.kill(os.getpid(), signal.SIGKILL)
    return kept(self, *args, **kwargs)
Path.write_text = dies
main(["new", "defense", "shield", "--into", {str(tmp_path)!r}])
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".fedbench-shield-") and (left / "README.md").exists()
    new("defense", "shield", "--into", tmp_path)
    assert (tmp_path / "fedbench-shield" / "pyproject.toml").exists()


# --- what it writes and says --------------------------------------------------------------------------------------------


def test_it_says_what_it_wrote_and_what_to_type_next(tmp_path):
    text = new("defense", "shield", "--into", tmp_path, "--author", "Jo Doe")
    folder = tmp_path / "fedbench-shield"
    shown, _, rest = text.partition("next:\n")
    assert [line.strip() for line in shown.splitlines()[1:]] == sorted(everything(folder))
    assert rest.split("\n") == [
        f"  cd {folder}", "  pip install -e '.[test]' && pytest", "  fedbench run suites/shield.yaml", "",
    ]  # fmt: skip
    assert "Jo Doe" in (folder / "LICENSE").read_text() and '{ name = "Jo Doe" }' in (folder / "pyproject.toml").read_text()
    os.umask(mask := os.umask(0))
    assert folder.stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_dry_run_writes_nothing_and_lists_the_same(tmp_path):
    dry = new("model", "shield", "--into", tmp_path, "--dry-run")
    assert list(tmp_path.iterdir()) == []
    assert new("model", "shield", "--into", tmp_path) == dry.replace("would write", "wrote")


@pytest.mark.parametrize("author", ["", " ", "a\nb", "x" * 201, "\u202eoD oJ"])
def test_an_author_that_no_file_should_hold_is_refused(tmp_path, author):
    assert "expected a name on one line" in new("defense", "shield", "--into", tmp_path, "--author", author, status=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("git", "author"), [("[user]\n\tname = Jo Doe\n", "Jo Doe"), ("", "its authors"), (None, "its authors")])
def test_the_author_is_gits_or_nobody(tmp_path, monkeypatch, git, author):
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").write_text(git or "")
    if git is None:
        monkeypatch.setenv("PATH", "")
    new("defense", "shield")
    assert (tmp_path / "fedbench-shield" / "LICENSE").read_text().startswith(f"Copyright {author}\n")


def test_it_is_light_and_its_help_teaches():
    call = "import sys; from fedbench.core.cli.main import main; main(['new', 'model', 'm1', '--dry-run']); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "numpy", "sklearn", "rich"} & set(out.splitlines()[-1].split())
    text = new("--help")
    assert "Examples:\n    fedbench new defense my-defense" in text
    assert set(_KINDS) == set(KINDS)
