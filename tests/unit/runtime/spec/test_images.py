"""What a spec says of images determines the tensor that they become."""

import pytest
from pydantic import ValidationError

from shiplift.runtime.spec.images import ImageDecoder, Pixels


def test_the_tensor_follows_from_the_spec() -> None:
    cases = [
        ({"resize": (8, 6)}, (1, 8, 6, 3), "UINT8"),
        ({"resize": (8, 6), "layout": "NCHW"}, (1, 3, 8, 6), "UINT8"),
        ({"resize": (8, 6), "colors": "gray"}, (1, 8, 6, 1), "UINT8"),
        ({"resize": 9, "crop": 5}, (1, 5, 5, 3), "UINT8"),
        ({"resize": (8, 6), "crop": (4, 3)}, (1, 4, 3, 3), "UINT8"),
        ({"resize": (8, 6), "scale": 0.5}, (1, 8, 6, 3), "FP32"),
        ({"resize": (8, 6), "std": (1, 2, 3)}, (1, 8, 6, 3), "FP32"),
        ({"resize": (8, 6), "mean": (0.5,), "colors": "gray"}, (1, 8, 6, 1), "FP32"),
    ]
    for settings, shape, datatype in cases:
        decoder = ImageDecoder.model_validate(settings)
        assert (decoder.shape, decoder.datatype) == (shape, datatype), settings


def test_what_gives_images_of_several_sizes_or_channels_is_refused() -> None:
    cases = [
        ({"resize": 9}, "leaves images of any size"),
        ({"resize": (8, 6), "std": (1.0,)}, "`std` has 1 numbers, and RGB has 3 channels"),
        ({"resize": (8, 6), "mean": (1.0,) * 3, "colors": "gray"}, "`mean` has 3 numbers, and gray has 1 channels"),
        ({"resize": 9, "crop": True}, "crop"),
    ]
    for settings, problem in cases:
        with pytest.raises(ValidationError, match=problem):
            Pixels.model_validate(settings)
