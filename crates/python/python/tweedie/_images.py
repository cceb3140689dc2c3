"""Images as people have them: paths, bytes, PIL images, arrays and tensors, one or many."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Union

import numpy as np
import numpy.typing as npt

#: What the native part reads: a file's path, a file's bytes, or bytes (H, W, C).
Native = Union[str, bytes, npt.NDArray[np.uint8]]
#: One image, or many: paths, bytes of files, PIL images, arrays, tensors, or lists of them.
Images = Any


class Pillow(Protocol):
    """An image of Pillow, as far as one has to know it to tell it from others."""

    def getbands(self) -> tuple[str, ...]: ...


#: What is a single image by its type alone; an array may be many.
File = Union[str, os.PathLike[str], bytes, bytearray, Pillow]
#: What is many images by its type alone.
Many = Union[list[Any], tuple[Any, ...], Iterator[Any]]

FORMS = (
    "an image is a path, the bytes of a file, a PIL image, or an array or tensor H×W, H×W×C or N×H×W×C with C = 1 or 3, "
    "of uint8 or of floats in [0, 1]"
)


def is_torch(x: object) -> bool:
    """Whether it is a tensor of PyTorch, which need not be installed."""
    return "torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor)


def is_pil(x: object) -> bool:
    """Whether it is an image of Pillow, which need not be installed."""
    return "PIL.Image" in sys.modules and isinstance(x, sys.modules["PIL.Image"].Image)


def many(images: Images) -> tuple[list[Native], bool]:
    """All images, and whether it was a single one."""
    if isinstance(images, (str, os.PathLike, bytes, bytearray)) or is_pil(images):
        return [one(images)], True
    if isinstance(images, dict):
        raise TypeError(f"a dict is no image; {FORMS}")
    if is_file(images):
        return [one(images)], True
    if is_list(images):
        images = list(images)
    if not is_array(images) and isinstance(images, Iterable):
        every = [one(image, place=f"image {i}") for i, image in enumerate(images)]
        if not every:
            raise ValueError("the list holds no image")
        return every, False
    if not is_array(images):
        return [one(images)], True  # which says what is wrong with it
    array = as_array(images, "")
    if array.ndim == 4:
        if not len(array):
            raise ValueError("the array holds no image")
        return [np.ascontiguousarray(a) for a in array], False
    return [array], True


def one(image: Any, place: str = "") -> Native:
    """A single image."""
    if isinstance(image, (str, os.PathLike)):
        return os.fsdecode(image)
    if isinstance(image, (bytes, bytearray)):
        return bytes(image)
    if is_file(image):
        return one(image.read(), place)
    if is_pil(image):
        from PIL import ImageOps

        # As a file of it would be read: upright, in colour, alpha dropped.
        upright = ImageOps.exif_transpose(image) or image
        if upright.mode.startswith("I;16"):
            return np.ascontiguousarray((np.asarray(upright) >> 8).astype(np.uint8)[:, :, np.newaxis])
        if upright.mode in ("I", "F"):
            raise ValueError(f"{told(place)}a PIL image of mode {upright.mode}, whose range is not known; hand over floats in [0, 1]")
        return np.asarray(upright.convert("RGB"))
    if not is_array(image):
        raise TypeError(f"{told(place)}{type(image).__name__} is no image; {FORMS}")
    array = as_array(image, place)
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim == 4:
        raise ValueError(f"{told(place)}an array of {len(array)} images, where one is wanted")
    return np.ascontiguousarray(array)


def told(place: str) -> str:
    return f"{place}: " if place else ""


def is_array(x: object) -> bool:
    if isinstance(x, (np.ndarray, memoryview)):
        return True
    return any(hasattr(x, name) for name in ("__array__", "__array_interface__", "__dlpack__"))


def is_file(x: object) -> bool:
    """Whether it is a file that was opened."""
    return hasattr(x, "read") and not is_array(x)


def is_list(x: Any) -> bool:
    """Whether it is an array or a column of paths or other objects, which is a list to us."""
    kind = getattr(getattr(x, "dtype", None), "kind", "")
    return kind in ("O", "U", "T") and getattr(x, "ndim", 0) == 1


def as_array(x: Any, place: str) -> npt.NDArray[np.uint8]:
    """Bytes (H, W, C) or (N, H, W, C)."""
    torch_like = is_torch(x)
    if torch_like:
        x = x.detach()
        x = x.float() if x.dtype.is_floating_point else x
        array = x.cpu().numpy()
    elif not hasattr(x, "__array__") and hasattr(x, "__dlpack__"):
        array = np.from_dlpack(x)
    else:
        array = np.asarray(x)
    array = layout(array, torch_like, place)
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"{told(place)}values of {array.dtype}; they must be uint8, or floats in [0, 1]")
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    if not (low >= 0.0 and high <= 1.0):
        raise ValueError(
            f"{told(place)}floats from {low:g} to {high:g}; they must lie in [0, 1] (divide by 255, or undo what normalised them)"
        )
    return np.ascontiguousarray(np.rint(array * 255.0).astype(np.uint8))


def batch(x: Any) -> Any:
    """A tensor of PyTorch as floats k/255 (N, C, H, W) where it lies, by the rules of :func:`as_array`. What is read back is one truth value."""
    x = x.detach()
    kind, ndim = str(x.dtype).removeprefix("torch."), x.ndim
    if ndim in (3, 4) and x.shape[-1] in (1, 3):
        x = x.movedim(-1, -3)
    x = x[None] if ndim == 2 else x
    x = x[None] if x.ndim == 3 else x
    if x.ndim != 4:
        raise ValueError(f"a tensor of {ndim} axes; it must be H×W, C×H×W or N×C×H×W with C = 1 or 3")
    if not len(x):
        raise ValueError("the tensor holds no image")
    if kind == "uint8":
        return x.float() / 255
    if not x.dtype.is_floating_point:
        raise ValueError(f"values of {kind}; they must be uint8, or floats in [0, 1]")
    x = x.float()
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise ValueError(
            f"floats from {float(x.min()):g} to {float(x.max()):g}; they must lie in [0, 1] (divide by 255, or undo what normalised them)"
        )
    return (x * 255).round() / 255


def layout(array: npt.NDArray[Any], torch_like: bool, place: str) -> npt.NDArray[Any]:
    """Channels last."""
    shape = array.shape
    channels_last = array.ndim in (3, 4) and shape[-1] in (1, 3)
    if torch_like and not channels_last and array.ndim in (3, 4) and shape[-3] in (1, 3):
        # As torchvision has them: C×H×W, N×C×H×W.
        return np.moveaxis(array, -3, -1)
    if array.ndim == 2:
        return array[:, :, np.newaxis]
    if channels_last:
        return array
    sizes = "×".join(str(s) for s in shape) or "no axes"
    raise ValueError(f"{told(place)}an array of {sizes}; it must be H×W, H×W×C or N×H×W×C with C = 1 or 3{hint(array)}")


def hint(array: npt.NDArray[Any]) -> str:
    """What makes an image of an array that is nearly one."""
    if array.ndim in (3, 4) and array.shape[-1] in (2, 4):
        return "; alpha is dropped by x[..., :-1]"
    if array.ndim in (3, 4) and array.shape[-3] in (1, 3):
        return "; channels come last: np.moveaxis(x, -3, -1)"
    return "; many grey images are x[..., np.newaxis]" if array.ndim == 3 else ""
