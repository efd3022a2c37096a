"""What the network takes, and that it looks at one sample at a time."""

import pytest
import torch
from fedbench.core import UserError
from fedbench_control_charts.control_charts import ControlCharts
from fedbench_control_charts.conv_series import ConvSeries


@pytest.mark.parametrize("shape", [(60,), (1, 60), (3, 17), (2,)])
def test_it_takes_series_with_and_without_channels(shape):
    assert ConvSeries().build(shape, 6)(torch.randn(5, *shape)).shape == (5, 6)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1,)])
def test_anything_else_is_refused_with_the_remedy(shape):
    with pytest.raises(UserError, match="takes series of at least 2 points"):
        ConvSeries().build(shape, 6)


def test_no_sample_looks_at_another():
    module, x = ConvSeries().build((1, 60), 6), torch.randn(8, 1, 60)
    assert torch.allclose(module(x)[[5, 2]], module(x[[5, 2]]), atol=1e-6)


def test_it_learns_the_charts():
    torch.manual_seed(0)
    data = ControlCharts(train=600, other=300).load(0)
    module = ConvSeries().build(data.input_shape, data.n_classes)
    x, y = torch.from_numpy(data.train_x), torch.from_numpy(data.train_y)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    right = module(torch.from_numpy(data.test_x)).argmax(1) == torch.from_numpy(data.test_y)
    assert right.float().mean() > 0.9
