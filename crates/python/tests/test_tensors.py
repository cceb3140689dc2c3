"""Arrays of the library without a copy: the buffer protocol and DLPack."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

import tweedie
from tweedie import _images


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.fixture
def prepared(shapes, scene):
    """Images as the network reads them: float32 [2, 3, 32, 32]."""
    return shapes._prepared([scene, scene])


def test_a_tensor_says_what_it_is(prepared):
    assert isinstance(prepared, tweedie.Tensor)
    assert (prepared.shape, prepared.dtype, prepared.device, len(prepared)) == ((2, 3, 32, 32), "float32", "cpu", 2)
    assert repr(prepared) == "tweedie.Tensor([2, 3, 32, 32], float32, cpu)"
    assert prepared.__dlpack_device__() == (1, 0)


def test_values_are_the_image_normalised(shapes, prepared, scene):
    mean, std = (np.array(shapes.facts[k], np.float32).reshape(3, 1, 1) for k in ("mean", "std"))
    want = (np.moveaxis(scene, -1, 0) / np.float32(255) - mean) / std
    assert np.asarray(prepared)[1] == pytest.approx(want, abs=1e-5)


def test_all_views_share_the_memory(prepared):
    by_buffer, by_dlpack, by_view = np.asarray(prepared), np.from_dlpack(prepared), np.frombuffer(prepared, np.float32)
    assert address(by_buffer) == address(by_dlpack) == address(by_view) == address(np.asarray(prepared))
    assert (by_buffer == by_dlpack).all() and by_view.size == by_buffer.size


def test_noise_of_a_denoiser_is_shared():
    seen = []

    def denoiser(noisy, t):
        one, two = np.asarray(noisy), np.from_dlpack(noisy)
        assert address(one) == address(two)
        seen.append((one, one.copy()))
        return np.zeros(noisy.shape)

    tweedie.sample(denoiser, 5, 2, 3, steps=5)
    gc.collect()
    # Each step has an array of its own, that nobody writes to later.
    assert len({address(view) for view, _ in seen}) == 5
    assert all((view == kept).all() for view, kept in seen)


def test_views_outlive_the_tensor(shapes, scene):
    tensor = shapes._prepared(scene)
    want = np.array(tensor)
    views = [np.asarray(tensor), np.from_dlpack(tensor), memoryview(tensor)]
    del tensor
    gc.collect()
    junk = [np.random.default_rng(i).random(4096) for i in range(50)]
    assert all((np.asarray(view) == want).all() for view in views)
    del junk


def test_views_are_for_reading(prepared):
    view = np.asarray(prepared)
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0
    with pytest.raises(TypeError):
        memoryview(prepared)[0, 0, 0, 0] = 1
    copy = np.array(prepared)
    copy[:] = 0
    assert np.asarray(prepared).any()


def test_memoryview(prepared):
    view = memoryview(prepared)
    assert (view.shape, view.format, view.itemsize, view.readonly) == ((2, 3, 32, 32), "f", 4, True)
    assert view.nbytes == 2 * 3 * 32 * 32 * 4 and view.c_contiguous
    view.release()


def test_dlpack_refuses_what_would_be_a_copy(prepared):
    with pytest.raises(BufferError):
        prepared.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        prepared.__dlpack__(dl_device=(2, 0))
    assert prepared.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=False) is not None


def test_dlpack_versions(prepared):
    """Where versions are understood memory is marked as read-only; the old structure cannot say so."""
    for version, name in ((None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"), ((2, 1), "dltensor_versioned")):
        assert f'"{name}"' in repr(prepared.__dlpack__(max_version=version))
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        assert not np.from_dlpack(prepared).flags.writeable


def test_dlpack_has_no_streams_on_the_cpu(prepared):
    for stream in (None, -1):
        assert prepared.__dlpack__(stream=stream) is not None
    for stream in (0, 1, 2, 1 << 40, -2):
        with pytest.raises(BufferError, match="no stream"):
            prepared.__dlpack__(stream=stream)


# From Python.h.
STRIDES, C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS = 0x18, 0x38, 0x58, 0x98


def buffer(tensor, flags: int) -> int:
    """How many bytes the buffer protocol hands out under these flags."""
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes, release.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int], [ctypes.c_void_p]
    view = (ctypes.c_ssize_t * 16)()
    get(tensor, view, flags)
    length = view[2]
    release(view)
    return length


def test_the_buffer_protocol_hands_out_the_order_that_is_asked_for(prepared):
    size = 4 * 2 * 3 * 32 * 32
    for flags in (0, STRIDES, C_CONTIGUOUS, ANY_CONTIGUOUS):
        assert buffer(prepared, flags) == size
    with pytest.raises(BufferError, match="the last axis lies closest"):
        buffer(prepared, F_CONTIGUOUS)


def test_narrow_rows_are_not_handed_out_as_one(digits, digit):
    logits = digits.logits([digit] * 3, steps=1)
    dense = np.asarray(logits).flags.c_contiguous
    for flags in (0, C_CONTIGUOUS, ANY_CONTIGUOUS):
        if dense:
            assert buffer(logits, flags) == 120
        else:
            with pytest.raises(BufferError):
                buffer(logits, flags)


def test_an_array_by_name(digits, digit):
    # NumPy asks for it where there is no buffer, which is on a GPU.
    logits = digits.logits([digit] * 3, steps=1)
    assert (logits.__array__() == np.asarray(logits)).all() and logits.__array__().flags.writeable
    assert logits.__array__(np.float64).dtype == np.asarray(logits, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        logits.__array__(copy=False)


def test_logits(digits, digit):
    images = [x for x, _ in tweedie.examples("digits", count=5)]
    tensor = digits.logits(images, steps=3)
    assert tensor.shape == (5, 10) and tensor.dtype == "float32"
    logits = np.asarray(tensor)
    assert (np.from_dlpack(tensor) == logits).all()
    # The sampler's distribution is softmax of its last logits.
    last = [digits.trace(x, steps=3).steps[-1].probabilities[0] for x in images]
    p = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    assert np.abs(p / p.sum(1, keepdims=True) - np.array(last)).max() < 1e-6
    assert digits.logits(digit).shape == (1, 10)
    alone = np.concatenate([np.asarray(digits.logits(x, steps=3)) for x in images])
    assert (alone == logits).all()


@pytest.mark.parametrize("guidance", [0.0, 2.5])
def test_guided_logits(digits, guidance):
    images = [x for x, _ in tweedie.examples("digits", count=5)]
    logits = np.asarray(digits.logits(images, steps=3, guidance=guidance)).astype(np.float64)
    assert logits.shape == (5, 10)
    last = [digits.trace(x, steps=3, guidance=guidance).steps[-1].probabilities[0] for x in images]
    p = np.exp(logits - logits.max(1, keepdims=True))
    assert np.abs(p / p.sum(1, keepdims=True) - np.array(last)).max() < 1e-6


def test_narrow_rows_keep_their_strides(digits):
    # A head may be wider than there are classes; what is shown is the classes.
    logits = digits.logits([x for x, _ in tweedie.examples("digits", count=3)], steps=1)
    array = np.asarray(logits)
    assert array.shape == (3, 10) and (np.ascontiguousarray(array) == np.from_dlpack(logits)).all()
    assert bytes(memoryview(logits).tobytes()) == np.ascontiguousarray(array).tobytes()


def test_pytorch_shares_it_too(prepared):
    torch = pytest.importorskip("torch")
    tensor = torch.from_dlpack(prepared)
    assert tensor.data_ptr() == address(np.asarray(prepared)) and tuple(tensor.shape) == prepared.shape
    want = np.array(prepared)
    del prepared
    gc.collect()
    assert (tensor.numpy() == want).all()


def test_a_batch_of_pytorch_is_read_as_an_array_is():
    """What a tensor on a GPU goes through, tried on the CPU."""
    torch = pytest.importorskip("torch")
    pixels = np.stack([x for x, _ in tweedie.examples("shapes", count=3)])
    want = torch.from_numpy(pixels).movedim(-1, 1).float() / 255
    x, c = torch.from_numpy(pixels), torch.from_numpy(pixels).movedim(-1, 1)
    for form in (x, c, c / 255, c.double() / 255, (c / 255).half(), c / 255 * 0.9999, (c / 255).requires_grad_()):
        assert torch.equal(_images.batch(form), want)
        assert (_images.as_array(form, "") == pixels).all()
    assert torch.equal(_images.batch(c[1]), want[1:2]) and torch.equal(_images.batch(x[1]), want[1:2])
    assert _images.batch(x[1, :, :, 0]).shape == (1, 1, 32, 32)
    for form, words in (
        (c.long(), "values of int64"),
        (c.bool(), "values of bool"),
        (c.float(), "floats from 12 to 252"),
        (c.float() * float("nan"), "floats from nan"),
        (c[:0], "holds no image"),
        (c[None], "5 axes"),
    ):
        with pytest.raises(ValueError, match=words):
            _images.batch(form)


def test_a_capsule_is_used_once(prepared):
    class Once:
        def __init__(self):
            self.capsule = prepared.__dlpack__()

        def __dlpack__(self, **how):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)

    once = Once()
    assert (np.from_dlpack(once) == np.asarray(prepared)).all()
    with pytest.raises(ValueError):
        np.from_dlpack(once)


def test_a_capsule_that_nobody_takes(prepared):
    for _ in range(1000):
        prepared.__dlpack__()
    assert np.asarray(prepared).any()
