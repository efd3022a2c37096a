from fedbench.core import Component, hookimpl


@hookimpl
def fedbench_defenses():
    yield Component("survivor", "nowhere:Nothing", "of the package that vanishes")
