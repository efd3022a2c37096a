"""The files a digest covers: of installed packages, of trees under work, and nothing that no answer depends on."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from fake_packages import ANNOUNCE, install

from fedbench.core.registry import digest
from fedbench.core.registry.components import Registry
from fedbench.core.registry.files import files_of
from fedbench.core.registry.use import UseMaker

NAME = "many-files"
MODULE = "many_files.defense"
PACKAGE = {
    "many_files/__init__.py": ANNOUNCE.format(name="shield", target="many_files.defense:Shield"),
    "many_files/defense.py": "from many_files_helper import HELP\n", "many_files/deep/__init__.py": "",
    "many_files/deep/more.py": "x = 1\n", "many_files/data/numbers.json": "[1]", "many_files_helper.py": "HELP = 1\n",
}  # fmt: skip
INFO = "many_files-1.0.dist-info"


def write(folder: Path, files: dict[str, str]) -> None:
    """Texts by path."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def described(site: Path, recorded: list[str] | None, **more: str) -> None:
    """The .dist-info, with a RECORD of these files."""
    files = {"METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n\nRead me.\n",
             "entry_points.txt": "[fedbench]\nmany = many_files\n", "INSTALLER": "pip\n", **more}  # fmt: skip
    if recorded is not None:
        files["RECORD"] = "".join(f"{name},,\n" for name in [*recorded, *(f"{INFO}/{name}" for name in (*files, "RECORD"))])
    write(site / INFO, files)


def wheel(site: Path) -> Path:
    """Installed from a wheel; the folder where its code lies."""
    write(site, PACKAGE)
    write(site, {"many_files/__pycache__/defense.cpython-311.pyc": "x", "../bin/many": "#!/somewhere/python"})
    described(site, [*PACKAGE, "many_files/__pycache__/defense.cpython-311.pyc", "../bin/many"])
    return site


def pth(site: Path) -> Path:
    """As hatch, poetry and flit install a tree: its ``src`` on the path."""
    tree = site.parent / "project"
    write(tree / "src", PACKAGE)
    write(tree, {"pyproject.toml": "", "README.md": "Read me."})
    write(site, {"_many_files.pth": f"{tree / 'src'}\n"})
    described(site, ["_many_files.pth"])
    sys.path.append(str(tree / "src"))  # what Python does with a .pth, where the folder is a site's
    return tree / "src"


def flat(site: Path) -> Path:
    """The same of a tree whose root is on the path."""
    tree = site.parent / "project"
    write(tree, PACKAGE)
    write(tree, {"pyproject.toml": "", "setup.py": "", "tests/test_it.py": "", "tests/__init__.py": "", "doc/index.py": ""})
    write(site, {"__editable__.many_files-1.0.pth": f"{tree}\n"})
    described(site, ["__editable__.many_files-1.0.pth"])
    sys.path.append(str(tree))
    return tree


def finder(site: Path) -> Path:
    """As setuptools installs a tree whose packages lie in several places: a finder that maps names to them."""
    tree = site.parent / "project"
    write(tree, PACKAGE)
    mapping = {"many_files": str(tree / "many_files"), "many_files_helper": str(tree / "many_files_helper")}
    source = f"raise RuntimeError('read, never executed')\nMAPPING: dict[str, str] = {mapping!r}\nNAMESPACES = {{}}\n"
    pth = "import __editable___many_files_1_0_finder; __editable___many_files_1_0_finder.install()\n"
    write(site, {"__editable___many_files_1_0_finder.py": source, "__editable__.many_files-1.0.pth": pth})
    described(site, ["__editable___many_files_1_0_finder.py", "__editable__.many_files-1.0.pth"])
    sys.path.append(str(tree))
    return tree


def link(site: Path) -> Path:
    """As an old setup.py installs a tree: its .egg-info in the tree, which is on the path."""
    tree = site.parent / "project"
    write(tree, PACKAGE)
    write(tree, {"setup.py": ""})
    write(tree / "many_files.egg-info", {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n", "SOURCES.txt": "many_files/__init__.py\n",
        "entry_points.txt": "[fedbench]\nmany = many_files\n", "top_level.txt": "many_files\nmany_files_helper\n",
    })  # fmt: skip
    sys.path.append(str(tree))
    return tree


def told(site: Path) -> Path:
    """An editable install whose files do not say where the tree is, and whose direct_url.json does."""
    tree = site.parent / "pro ject"
    write(tree / "src", PACKAGE)
    url = (site.parent / "pro%20ject").as_uri().replace("%2520", "%20")
    described(site, None, **{"direct_url.json": json.dumps({"url": url, "dir_info": {"editable": True}})})
    sys.path.append(str(tree / "src"))
    return tree / "src"


def bare(site: Path) -> Path:
    """No RECORD: what ``top_level.txt`` names."""
    write(site, PACKAGE)
    described(site, None, **{"top_level.txt": "many_files\nmany_files_helper\n"})
    return site


LAYOUTS = (wheel, pth, flat, finder, link, told, bare)


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.__name__)
def code(request, site, monkeypatch) -> Path:
    """Where the package's code lies, in every way to install it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return request.param(site)


def now() -> str:
    """The digest of the component."""
    return digest.source_digest(MODULE, NAME)


@pytest.mark.parametrize("name", [n for n in PACKAGE if n != "many_files/deep/__init__.py"])
def test_every_file_of_the_package_counts(code, name):
    before = now()
    (code / name).write_text((code / name).read_text() + " ")
    assert now() != before
    (code / name).write_text((code / name).read_text().removesuffix(" "))
    assert now() == before


def test_what_is_no_part_of_it_does_not(code, site):
    before = now()
    write(code, {
        "many_files/__pycache__/x.pyc": "x", "many_files/.cache/x.json": "x", "many_files/.swp": "x",
        "many_files/results/tiny/fedbench.json": "{}", "many_files/results/tiny/records/a.json": "{}",
        ".venv/pyvenv.cfg": "", ".venv/lib/x.py": "x = 1", "env/pyvenv.cfg": "", "env/x.py": "",
        "results/fedbench.json": "{}", "results/x.py": "x = 1", "README.md" if (code / "setup.py").exists() else ".notes": "New.",
    })  # fmt: skip
    write(site / INFO if (site / INFO).exists() else code, {"INSTALLER": "uv\n", "REQUESTED": ""})
    if (code / "tests").exists():
        write(code, {"tests/test_it.py": "x = 2", "doc/index.py": "x = 2", "setup.py": "x = 2", "build/lib/many_files/x.py": ""})
    assert now() == before


def test_one_layout_is_as_good_as_another_where_the_code_is_the_same(site, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    wheel(site)
    first = now()
    for path in site.iterdir():
        path.rename(tmp_path / path.name)
    pth(site)
    assert now() == first


def test_a_damaged_record_or_a_finder_of_another_form_leaves_what_is_found_otherwise(site):
    write(site, PACKAGE)
    described(site, None)
    for text in ("\x00,,,,\n", '"many', "/no/such/file,,\n"):
        (site / INFO / "RECORD").write_text(text)
        before = now()
        (site / "many_files" / "deep" / "more.py").write_text(f"x = {text!r}")
        assert now() != before
    write(site, {"__editable___many_files_finder.py": "MAPPING = call()"})
    described(site, ["__editable___many_files_finder.py"])
    assert "many_files/deep/more.py" in files_of(distribution(NAME))


def test_a_module_of_another_package_counts_beside_the_one_that_announced_it(site):
    wheel(site)
    (site / "elsewhere.py").write_text("x = 1\n")
    first = digest.source_digest("elsewhere", NAME)
    (site / "many_files_helper.py").write_text("HELP = 2\n")
    second = digest.source_digest("elsewhere", NAME)
    (site / "elsewhere.py").write_text("x = 2\n")
    assert len({first, second, digest.source_digest("elsewhere", NAME), digest.source_digest("elsewhere")}) == 4


def test_a_use_names_the_digest_of_the_package_that_announced_it(site):
    wheel(site)
    found = Registry.discover().get("defense", "shield")
    before = UseMaker()(found, {}, "x").digest
    assert before == now()
    (site / "many_files" / "data" / "numbers.json").write_text("[2]")
    assert UseMaker()(found, {}, "x").digest != before


def test_our_own_digests_are_those_of_modules_alone():
    target = "fedbench.plugins.defenses.none"
    assert digest.source_digest(target, "fedbench") == digest.source_digest(target)


def test_a_package_that_is_edited_is_discovered_anew(site):
    install(site, "turns", ANNOUNCE.format(name="before", target="a:B"))
    assert Registry.discover().get("defense", "before")
    (site / "turns.py").write_text(ANNOUNCE.format(name="after", target="a:B"))
    names = [c.name for c in Registry.discover().components("defense") if c.distribution == "turns"]
    assert names == ["after"]


# --- as the build tools make them ---------------------------------------------------------------------------------------


def built(tree: Path, out: Path, hook: str) -> Path:
    """What a hook of setuptools makes, unpacked as pip would."""
    out.mkdir()
    code = f"import sys, setuptools.build_meta as b; print(b.{hook}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(out.parent)], cwd=tree, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(out.parent / done.stdout.split()[-1]) as archive:
        archive.extractall(out)
    return out


@pytest.mark.parametrize(("hook", "where"), [
    ("build_wheel", "."), ("build_editable", "."), ("build_wheel", "src"), ("build_editable", "src"), ("build_editable", "a/b"),
])  # fmt: skip
def test_what_setuptools_installs_is_covered(tmp_path, monkeypatch, hook, where):
    pytest.importorskip("setuptools")
    tree = tmp_path / "project"
    write(tree / where, PACKAGE)
    write(tree, {"pyproject.toml": f"""
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "{NAME}"
        version = "1.0"
        [project.entry-points.fedbench]
        many = "many_files"
        [tool.setuptools]
        py-modules = ["many_files_helper"]
        packages = ["many_files", "many_files.deep"]
        package-dir = {{"" = "{where}"}}
        [tool.setuptools.package-data]
        many_files = ["data/*.json"]
    """.replace("\n        ", "\n")})  # fmt: skip
    site = built(tree, tmp_path / "site", hook)
    monkeypatch.setattr(sys, "path", [str(site), str(tree / where), *sys.path])
    found = files_of(distribution(NAME))
    assert {*PACKAGE, "entry_points.txt"} <= found.keys()
    code: Callable[[str], Path] = (site if hook == "build_wheel" else tree / where).joinpath
    for name in ("many_files_helper.py", "many_files/data/numbers.json", "many_files/deep/more.py"):
        before = now()
        code(name).write_text(code(name).read_text() + " ")
        assert now() != before, name
    before = now()
    write(tree, {"README.md": "New.", "results/fedbench.json": "{}", "results/x.json": "{}"})
    assert now() == before
