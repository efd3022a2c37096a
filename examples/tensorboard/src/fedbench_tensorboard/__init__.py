"""Announces the report 'tensorboard' to fedbench."""

from fedbench.core import Component, hookimpl


@hookimpl
def fedbench_reports():
    yield Component(
        "tensorboard",
        "fedbench_tensorboard.report:TensorBoard",
        "runs by round, as event files of TensorBoard",
    )
