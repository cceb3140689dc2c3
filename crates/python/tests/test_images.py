"""Every form of an image gives the answer of its file; everything else is refused in words that help."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tweedie


def as_floats(pixels: np.ndarray, kind: type) -> np.ndarray:
    return (pixels / 255).astype(kind)


# One image, from the file of a digit and its pixels (8, 8, 1).
GREY = {
    "str": lambda path, x: str(path),
    "Path": lambda path, x: path,
    "bytes": lambda path, x: path.read_bytes(),
    "bytearray": lambda path, x: bytearray(path.read_bytes()),
    "BytesIO": lambda path, x: io.BytesIO(path.read_bytes()),
    "PIL L": lambda path, x: Image.open(path),
    "PIL RGB": lambda path, x: Image.open(path).convert("RGB"),
    "PIL RGBA": lambda path, x: Image.open(path).convert("RGBA"),
    "PIL P": lambda path, x: Image.open(path).convert("P"),
    "H×W": lambda path, x: x[:, :, 0],
    "H×W×1": lambda path, x: x,
    "H×W×3": lambda path, x: np.repeat(x, 3, axis=2),
    "float64": lambda path, x: as_floats(x, np.float64),
    "float32": lambda path, x: as_floats(x, np.float32),
    "float16": lambda path, x: as_floats(x, np.float16),
    "every other row": lambda path, x: np.repeat(x, 2, axis=0)[::2],
    "reversed twice": lambda path, x: x[::-1, ::-1].copy()[::-1, ::-1],
    "column-major": lambda path, x: np.asfortranarray(x[:, :, 0]),
    "transposed": lambda path, x: np.ascontiguousarray(x[:, :, 0].T).T,
    "big-endian floats": lambda path, x: as_floats(x, np.float64).astype(">f8"),
    "read-only": lambda path, x: np.frombuffer(x.tobytes(), np.uint8).reshape(x.shape),
    "memoryview": lambda path, x: memoryview(x),
}

# One image, from the file of a scene and its pixels (32, 32, 3).
COLOUR = {
    "Path": lambda path, x: path,
    "PIL RGB": lambda path, x: Image.fromarray(x),
    "PIL RGBA, half transparent": lambda path, x: Image.fromarray(np.dstack([x, np.full(x.shape[:2], 128, np.uint8)])),
    "H×W×3": lambda path, x: x,
    "float32": lambda path, x: as_floats(x, np.float32),
    "float16": lambda path, x: as_floats(x, np.float16),
    "mirrored twice": lambda path, x: x[:, ::-1].copy()[:, ::-1],
    "channels first, moved": lambda path, x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -1, 0)), 0, -1),
}


@pytest.mark.parametrize("form", GREY)
def test_a_form_of_a_grey_image_is_as_its_file(digits, pictures, form):
    path = pictures["digits"][1]
    pixels = tweedie.examples("digits", count=2)[1][0]
    answer = digits.classify(GREY[form](path, pixels))
    assert isinstance(answer, tweedie.Answer)
    assert answer == digits.classify(str(path))


@pytest.mark.parametrize("form", COLOUR)
def test_a_form_of_a_coloured_image_is_as_its_file(shapes, pictures, form):
    path = pictures["shapes"][1]
    pixels = tweedie.examples("shapes", count=2)[1][0]
    image = COLOUR[form](path, pixels)
    # Bounds are real numbers: other pixels would show in them, where the words could be the same.
    told = shapes.score("a red circle at the center", image)
    assert told == shapes.score("a red circle at the center", str(path))
    assert shapes.caption(image) == shapes.caption(path)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright(shapes, tmp_path, orientation):
    pixels = tweedie.examples("shapes", count=3)[2][0]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path, exif=exif)
    # Where the corner of the stored image belongs, by the table of the standard.
    upright = {
        1: lambda x: x,
        2: lambda x: x[:, ::-1],
        3: lambda x: x[::-1, ::-1],
        4: lambda x: x[::-1],
        5: lambda x: x.swapaxes(0, 1),
        6: lambda x: x.swapaxes(0, 1)[:, ::-1],
        7: lambda x: x.swapaxes(0, 1)[::-1, ::-1],
        8: lambda x: x.swapaxes(0, 1)[::-1],
    }[orientation](pixels)
    want = shapes.score("a red circle", upright)
    assert shapes.score("a red circle", path) == want
    assert shapes.score("a red circle", Image.open(path)) == want


@pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "CMYK"])
def test_a_pil_image_is_as_the_file_it_came_from(shapes, tmp_path, mode):
    path = tmp_path / ("picture.tiff" if mode == "CMYK" else "picture.png")
    Image.fromarray(tweedie.example("shapes")).convert(mode).save(path)
    assert shapes.score("a red circle", Image.open(path)) == shapes.score("a red circle", path)


def test_sixteen_bits_are_as_their_file(digits, tmp_path):
    path = tmp_path / "deep.png"
    every = np.arange(0, 65536, 257 // 4).astype(np.uint16)[: 8 * 8 * 16].reshape(-1, 8, 8)
    for deep in every:
        Image.fromarray(deep).save(path)
        assert digits.classify(Image.open(path)) == digits.classify(path)


@pytest.mark.parametrize("mode, kind", [("I", np.int32), ("F", np.float32)])
def test_pil_images_without_a_range_are_refused(digits, mode, kind):
    image = Image.fromarray(np.zeros((8, 8), kind))
    assert image.mode == mode
    with pytest.raises(ValueError, match=rf"mode {mode}.*\[0, 1\]"):
        digits.classify(image)


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64, np.float16])
@pytest.mark.parametrize("many", [False, True])
def test_tensors_have_channels_first(shapes, tensor, kind, many):
    pixels = np.stack([x for x, _ in tweedie.examples("shapes", count=3)])
    first = np.moveaxis(pixels if kind is np.uint8 else as_floats(pixels, kind), -1, 1)
    if many:
        assert shapes.caption(tensor(first)) == shapes.caption(pixels)
        assert shapes.score(["a red"] * 3, tensor(first)) == shapes.score(["a red"] * 3, pixels)
    else:
        assert shapes.score("a red", tensor(first[0])) == shapes.score("a red", pixels[0])
        assert isinstance(shapes.caption(tensor(first[0])), tweedie.Text)


def test_grey_tensors_are_1_h_w_or_h_w(digits, tensor, digit):
    want = digits.classify(digit)
    assert digits.classify(tensor(digit[:, :, 0])) == want
    assert digits.classify(tensor(digit[:, :, 0][np.newaxis])) == want
    assert digits.classify(tensor(digit[:, :, 0][np.newaxis, np.newaxis])) == [want]
    # Tensors with channels last are taken as they are.
    assert digits.classify(tensor(digit)) == want


def test_anything_of_dlpack_is_an_array(digits, digit):
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    assert digits.classify(Foreign(digit.copy())) == digits.classify(digit)
    assert digits.classify([Foreign(digit.copy())]) == [digits.classify(digit)]


def test_all_forms_in_one_list(digits, pictures):
    path = pictures["digits"][1]
    pixels = tweedie.examples("digits", count=2)[1][0]
    want = digits.classify(path)
    assert digits.classify([make(path, pixels) for make in GREY.values()]) == [want] * len(GREY)


@pytest.mark.parametrize("shape", ["list", "tuple", "generator", "iterator", "N×H×W×C", "array of paths", "one in a list"])
def test_many_images_give_a_list(digits, pictures, shape):
    paths = pictures["digits"]
    arrays = [x for x, _ in tweedie.examples("digits", count=len(paths))]
    images, want = {
        "list": (arrays, paths),
        "tuple": (tuple(arrays), paths),
        "generator": ((x for x in arrays), paths),
        "iterator": (iter(paths), paths),
        "N×H×W×C": (np.stack(arrays), paths),
        "array of paths": (np.array([str(p) for p in paths]), paths),
        "one in a list": ([arrays[0]], paths[:1]),
    }[shape]
    answers = digits.classify(images)
    assert isinstance(answers, list)
    assert answers == [digits.classify(p) for p in want]


def test_a_column_of_a_data_frame_is_a_list(digits, pictures):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"path": [str(p) for p in pictures["digits"]]})
    assert digits.classify(frame["path"]) == digits.classify(pictures["digits"])


def test_a_batch_of_one_is_a_list(digits, digit):
    assert digits.classify(digit[np.newaxis]) == [digits.classify(digit)]


def test_arrays_are_left_alone(digits, digit):
    before = digit.copy()
    floats = as_floats(digit, np.float32)
    kept = floats.copy()
    digits.classify([digit, floats])
    assert (digit == before).all() and (floats == kept).all()


ACCEPTED = "H×W, H×W×C or N×H×W×C with C = 1 or 3"
REFUSED = {
    "one axis": (np.zeros(8, np.uint8), ValueError, ACCEPTED),
    "five axes": (np.zeros((1, 1, 8, 8, 1), np.uint8), ValueError, ACCEPTED),
    "no axes": (np.float64(0.5), ValueError, ACCEPTED),
    "two channels": (np.zeros((8, 8, 2), np.uint8), ValueError, ACCEPTED),
    "four channels": (np.zeros((8, 8, 4), np.uint8), ValueError, r"8×8×4.*C = 1 or 3.*alpha"),
    "channels first": (np.zeros((3, 8, 8), np.uint8), ValueError, "channels come last"),
    "many grey images": (np.zeros((5, 8, 8), np.uint8), ValueError, "np.newaxis"),
    "int64": (np.zeros((8, 8), np.int64), ValueError, r"int64.*uint8, or floats in \[0, 1\]"),
    "uint16": (np.zeros((8, 8), np.uint16), ValueError, r"uint16.*uint8, or floats"),
    "bool": (np.zeros((8, 8), bool), ValueError, r"bool.*uint8, or floats"),
    "complex": (np.zeros((8, 8), complex), ValueError, r"complex128.*uint8, or floats"),
    "floats to 255": (np.full((8, 8), 255.0), ValueError, r"255.*\[0, 1\].*divide by 255"),
    "floats below 0": (np.full((8, 8), -0.1), ValueError, r"-0\.1.*\[0, 1\]"),
    "NaN": (np.full((8, 8), np.nan), ValueError, r"nan.*\[0, 1\]"),
    "one NaN": (np.where(np.arange(64).reshape(8, 8) == 9, np.nan, 0.5), ValueError, r"nan.*\[0, 1\]"),
    "infinity": (np.full((8, 8), np.inf), ValueError, r"inf.*\[0, 1\]"),
    "no rows": (np.zeros((0, 8, 1), np.uint8), ValueError, "sides must lie between 1"),
    "no image in an array": (np.zeros((0, 8, 8, 1), np.uint8), ValueError, "no image"),
    "empty list": ([], ValueError, "no image"),
    "empty generator": ((x for x in ()), ValueError, "no image"),
    "None": (None, TypeError, "NoneType is no image.*path"),
    "a number": (3, TypeError, "int is no image.*path"),
    "a dict": ({"image": "a.png"}, TypeError, "dict is no image.*path"),
    "a list of numbers": ([[0, 1], [2, 3]], TypeError, "image 0: list is no image"),
    "None in a list": ([np.zeros((8, 8), np.uint8), None], TypeError, "image 1: NoneType is no image"),
    "a bad one in a list": ([np.zeros((8, 8), np.uint8), np.zeros((8, 8, 4))], ValueError, "image 1: .*8×8×4"),
    "a batch in a list": ([np.zeros((2, 8, 8, 1), np.uint8)], ValueError, "image 0: an array of 2 images"),
    "no bytes": (b"", ValueError, "empty"),
    "bytes of no image": (b"not an image at all", ValueError, "image"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_image_is_refused(digits, what):
    given, kind, words = REFUSED[what]
    with pytest.raises(kind, match=words):
        digits.classify(given)


def test_refusals_are_alike_for_captions_scores_and_traces(shapes):
    wrong = np.zeros((8, 8, 4), np.uint8)
    for ask in (shapes.caption, lambda x: shapes.score("a red", x), shapes.trace):
        with pytest.raises(ValueError, match="C = 1 or 3"):
            ask(wrong)


def test_files_that_are_none(digits, pictures, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.png"):
        digits.classify(tmp_path / "nowhere.png")
    with pytest.raises(FileNotFoundError, match="nowhere.png"):
        digits.classify([pictures["digits"][0], tmp_path / "nowhere.png"])
    with pytest.raises(OSError, match="folder"):
        digits.classify(tmp_path)
    whole = pictures["shapes"][0].read_bytes()
    for name, content in {"cut.png": whole[: len(whole) // 2], "noise.png": b"\x89PNG and more", "empty.png": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            digits.classify(str(tmp_path / name))


def test_a_path_of_bytes_beyond_utf8(digits, pictures, tmp_path):
    path = Path(str(tmp_path / "zw\xf6lf ✓.png"))
    path.write_bytes(pictures["digits"][0].read_bytes())
    assert digits.classify(path) == digits.classify(pictures["digits"][0])
