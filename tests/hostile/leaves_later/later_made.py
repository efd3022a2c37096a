import os
import time

from fedbench.core import Defense


class Hangs(Defense):
    def __init__(self, **values):
        time.sleep(3600)


class GoneWhenAsked(Defense):
    def check(self, federation):
        os._exit(0)
