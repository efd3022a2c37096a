import os
import sys
import time

from fedbench.core import Defense


class Gone(Defense):
    def __init__(self, **values):
        os._exit(0)


class Hangs(Defense):
    def __init__(self, **values):
        time.sleep(3600)


class GoneWhenAsked(Defense):
    def check(self, federation):
        os._exit(0)


class ExitsWhenAsked(Defense):
    def check(self, federation):
        sys.exit(0)
