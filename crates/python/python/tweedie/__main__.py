"""``python -m tweedie``: the command that was installed with the module."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def _folders() -> Iterator[Path]:
    """Where an installer puts commands: for this Python or environment, for one user, beside `pip install --target`."""
    yield Path(sysconfig.get_path("scripts"))
    yield Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    yield Path(__file__).resolve().parents[1] / "bin"
    yield Path(sys.executable).parent


def _command() -> Path:
    for folder in _folders():
        path = folder / "tweedie"
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f"no tweedie in {', '.join(str(f) for f in _folders())}; a wheel of scripts/wheel brings it")


if __name__ == "__main__":
    try:
        command = _command()
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
    os.execv(command, [str(command), *sys.argv[1:]])
