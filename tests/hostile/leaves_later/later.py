from fedbench.core import Component, hookimpl


@hookimpl
def fedbench_defenses():
    yield Component("gone-on-import", "later_gone:Nothing", "ends the process on import")
    yield Component("hangs-when-made", "later_made:Hangs", "hangs in its constructor")
    yield Component("gone-when-asked", "later_made:GoneWhenAsked", "ends the process in check")
