"""Tensors on a GPU, in and out, with PyTorch; passed over where there is no PyTorch or no GPU.

Where there is no pytest either: ``python test_cuda.py``.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import re
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tweedie

try:
    import pytest
except ImportError:
    pytest = None

try:
    import torch

    MISSING = None if torch.cuda.is_available() else "PyTorch finds no GPU"
except ImportError:
    MISSING = "PyTorch is not installed"

if pytest is not None:
    pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

MIB = 1 << 20
#: What was measured, for those who read the output.
NOTES: list[str] = []


def note(words: str) -> None:
    NOTES.append(words)
    print(f"  {words}", flush=True)


@contextlib.contextmanager
def refused(kind: type[BaseException] | tuple[type[BaseException], ...], words: str) -> Iterator[None]:
    try:
        yield
    except kind as e:
        assert re.search(words, str(e)), f"{e!r} does not say {words!r}"
    else:
        raise AssertionError(f"nothing was raised, where {kind} should say {words!r}")


@functools.cache
def model(name: str = "digits", device: str = "cuda") -> tweedie.Model:
    return tweedie.load(f"embedded:{name}", device=device)


@functools.cache
def digits(count: int) -> np.ndarray:
    """uint8 [count, 8, 8, 1]: examples again and again."""
    every = np.stack([x for x, _ in tweedie.examples("digits", count=100)])
    return every[np.arange(count) % len(every)]


def on_gpu(pixels: np.ndarray) -> "torch.Tensor":
    return torch.from_numpy(np.ascontiguousarray(pixels)).cuda()


def taken(logits: tweedie.Tensor) -> "torch.Tensor":
    assert logits.device == "cuda:0" and logits.__dlpack_device__() == (2, 0)
    tensor = torch.from_dlpack(logits)
    assert tensor.is_cuda and tensor.dtype == torch.float32 and tuple(tensor.shape) == logits.shape
    return tensor


def differs(a: Any, b: Any) -> float:
    """The largest difference."""
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


# In.


def test_every_form_is_the_same_image() -> None:
    pixels = digits(100)
    x = on_gpu(pixels)
    want = taken(model()._prepared(pixels)).cpu()
    chw = x.movedim(-1, 1)
    forms = {
        "uint8 NHWC": x,
        "uint8 NCHW": chw.contiguous(),
        "uint8 NCHW, not contiguous": x.repeat(1, 1, 1, 1).movedim(-1, 1),
        "float32": chw.float() / 255,
        "float64": chw.double() / 255,
        "float16": chw.half() / 255,
        "with a gradient": (chw.float() / 255).requires_grad_(),
    }
    for name, form in forms.items():
        made = taken(model()._prepared(form)).cpu()
        # The same arithmetic in float32, in another order: a few roundings of values below 4.
        assert made.shape == want.shape and differs(made, want) < 2e-6, (name, differs(made, want))
    for name, form in {"CHW": chw[7], "HWC": x[7], "HW": x[7, :, :, 0]}.items():
        assert differs(taken(model()._prepared(form)).cpu(), want[7:8]) < 2e-6, name


def test_colour_is_the_same_image() -> None:
    pixels = np.stack([x for x, _ in tweedie.examples("shapes", count=10)])
    want = taken(model("shapes")._prepared(pixels)).cpu()
    for form in (on_gpu(pixels), on_gpu(pixels).movedim(-1, 1), on_gpu(pixels).movedim(-1, 1).float() / 255):
        assert differs(taken(model("shapes")._prepared(form)).cpu(), want) < 2e-6


def test_answers_are_those_of_arrays() -> None:
    pixels = digits(100)
    want = np.asarray(model().logits(pixels, steps=5))
    for form in (on_gpu(pixels), on_gpu(pixels).movedim(-1, 1).float() / 255):
        got = taken(model().logits(form, steps=5)).cpu().numpy()
        assert (got.argmax(1) == want.argmax(1)).mean() >= 0.99
        # bfloat16 rounds to 3 digits; an input that is off by 1e-7 may be rounded to the other side.
        note(f"logits of a CUDA tensor and of an array differ by {differs(got, want):.2g} at most, of {np.abs(want).max():.2g}")
        # A choice on the way may be close enough to fall the other way.
        assert (np.abs(got - want).max(1) > 0.05 * np.abs(want).max()).mean() <= 0.02
    # These go through the host, so they are the same image bit for bit.
    assert model().classify(on_gpu(pixels)) == model().classify(pixels)
    assert model().classify(on_gpu(pixels).movedim(-1, 1).half() / 255) == model().classify(pixels)
    scenes = np.stack([x for x, _ in tweedie.examples("shapes", count=4)])
    assert model("shapes").caption(on_gpu(scenes), steps=4) == model("shapes").caption(scenes, steps=4)


def test_what_is_refused() -> None:
    x = on_gpu(digits(3)).movedim(-1, 1)
    for form, words in (
        (x.long(), "values of int64"),
        (x.bool(), "values of bool"),
        (x.float(), r"floats from 0 to 255; they must lie in \[0, 1\]"),
        (x.float() / 255 - 1, "floats from -1 to"),
        (x.float() * float("nan"), "floats from nan"),
        (x[:0], "holds no image"),
        (x[None], "5 axes"),
        (x.repeat(1, 3, 1, 1), r"\[B, 1, 8, 8\], they are \[3, 3, 8, 8\]"),
        (x.repeat(1, 1, 2, 2), r"\[B, 1, 8, 8\], they are \[3, 1, 16, 16\]"),
    ):
        with refused(ValueError, words):
            model().logits(form)
    with refused(ValueError, "the images lie on a GPU and the model on the CPU"):
        model(device="cpu").logits(x)
    floats = (x.float() / 255).contiguous()
    take = model()._native.import_tensor
    for wrong, words in (
        (floats.double(), "float32"),
        (floats.transpose(2, 3), "contiguous"),
        (floats.cpu(), "kind 1, the model on cuda:0"),
        (np.zeros(3, np.float32), "kind 1, the model on cuda:0"),
    ):
        with refused(ValueError, words):
            take(wrong)
    with refused((BufferError, RuntimeError), "gradient"):  # PyTorch up to 2.8 raises the latter
        take(floats.clone().requires_grad_())
    with refused(tweedie.Error, "no device 99"):
        tweedie.load("embedded:digits", device="cuda:99")
    # The model is none the worse.
    assert taken(model().logits(x, steps=2)).isfinite().all()


# Out.


def test_logits_come_out_where_they_lie() -> None:
    logits = model().logits(on_gpu(digits(50)), steps=3)
    one, two = taken(logits), taken(logits)
    assert one.data_ptr() == two.data_ptr() and one.shape == (50, 10)
    # NumPy gets a copy.
    assert (np.asarray(logits) == one.cpu().numpy()).all() and np.asarray(logits, np.float64).dtype == np.float64
    with refused(ValueError, "without a copy"):
        logits.__array__(copy=False)
    with refused(BufferError, "lies on a GPU"):
        memoryview(logits)
    last = torch.tensor(np.array([model().trace(x, steps=3).steps[-1].probabilities[0] for x in digits(20)]))
    assert differs(last, one[:20].softmax(-1).cpu()) < 0.05  # bfloat16, in batches of another size


def test_guided_logits() -> None:
    pixels = digits(40)
    for guidance in (0.0, 1.0, 2.5):
        # One step: nothing is chosen that could fall the other way.
        got = taken(model().logits(on_gpu(pixels), steps=1, guidance=guidance)).cpu().softmax(-1)
        want = torch.from_dlpack(model(device="cpu").logits(pixels, steps=1, guidance=guidance)).softmax(-1)
        note(f"guidance {guidance}: probabilities differ from the CPU's by {differs(got, want):.2g}")
        # bfloat16 against float32, and guidance makes errors larger.
        assert differs(got, want) < 0.1


def test_capsules() -> None:
    logits = model().logits(on_gpu(digits(4)), steps=1)
    for stream in (None, 1, 2, -1, torch.cuda.Stream().cuda_stream):
        for version in (None, (0, 8), (1, 0), (1, 3), (2, 0)):
            capsule = logits.__dlpack__(stream=stream, max_version=version, dl_device=(2, 0), copy=False)
            name = "dltensor" if version is None or version[0] < 1 else "dltensor_versioned"
            assert f'"{name}"' in repr(capsule), repr(capsule)
    torch.cuda.synchronize()
    for how in ({"stream": 0}, {"stream": -2}, {"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 1)}):
        with refused(BufferError, "."):
            logits.__dlpack__(**how)
    assert (torch.from_dlpack(logits.__dlpack__()) == taken(logits)).all()


# Without a way through the host.


def copied(call: Callable[[], Any]) -> dict[str, list[int]]:
    """Bytes of each copy while `call` runs, by its direction, as the driver tells of all copies of this process."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        kept = call()
        torch.cuda.synchronize()
    del kept
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    found: dict[str, list[int]] = {"DtoH": [], "HtoD": [], "DtoD": []}
    for event in events:
        if event.get("cat") == "gpu_memcpy":
            direction = re.search("DtoH|HtoD|DtoD", event["name"])
            found.setdefault(direction[0] if direction else event["name"], []).append(int(event["args"]["bytes"]))
    return found


@functools.cache
def sees_copies() -> bool:
    """Whether copies can be seen: those of PyTorch."""
    x = torch.zeros(1 << 20, device="cuda")
    try:
        return sum(copied(lambda: x.cpu())["DtoH"]) >= 4 * MIB
    except Exception:
        traceback.print_exc()
        return False


def test_no_copy_to_the_host() -> None:
    if not sees_copies():
        raise AssertionError("the profiler sees no copies here (CUPTI), so nothing can be said of them")
    count = 4096
    pixels = digits(count)
    x = on_gpu(pixels)
    logits_of = lambda images: model().logits(images, steps=3)  # noqa: E731
    out = logits_of(x)
    logits_of(pixels)

    # What is looked for is seen where it is: images from the host, logits to it.
    up = copied(lambda: logits_of(pixels))
    assert sum(up["HtoD"]) >= 4 * pixels.size, up
    down = copied(lambda: np.asarray(out))
    assert sum(down["DtoH"]) >= 4 * count * 10, down

    handed = copied(lambda: taken(out))
    assert not any(handed.values()), handed
    for name, images in {"uint8": x, "float32": x.movedim(-1, 1).float() / 255}.items():
        prepared = copied(lambda: model()._prepared(images))
        note(f"{name}: import of {4 * pixels.size} bytes copies {prepared}")
        # Of floats a truth value is read back: whether they lie in [0, 1].
        assert sum(prepared["DtoH"]) <= 64 and sum(prepared["HtoD"]) <= 64, prepared
        assert 4 * pixels.size in prepared["DtoD"], prepared
        whole = copied(lambda: taken(logits_of(images)))
        sizes = {way: (len(sizes), sum(sizes), max(sizes, default=0)) for way, sizes in whole.items()}
        note(f"{name}: logits of {count} images, copies by way (count, bytes, largest): {sizes}")
        # Up go seeds and times, a few bytes for each example; the images have 64 at the least, of float32 256.
        assert sum(whole["DtoH"]) <= 64 and sum(whole["HtoD"]) < pixels.size, whole
    for guidance in (0.0, 2.0):
        model().logits(x, steps=3, guidance=guidance)
        whole = copied(lambda: taken(model().logits(x, steps=3, guidance=guidance)))
        assert sum(whole["DtoH"]) <= 64 and sum(whole["HtoD"]) < pixels.size, (guidance, whole)


def peak() -> int:
    """The most bytes that this process had in memory."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]


def test_the_host_s_memory_does_not_see_the_images() -> None:
    images = torch.randint(0, 256, (4 * MIB, 1, 8, 8), dtype=torch.uint8, device="cuda")
    # The kernels themselves take memory of the host when they are loaded.
    for kind in (torch.uint8, torch.float32):
        few = taken(model()._prepared(images[:4])).to(kind)
        float(few.sum(dtype=torch.float64))
    float(images.sum(dtype=torch.float64))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    out = taken(model()._prepared(images))
    total = float(out.sum(dtype=torch.float64))
    grown = peak() - before
    mean, std = model().facts["mean"][0], model().facts["std"][0]
    want = (float(images.sum(dtype=torch.float64)) / 255 - mean * images.numel()) / std
    assert abs(total - want) < 1e-4 * images.numel(), (total, want)
    note(f"1 GiB of floats went in and out; the host's peak grew by {grown / MIB:.1f} MiB")
    # A copy would be 1,024 MiB.
    assert grown < 200 * MIB
    del out, images
    torch.cuda.empty_cache()


# Streams.

#: Cycles of the GPU that take some tenths of a second.
LONG = 700_000_000


def test_what_is_still_computed_is_waited_for() -> None:
    pixels = digits(256)
    want = taken(model().logits(on_gpu(pixels), steps=2)).clone()
    good, other = on_gpu(pixels), on_gpu(255 - pixels)
    assert (taken(model().logits(other, steps=2)) - want).abs().max() > 0.1
    for stream in (torch.cuda.Stream(), torch.cuda.Stream(priority=-1), torch.cuda.default_stream()):
        for raw in (False, True):
            x = other.clone()
            floats = (x.movedim(-1, 1).float() / 255).contiguous()
            right = (good.movedim(-1, 1).float() / 255).contiguous()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(LONG)
                x.copy_(good)
                floats.copy_(right)
                assert not stream.query(), "the stream is done before it is looked at"
                if raw:
                    got = torch.from_dlpack(model()._native.import_tensor(floats))
                    assert (got == right).all()
                else:
                    assert (taken(model().logits(x, steps=2)) == want).all()


def test_results_are_waited_for_on_any_stream() -> None:
    x = on_gpu(digits(4096))
    settings = {"steps": 50}
    want = taken(model().logits(x, **settings)).cpu()
    busy = 0
    for _ in range(5):
        stream = torch.cuda.Stream()
        logits = model().logits(x, **settings)
        with torch.cuda.stream(stream):
            view = taken(logits)
            got = view * 1
            busy += not stream.query()
        stream.synchronize()
        assert (got.cpu() == want).all()
    note(f"a consumer's stream had to wait in {busy} of 5 cases")


def test_memory_that_is_still_read_is_not_used_again() -> None:
    x, other = on_gpu(digits(2048)), on_gpu(255 - digits(2048))
    want = taken(model().logits(x, steps=2)).cpu()
    for _ in range(3):
        logits = model().logits(x, steps=2)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            view = taken(logits)
            torch.cuda._sleep(LONG)
            kept = view * 1
            del view, logits
            for _ in range(5):
                model().logits(other, steps=2)
        stream.synchronize()
        assert (kept.cpu() == want).all()


def test_threads() -> None:
    """One hands tensors over while another has the same model record its graphs, and a third uses another model."""
    x = on_gpu(digits(64))
    want = taken(model().logits(x, steps=4)).cpu()
    rounds = itertools.count(2)
    failed: list[BaseException] = []
    until = time.monotonic() + 8

    def watched(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                while time.monotonic() < until and not failed:
                    work()
            except BaseException as e:
                traceback.print_exc()
                failed.append(e)

        return run

    def hand() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            assert (taken(model().logits(x, steps=4)).cpu() == want).all()
            assert torch.cuda.current_device() == 0

    def record() -> None:
        # A sampler of its own for each number of steps: run, then recorded, then replayed.
        steps = next(rounds)
        first, *others = (model().classify(digits(8), steps=steps) for _ in range(3))
        assert all(answer == first for answer in others)

    def another() -> None:
        assert len(model("shapes").caption(tweedie.example("shapes"), steps=4)) > 0

    threads = [threading.Thread(target=watched(work)) for work in (hand, hand, record, another)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


# Lifetimes.


def test_a_tensor_outlives_its_model() -> None:
    own = tweedie.load("embedded:digits", device="cuda")
    logits = own.logits(on_gpu(digits(100)), steps=2)
    want, view = taken(logits).cpu(), taken(logits)
    del own, logits
    gc.collect()
    second = tweedie.load("embedded:digits", device="cuda")
    second.classify(digits(50))
    junk = [torch.full((1 << 16,), float(i), device="cuda") for i in range(200)]
    torch.cuda.synchronize()
    assert (view.cpu() == want).all()
    del view, junk
    gc.collect()
    assert (taken(second.logits(on_gpu(digits(100)), steps=2)).cpu() == want).all()


def test_round_trips_take_no_memory() -> None:
    x = on_gpu(digits(4096))

    def used() -> int:
        gc.collect()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free

    def trips(count: int) -> None:
        for i in range(count):
            logits = model().logits(x, steps=1)
            view = torch.from_dlpack(logits)
            if i % 2:
                logits.__dlpack__(max_version=(1, 0))
            del logits
            assert view.shape == (4096, 10)

    trips(50)
    before, start = used(), time.monotonic()
    trips(1000)
    grown = used() - before
    note(f"1,000 round trips of 1 MiB in {time.monotonic() - start:.2f} s grow the GPU's memory by {grown} bytes")
    # The images of all would be 1,000 MiB, the logits 156 MiB.
    assert grown <= 32 * MIB


def test_loading_again_and_again() -> None:
    """A model that goes hands its part of the GPU to the next."""

    def once() -> None:
        tweedie.load("embedded:digits", device="cuda").classify(digits(8))
        gc.collect()

    once()
    time.sleep(0.5)
    before = torch.cuda.mem_get_info()[0]
    for _ in range(5):
        once()
        time.sleep(0.2)  # its thread ends a moment later
    kept = (before - torch.cuda.mem_get_info()[0]) / 5
    note(f"a model that is loaded and dropped keeps {kept / MIB:.1f} MiB of the GPU")
    assert kept < 8 * MIB


# Parts of one's own, and all else that a model does.


def test_a_denoiser_on_the_gpu() -> None:
    prior, schedule = np.array([0.2, 0.7, 0.1]), tweedie.Schedule("cosine")
    log_prior = torch.tensor(prior, dtype=torch.float32, device="cuda").log()

    def oracle(kind: "torch.dtype") -> Callable[[Any, int], Any]:
        def logits(noisy: tweedie.Tensor, t: int) -> "torch.Tensor":
            a = float(schedule.alpha_bar[t])
            y = torch.from_dlpack(noisy).cuda()
            return (a**0.5 / (1 - a) * y + log_prior).to(kind)

        return logits

    for kind in (torch.float32, torch.bfloat16):
        drawn = tweedie.sample(oracle(kind), 3, 1, 4000, schedule=schedule, sampler="ancestral", steps=50)
        # Five standard errors of the largest share, and bfloat16's rounding.
        assert np.abs(np.bincount(drawn[:, 0], minlength=3) / 4000 - prior).max() < 0.04, kind


def test_a_sampler_on_the_gpu() -> None:
    def step(prediction: tweedie.Prediction) -> tweedie.Update:
        tokens = torch.from_numpy(prediction.logits).cuda().argmax(-1)
        return prediction.renoise(take=tokens.cpu().numpy())

    own = model().classify(digits(20), sampler=step, steps=5)
    built_in = model().classify(digits(20), sampler="argmax", steps=5)
    assert [a.sampled for a in own] == [a.sampled for a in built_in]


def test_classes_agree_with_the_cpu() -> None:
    pixels = digits(100)
    on_cpu, on_cuda = (model(device=d).classify(pixels, steps=10) for d in ("cpu", "cuda"))
    again = model().classify(pixels, steps=10)  # by now as a graph
    assert [a.label for a in again] == [a.label for a in on_cuda]
    off = [differs(a.probabilities, b.probabilities) for a, b in zip(on_cpu, on_cuda)]
    same = sum(a.label == b.label for a, b in zip(on_cpu, on_cuda))
    note(f"classify: {same} of 100 labels are the CPU's, probabilities differ by {max(off):.2g} at most, {np.mean(off):.2g} on average")
    # bfloat16 against float32.
    assert same >= 98 and sum(x > 0.1 for x in off) <= 2
    trace = model().trace(pixels[0], steps=4)
    other = model(device="cpu").trace(pixels[0], steps=4)
    assert [s.t for s in trace] == [s.t for s in other] and trace.result.label == other.result.label


def test_captions_agree_with_the_cpu() -> None:
    scenes, texts = zip(*tweedie.examples("shapes", count=40))
    on_cpu, on_cuda = (model("shapes", d).caption(list(scenes), steps=8) for d in ("cpu", "cuda"))
    same = sum(a == b for a, b in zip(on_cpu, on_cuda))
    note(f"caption: {same} of 40 are the CPU's")
    assert same >= 36
    first = [t if isinstance(t, str) else t[0] for t in texts]
    a, b = (model("shapes", d).score(first, list(scenes)).bits for d in ("cpu", "cuda"))
    note(f"score: bits per token differ by {differs(a, b):.2g} at most, {abs(a.mean() - b.mean()):.2g} on average, of {a.mean():.3g}")
    assert abs(a.mean() - b.mean()) < 0.02 * max(a.mean(), 1.0)


def test_texts() -> None:
    texts = model("shakespeare").generate(4, prompt="ROMEO:", steps=16)
    assert len(texts) == 4 and all(t.startswith("ROMEO:") for t in texts)
    assert texts == model("shakespeare").generate(4, prompt="ROMEO:", steps=16)


def test_a_training() -> None:
    settings = {"train.epochs": 10, "train.warmup_epochs": 0.1}
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        run = tweedie.train("digits", settings=settings, out=Path(folder) / "run", device="cuda", progress=False)
        assert run.complete
        note(f"a training of 10 epochs takes {time.monotonic() - start:.1f} s, best {run.best:.3f}")
        # Chance is a tenth.
        assert run.best > 0.3
        trained = run.model(device="cuda")
        assert taken(trained.logits(on_gpu(digits(10)), steps=2)).isfinite().all()


def main() -> int:
    """Run all, tell of each, and end with the number that failed."""
    if MISSING is not None:
        print(f"skipped: {MISSING}")
        return 0
    tests = {n: f for n, f in globals().items() if n.startswith("test_") and callable(f)}
    wanted = sys.argv[1:]
    failed = []
    for name, test in tests.items():
        if wanted and not any(w in name for w in wanted):
            continue
        start = time.monotonic()
        try:
            test()
            verdict = "PASS"
        except Exception:
            traceback.print_exc(file=sys.stdout)
            verdict = "FAIL"
            failed.append(name)
        print(f"{verdict} {name} ({time.monotonic() - start:.1f} s)", flush=True)
    print(f"{len(failed)} failed" + "".join(f"\n  {name}" for name in failed), flush=True)
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main())
