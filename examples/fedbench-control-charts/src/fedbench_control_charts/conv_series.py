"""ConvSeries: a small convolutional network over time."""

from __future__ import annotations

from fedbench.core import Model, Params, UserError
from pydantic import Field
from torch import nn


class ConvSeries(Model):
    """Twice Conv1d (5 points), GroupNorm, ReLU, the first pooled by 2; mean and Linear to the
    classes.

    Takes samples [length] or [channels, length]. GroupNorm keeps samples independent and has no
    running statistics. The mean over time makes the output independent of the position of a
    pattern.
    """

    class Params(Params):
        channels: int = Field(
            16,
            ge=4,
            le=1024,
            multiple_of=4,
            description="channels of the first convolution, a multiple of 4",
        )

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        """A fresh module: [B, *input_shape] -> logits [B, n_classes]; raises ``UserError`` for
        anything but series.
        """
        if len(input_shape) > 2 or input_shape[-1] < 2:
            raise UserError(
                "conv-series takes series of at least 2 points, [length] or [channels, length], "
                f"not {list(input_shape)}: "
                "an image needs a model for images, e.g. cnn-small"
            )
        channels = input_shape[0] if len(input_shape) == 2 else 1
        width = self.params.channels
        return nn.Sequential(
            nn.Unflatten(1, (1, input_shape[-1])) if len(input_shape) == 1 else nn.Identity(),
            nn.Conv1d(channels, width, 5, padding=2),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, 2 * width, 5, padding=2),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(2 * width, n_classes),
        )
