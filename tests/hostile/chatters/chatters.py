import os

from fedbench.core import Component, hookimpl

print("\x1b[31mchatter on import\x1b[0m")
os.write(2, b"\x1b]0;chatter on import\x07")


@hookimpl
def fedbench_defenses():
    print("\x1b[31mchatter on import, by a hook")
    yield Component("chatty", "chatters_class:Chatty", "talks")
    yield Component("painted", "chatters_class:Chatty", "\x1b[31mred\u202e")
