import os

from fedbench.core import Component, Dataset, hookimpl


class Lost(Dataset):
    @classmethod
    def here(cls):
        raise ValueError("where am I?")


class Modelless(Dataset):
    default_model = None


class Gone(Dataset):
    def load(self, seed):
        os._exit(0)


@hookimpl
def fedbench_datasets():
    for cls in (Lost, Modelless, Gone):
        yield Component(cls.__name__.lower(), f"liars:{cls.__name__}", "not to be trusted")
