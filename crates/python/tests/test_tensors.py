"""Arrays of the library without a copy: the buffer protocol and DLPack."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import tweedie


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
