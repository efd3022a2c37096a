"""`fedbench list`, `plugins` and `new`: what is installed, why something is missing, and a package
of your own.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbench.core.cli.options import NearChoice, examples, json_option
from fedbench.core.cli.output import say, say_json, show_table
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.process.ask import plugin_limits
from fedbench.core.process.channel import at_work
from fedbench.core.registry.kinds import PLURAL
from fedbench.core.words import one_line

if TYPE_CHECKING:
    from fedbench.core.registry.components import PluginStatus, RegisteredComponent, Registry

_KINDS = {plural: kind for kind, plural in PLURAL.items()}
_PARAM_COLUMNS = ("name", "type", "default", "range", "description")


@click.command(
    "list",
    epilog=examples(
        "fedbench list",
        "fedbench list defenses --params",
        "fedbench list suites",
        "fedbench list attacks --json",
    ),
)
@click.argument("what", required=False, type=NearChoice([*_KINDS, "suites"]))
@click.option("--params", is_flag=True, help="Also their parameters; this imports them.")
@json_option
def list_(what: str | None, params: bool, as_json: bool) -> None:
    """List the installed defenses, attacks, analyses, datasets, models, signals and reports, and
    the shipped suites.
    """
    if what == "suites" and params:
        raise click.UsageError("suites have no parameters: leave out --params")
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    sections = [what] if what else [*_KINDS, *([] if params else ["suites"])]
    if as_json:
        say_json(
            {name: list(_entries(registry, name, params, what == "datasets")) for name in sections}
        )
        sections = []
    for i, name in enumerate(sections):
        if i:
            say("")
        entries = list(_entries(registry, name, params, what == "datasets"))
        _show(name, entries, params, title=name if len(sections) > 1 else "")
        for entry in entries:
            if "error" in entry and not params:
                say(entry["error"], err=True)
    if registry.broken:
        say(f"{len(registry.broken)} broken plugin(s): see `fedbench plugins`", err=True)


def _entries(
    registry: Registry, section: str, params: bool, facts: bool
) -> Iterator[dict[str, Any]]:
    """One entry a component; ``facts``: also what only the class of a dataset knows, which imports
    it.
    """
    if section == "suites":
        from fedbench.suites import shipped_suites, title_of

        yield from (
            {"name": name, "title": title_of(path), "path": str(path)}
            for name, path in shipped_suites().items()
        )
        return
    components = registry.components(_KINDS[section])
    more = _asked(components, params, facts) if params or facts else {}
    for found in components:
        component = found.component
        yield {
            "name": component.name,
            "summary": component.summary,
            "paper": component.paper,
            "package": found.distribution,
            "version": found.version,
            "target": component.target,
        } | more.get(component.name, {})


def _asked(
    components: Sequence[RegisteredComponent], params: bool, facts: bool
) -> dict[str, dict[str, Any]]:
    """Name -> facts of the classes, which are imported in a separate process; or the error of one
    that fails.
    """
    from fedbench.core.process.ask import ask_each

    def ask(found: RegisteredComponent) -> dict[str, Any]:
        return (_facts(found) if facts else {}) | (_params(found) if params else {})

    answers = zip(components, ask_each(components, ask), strict=True)
    return {
        found.name: {"error": str(answer.error)} if answer.error else answer.get()
        for found, answer in answers
    }


def _facts(found: RegisteredComponent) -> dict[str, Any]:
    """Licence, source and size of a dataset, and whether it is on this machine."""
    from fedbench.core.registry.component import is_here

    dataset = found.load()
    here = is_here(dataset, str(found))
    texts = {name: one_line(getattr(dataset, name)) for name in ("licence", "citation", "home")}
    return {
        **texts,
        "size_mb": dataset.size_mb,
        "here": one_line(here) if isinstance(here, str) else here,
    }


def _params(found: RegisteredComponent) -> dict[str, Any]:
    """The rows of a component's parameters."""
    from fedbench.core.spec.schema import parameters

    params = found.load().Params
    with at_work(f"{found}: its Params", plugin_limits()):
        rows = list(parameters(params))
    return {"params": [dict(zip(_PARAM_COLUMNS, map(one_line, row), strict=True)) for row in rows]}


def _show(section: str, entries: list[dict[str, Any]], params: bool, title: str) -> None:
    if section == "suites":
        show_table(("suite", "title"), [(e["name"], e["title"]) for e in entries], title)
    elif params:
        show_table((_KINDS[section], *_PARAM_COLUMNS), _param_rows(entries), title)
    elif any("licence" in e for e in entries):
        rows = [
            (
                e["name"],
                e["summary"],
                e.get("licence", "?"),
                _size(e),
                _here(e),
                e.get("citation", ""),
            )
            for e in entries
        ]
        show_table(("dataset", "summary", "licence", "download", "here", "citation"), rows, title)
    else:
        names = [
            (e["name"], e["summary"], e["paper"], f"{e['package']} {e['version']}") for e in entries
        ]
        show_table((_KINDS[section], "summary", "paper", "package"), names, title)


def _size(entry: dict[str, Any]) -> str:
    size = entry.get("size_mb")
    return "yours" if size is None else "-" if size == 0 else f"{size:,.0f} MB"


def _here(entry: dict[str, Any]) -> str:
    here = entry.get("here")
    return here if isinstance(here, str) else "yes" if here else "no"


def _param_rows(entries: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for entry in entries:
        for row in entry.get("params", ()):
            yield (entry["name"], *(row[column] for column in _PARAM_COLUMNS))
        if not entry.get("params"):
            yield (entry["name"], "-", "", "", "", entry.get("error", "no parameters"))


# -- plugins ---------------------------------------------------------------------------------------


@click.command(
    epilog=examples("fedbench plugins", "fedbench plugins | grep BROKEN", "fedbench plugins --json")
)
@json_option
def plugins(as_json: bool) -> None:
    """Show every installed plugin: its package, version, what it provides, and why it does not
    work.

    A package becomes a plugin by an entry point of the group `fedbench` that names a module with
    hooks: fedbench_defenses, fedbench_attacks, fedbench_analyses, fedbench_datasets,
    fedbench_models, fedbench_signals, fedbench_reports. A broken plugin only stops suites that use
    what it should have provided.

    Every package is loaded in a process of its own, which is ended after FEDBENCH_PLUGIN_SECONDS
    (default 60) of CPU time, or as many without any sign of life; the same holds wherever a
    plugin's class is imported, made or asked, with 30 and 5 times as many where it loads data or
    writes a report.
    """
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    if as_json:
        say_json(
            {
                "plugins": [_status(p) for p in registry.plugins],
                "clashes": list(map(str, registry.clashes)),
            }
        )
        return
    rows = [
        (p.entry_point, p.distribution, p.version, "ok" if p.ok else "BROKEN", _provides(p))
        for p in registry.plugins
    ]
    show_table(("plugin", "package", "version", "status", "provides"), rows)
    for plugin in registry.broken:
        say(f"BROKEN {plugin}: {plugin.reason}")
    for clash in registry.clashes:
        say(f"CLASH {clash}")


def _status(plugin: PluginStatus) -> dict[str, Any]:
    return {
        "plugin": plugin.entry_point,
        "package": plugin.distribution,
        "version": plugin.version,
        "ok": plugin.ok,
        "reason": plugin.reason,
        "provides": [{"kind": c.kind, "name": c.name} for c in plugin.components],
    }


def _provides(plugin: PluginStatus) -> str:
    counts = Counter(c.kind for c in plugin.components)
    from fedbench.core.registry.kinds import PLURAL

    return (
        ", ".join(f"{n} {kind if n == 1 else PLURAL[kind]}" for kind, n in counts.items())
        or "nothing"
    )


# -- new -------------------------------------------------------------------------------------------

_MADE = ("defense", "attack", "dataset", "model", "signal", "analysis")


@click.command(
    epilog=examples(
        "fedbench new defense my-defense",
        "fedbench new attack my-attack --into ~/work --author 'Jo Doe'",
        "fedbench new dataset my-data --dry-run",
    )
)
@click.argument("kind", type=click.Choice(_MADE), metavar=f"{{{'|'.join(_MADE)}}}")
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    default=".",
    metavar="FOLDER",
    help="Write the package's folder into this one (default: here).",
)
@click.option("--author", help="Name in pyproject.toml and LICENSE (default: git's user.name).")
@click.option("--dry-run", is_flag=True, help="Only show which files would be written.")
def new(kind: str, name: str, into: Path, author: str | None, dry_run: bool) -> None:
    """Write a package of your own: an installable fedbench-NAME with a working method to replace.

    It holds the announcement, the method with its parameters, tests of the contract and of the
    method's property, a suite that shows it beside built-in ones in under a minute, a README, a
    licence note and a CI workflow. All of it works as written. An existing folder is never touched.
    """
    from fedbench.core.registry.components import Registry
    from fedbench.core.scaffold import (
        author_of,
        names_of,
        package_files,
        refuse_existing,
        refuse_taken,
        write_folder,
    )

    names = names_of(kind, name)
    target = into.expanduser() / names.distribution
    written = package_files(names, author_of(author), version(DISTRIBUTION))
    refuse_existing(target)
    refuse_taken(names, Registry.discover())
    if not dry_run:
        write_folder(target, written)
    say(f"{'would write' if dry_run else 'wrote'} {target}, {len(written)} files:")
    for path in written:
        say(f"  {path}")
    say("next:")
    say(f"  cd {shlex.quote(str(target))}")
    say("  pip install -e '.[test]' && pytest")
    say(f"  fedbench run suites/{names.name}.yaml")
