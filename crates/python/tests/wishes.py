"""What is asked of the tests by the environment. It is taken out of it: to a training every TWEEDIE_… is a setting."""

from __future__ import annotations

import os

#: The command to compare with.
COMMAND = os.environ.pop("TWEEDIE_COMMAND", None)
#: Whether to fail where the command, or the type checkers, are not there.
REQUIRE_COMMAND = bool(os.environ.pop("TWEEDIE_REQUIRE_COMMAND", None))
REQUIRE_CHECKERS = bool(os.environ.pop("TWEEDIE_REQUIRE_CHECKERS", None))
#: Whether to fail where pycocoevalcap is not there.
REQUIRE_PYCOCOEVALCAP = bool(os.environ.pop("TWEEDIE_REQUIRE_PYCOCOEVALCAP", None))
#: Whether to look for leaks for minutes.
LONG = bool(os.environ.pop("TWEEDIE_LONG_TESTS", None))
