"""Announces the defense 'memory-top-k'."""

from fedbench.core import Component, hookimpl


@hookimpl
def fedbench_defenses():
    yield Component(
        name="memory-top-k",
        target="fedbench_memory_top_k.memory_top_k:MemoryTopK",
        summary="upload the update's largest entries, keep the rest for later rounds",
        paper="Basu et al., NeurIPS 2019",
    )
