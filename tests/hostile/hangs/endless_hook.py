import itertools

from fedbench.core import Component, hookimpl


@hookimpl
def fedbench_attacks():
    for i in itertools.count():
        yield Component(f"attack-{i}", "nowhere:Nothing", "one of many")
