from fedbench.core import Component, hookimpl


@hookimpl
def fedbench_defenses():
    yield Component("gone-on-import", "later_gone:Nothing", "ends the process on import")
    yield Component("exits-on-import", "later_exits:Nothing", "calls exit on import")
    yield Component("hangs-on-import", "later_hangs:Nothing", "hangs on import")
    yield Component("gone-when-made", "later_made:Gone", "ends the process in its constructor")
    yield Component("hangs-when-made", "later_made:Hangs", "hangs in its constructor")
    yield Component("gone-when-asked", "later_made:GoneWhenAsked", "ends the process in check")
    yield Component("exits-when-asked", "later_made:ExitsWhenAsked", "calls exit in check")
