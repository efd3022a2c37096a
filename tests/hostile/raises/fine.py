from fedbench.core import Component, hookimpl


@hookimpl
def fedbench_defenses():
    yield Component("still-there", "nowhere:Nothing", "beside the broken ones")
