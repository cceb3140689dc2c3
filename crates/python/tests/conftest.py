"""Models, pictures and the command, as all tests use them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tweedie
import wishes

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def digits() -> tweedie.Model:
    return tweedie.load("embedded:digits", device="cpu")


@pytest.fixture(scope="session")
def shapes() -> tweedie.Model:
    return tweedie.load("embedded:shapes", device="cpu")


@pytest.fixture(scope="session")
def shakespeare() -> tweedie.Model:
    return tweedie.load("embedded:shakespeare", device="cpu")


@pytest.fixture(scope="session")
def models() -> dict[str, tweedie.Model]:
    """All that are inside, the masked twins among them."""
    return {name: tweedie.load(f"embedded:{name}", device="cpu") for name in tweedie.embedded_models()}


@pytest.fixture(scope="session")
def digit() -> np.ndarray:
    return tweedie.example("digits")


@pytest.fixture(scope="session")
def scene() -> np.ndarray:
    return tweedie.example("shapes")


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """PNG files of embedded examples."""
    folder = tmp_path_factory.mktemp("pictures")
    paths: dict[str, list[Path]] = {}
    for name, count in (("digits", 6), ("shapes", 4)):
        paths[name] = [folder / f"{name}-{i}.png" for i in range(count)]
        for path, (pixels, _) in zip(paths[name], tweedie.examples(name, count=count)):
            Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(path)
    return paths


def find_command() -> str | None:
    """The command, by TWEEDIE_COMMAND, beside this Python, on the PATH, or as cargo built it."""
    if wishes.COMMAND:
        return wishes.COMMAND
    beside = Path(sys.executable).parent / "tweedie"
    built = [ROOT / "target" / "release" / "tweedie", ROOT / "target" / "bin" / "tweedie"]
    for path in [beside, *built]:
        if path.is_file():
            return str(path)
    return shutil.which("tweedie")


@pytest.fixture(scope="session")
def command():
    """Runs the command, and gives what it says as JSON."""
    program = find_command()
    if program is None:
        if wishes.REQUIRE_COMMAND:
            pytest.fail("the command is not found; name it by TWEEDIE_COMMAND")
        pytest.skip("the command is not found; name it by TWEEDIE_COMMAND")

    def run(*arguments: object):
        told = subprocess.run(
            [program, *map(str, arguments), "--json", "--device", "cpu"], capture_output=True, text=True, timeout=120
        )
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    return run


class StandIn:
    """As much of a tensor of PyTorch as is looked at."""

    is_cuda = False

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def dtype(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(is_floating_point=self.array.dtype.kind == "f")

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.array(self.array, dtype=dtype)

    def __iter__(self):
        return (StandIn(a) for a in self.array)

    def detach(self) -> "StandIn":
        return self

    def float(self) -> "StandIn":
        return StandIn(self.array.astype(np.float32))

    def cpu(self) -> "StandIn":
        return self

    def numpy(self) -> np.ndarray:
        return self.array


@pytest.fixture
def tensor(monkeypatch: pytest.MonkeyPatch):
    """Makes a tensor of an array: PyTorch's where it is installed, else a stand-in for it."""
    try:
        import torch
    except ImportError:
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=StandIn))
        return StandIn
    return lambda array: torch.from_numpy(np.ascontiguousarray(array))
