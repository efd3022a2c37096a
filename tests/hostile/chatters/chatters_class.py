import os

from fedbench.core import Defense

print("\x1b[31mchatter of the class\x1b[0m")


class Chatty(Defense):
    def __init__(self, **values):
        super().__init__(**values)
        print("\x1b[31mchatter of the constructor")
        os.write(1, b"\x1b]0;chatter below Python\x07\n")
