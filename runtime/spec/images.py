"""How an encoded image becomes a tensor, as authors write it: for a model of images, and for a pipeline's decoder.

The terms are torchvision's: `resize` to a height and width, or with one number to a shorter edge, then `crop` the
middle.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from shiplift.runtime.spec.fields import Section

Edge = Annotated[int, Field(ge=1, le=8192)]


class Pixels(Section):
    """The form to which JPEG and PNG files are decoded. Pillow does it, as torchvision does with Pillow's images.

    `resize` is [height, width], or one number for the shorter edge; `crop` takes [height, width] (one number: a square)
    from the middle. Pixels are as decoded, from 0 to 255; with a `scale`, a `mean` or a `std` they are (pixel * scale -
    mean) / std. `draft` lets JPEG decode at a smaller scale, but at least at the size it is resized to: this is a
    fraction of the work for large photographs, and gives a slightly different picture.
    """

    resize: Edge | tuple[Edge, Edge]
    crop: tuple[Edge, Edge] | None = None
    filter: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    colors: Literal["RGB", "BGR", "gray"] = "RGB"
    scale: float | None = Field(None, gt=0)
    mean: tuple[float, ...] = ()
    std: tuple[Annotated[float, Field(gt=0)], ...] = ()
    draft: bool = False

    @field_validator("crop", mode="before")
    @classmethod
    def _square(cls, value: Any) -> Any:
        return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _of_one_size(self) -> Self:
        if isinstance(self.resize, int) and self.crop is None:
            raise ValueError("`resize` with one number leaves images of any size: add a `crop`, or write both edges")
        for name in ("mean", "std"):
            count = len(getattr(self, name))
            if count not in (0, self.channels):
                raise ValueError(f"`{name}` has {count} numbers, and {self.colors} has {self.channels} channels")
        return self

    @property
    def channels(self) -> int:
        """How many numbers a pixel has."""
        return 1 if self.colors == "gray" else 3

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of every image."""
        return self.crop or ((self.resize, self.resize) if isinstance(self.resize, int) else self.resize)

    @property
    def normalizes(self) -> bool:
        """Whether pixels become numbers other than those of the file."""
        return self.scale is not None or bool(self.mean or self.std)


class ImageDecoder(Pixels):
    """A member of a pipeline that takes `image`, UINT8 [1, -1], a file's bytes, and gives `pixels`.

    Their shape is [1, height, width, channels], or with `layout: NCHW` [1, channels, height, width]; they are UINT8, or
    FP32 if a `scale`, a `mean` or a `std` changes them. `workers` images are decoded at once.
    """

    layout: Literal["NHWC", "NCHW"] = "NHWC"
    max_megapixels: int = Field(32, ge=1, le=1000)
    workers: int = Field(2, ge=1, le=64)

    @property
    def datatype(self) -> Literal["UINT8", "FP32"]:
        """The datatype of its pixels."""
        return "FP32" if self.normalizes else "UINT8"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of its pixels."""
        height, width = self.size
        return (1, self.channels, height, width) if self.layout == "NCHW" else (1, height, width, self.channels)
