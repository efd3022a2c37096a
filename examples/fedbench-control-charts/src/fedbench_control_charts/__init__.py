"""Announces the data set 'control-charts' and the model 'conv-series'."""

from fedbench.core import Component, hookimpl


@hookimpl
def fedbench_datasets():
    yield Component(
        name="control-charts",
        target="fedbench_control_charts.control_charts:ControlCharts",
        summary="time series of six kinds: normal, cyclic, trends, shifts; generated, no download",
        paper="Alcock & Manolopoulos, 1999",
    )


@hookimpl
def fedbench_models():
    yield Component(
        name="conv-series",
        target="fedbench_control_charts.conv_series:ConvSeries",
        summary="two convolutions over time, pooled, for series of any length",
    )
