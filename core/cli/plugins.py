"""fedbench plugins: what is installed, and why something is missing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from fedbench.core.cli.options import examples
from fedbench.core.cli.say import say
from fedbench.core.cli.table import show_table

if TYPE_CHECKING:
    from fedbench.core.registry.components import PluginStatus


@click.command(epilog=examples("fedbench plugins", "fedbench plugins | grep BROKEN"))
def command() -> None:
    """Show every installed plugin: its package, version, what it provides, and why it does not work.

    A package becomes a plugin by an entry point of the group `fedbench` that names a module with hooks:
    fedbench_defenses, fedbench_attacks, fedbench_analyses, fedbench_datasets, fedbench_models, fedbench_signals,
    fedbench_reports. A broken plugin only stops suites that use what it should have provided.

    Every package is loaded in a process of its own, which is ended after FEDBENCH_PLUGIN_SECONDS (default 60) of CPU time,
    or as many without any sign of life; the same holds wherever a plugin's class is imported, made or asked, with 30 and 5
    times as many where it loads data or writes a report.
    """
    from fedbench.core.registry.components import Registry

    registry = Registry.discover()
    rows = [
        (p.entry_point, p.distribution, p.version, "ok" if p.ok else "BROKEN", _provides(p)) for p in registry.plugins
    ]
    show_table(("plugin", "package", "version", "status", "provides"), rows)
    for plugin in registry.broken:
        say(f"BROKEN {plugin}: {plugin.reason}")
    for clash in registry.clashes:
        say(f"CLASH {clash}")


def _provides(plugin: PluginStatus) -> str:
    counts = Counter(c.kind for c in plugin.components)
    from fedbench.core.registry.kinds import PLURAL

    return ", ".join(f"{n} {kind if n == 1 else PLURAL[kind]}" for kind, n in counts.items()) or "nothing"
