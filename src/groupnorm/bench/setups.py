"""What is measured: cases of `groupnorm.cases` in dtypes, layouts and operators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ..cases import LAYERS, Case

# mixed is bfloat16 x and dy with float32 statistics and parameters; elsewhere all have the dtype of x.
DTYPES = ("float32", "bfloat16", "float16", "mixed")
LAYOUTS = ("contiguous", "channels-last")
# How many tensors of the size of x each has to read; each writes one.
READS = {"backward": 2, "backward-dx": 2, "printed": 3, "forward": 1}
OPERATORS = tuple(READS)

IN_CACHE_BYTES = 2**20


class Setup(NamedTuple):
    """One line of the table, but for the number of threads."""

    case: Case
    dtype: str
    layout: str
    operator: str

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def length(self) -> int:
        return math.prod(self.case.shape[2:])

    @property
    def channels_per_group(self) -> int:
        return self.case.shape[1] // self.case.num_groups

    @property
    def x_bytes(self) -> int:
        return math.prod(self.case.shape) * self.itemsize

    @property
    def reads(self) -> int:
        return READS[self.operator]


# The printed formula knows one layout, and HxW = 1 looks alike in both.
_VARIANTS = (
    ("backward-dx", "float32", "contiguous",
     "sd_unet_320x64 sd_vae_512x64 resnet_gn_256x56 sd_unet_1280x8_pair rank2_4096 tiny"),
    ("backward", "bfloat16", "contiguous",
     "sd_unet_320x64 sd_unet_1280x16 sd_vae_128x256 resnet_gn_256x56 video_vae_128 detection_256x25"),
    ("backward", "float16", "contiguous", "sd_unet_320x64 sd_vae_512x64 resnet_gn_64x56 detection_256x25"),
    ("backward", "mixed", "contiguous",
     "sd_unet_320x64 sd_unet_640x32 sd_vae_128x256 rank2_4096 detection_256x25"),
    ("backward", "float32", "channels-last",
     "sd_unet_320x64 sd_unet_640x32 sd_unet_1280x8 sd_vae_128x256 sd_vae_512x64 resnet_gn_256x56 "
     "segmentation_256x32 video_vae_128 detection_256x25"),
    ("backward", "bfloat16", "channels-last",
     "sd_unet_320x64 sd_vae_128x256 sd_vae_512x64 resnet_gn_256x56 video_vae_128 detection_256x25"),
    ("backward", "float16", "channels-last", "sd_unet_320x64 resnet_gn_64x56 segmentation_32x256"),
    ("backward", "mixed", "channels-last",
     "sd_unet_320x64 sd_unet_640x32 sd_vae_128x256 resnet_gn_256x56 detection_256x25"),
    ("forward", "float32", "contiguous",
     "sd_unet_320x64 sd_unet_640x32 sd_unet_1280x8 sd_vae_128x256 resnet_gn_256x56 video_vae_128 rank2_4096 "
     "detection_256x25"),
    ("forward", "bfloat16", "contiguous", "sd_unet_320x64"),
    ("forward", "float32", "channels-last", "sd_unet_320x64"),
    ("forward", "mixed", "channels-last", "sd_unet_320x64"),
    ("printed", "float32", "contiguous",
     "sd_unet_320x64 sd_unet_1280x16 sd_vae_512x64 segmentation_32x256 detection_256x25 tiny"),
    ("printed", "bfloat16", "contiguous", "sd_unet_320x64 sd_vae_512x64"),
    ("printed", "float16", "contiguous", "sd_unet_320x64 detection_256x25"),
)  # fmt: skip


def standard() -> Iterator[Setup]:
    """Every case in float32, contiguous, all outputs; then each other axis on some of them."""
    for case in LAYERS:
        yield Setup(case, "float32", "contiguous", "backward")
    named = {case.name: case for case in LAYERS}
    for operator, dtype, layout, names in _VARIANTS:
        for name in names.split():
            yield Setup(named[name], dtype, layout, operator)
