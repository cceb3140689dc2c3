"""Types are as they are told, and the examples in docstrings come out as they say."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tweedie
import wishes
from tweedie import _tweedie

HERE = Path(__file__).resolve().parent
MODULES = ["tweedie"] + [f"tweedie.{m.name}" for m in pkgutil.iter_modules(tweedie.__path__) if m.name not in ("_tweedie", "__main__")]


def checker(name: str) -> str:
    path = Path(sys.executable).parent / name
    found = str(path) if path.exists() else shutil.which(name)
    if found is None:
        if wishes.REQUIRE_CHECKERS:
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.parametrize("name, flags", [("mypy", ["--strict", "--python-executable"]), ("pyright", ["--pythonpath"])])
def test_types(name, flags):
    told = subprocess.run([checker(name), *flags, sys.executable], cwd=HERE.parent, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr


def test_a_wrong_type_is_seen(tmp_path):
    """The checks above are worth nothing if everything is Any."""
    program = tmp_path / "wrong.py"
    program.write_text(
        "import tweedie\n"
        "model = tweedie.load('embedded:digits')\n"
        "a: str = model.classify('a.png')\n"
        "b: tweedie.Text = model.generate(3)\n"
        "c: list[str] = model.caption(['a.png'])[0].nats\n"
        "model.classify('a.png', stepz=3)\n"
        "model.generate(steps='many')\n"
        "tweedie.Schedule(3)\n"
        "model.score(3)\n"
    )
    told = subprocess.run(
        [checker("mypy"), "--strict", "--python-executable", sys.executable, str(program)],
        cwd=HERE.parent, capture_output=True, text=True,
    )  # fmt: skip
    wrong = {line.split(":")[1] for line in told.stdout.splitlines() if "wrong.py:" in line and ": error:" in line}
    assert wrong == {"3", "4", "5", "6", "7", "8", "9"}, told.stdout


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    told = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert told.failed == 0


def test_what_users_call_has_an_example():
    runner = doctest.DocTestFinder()
    for thing in (tweedie.load, tweedie.train, tweedie.sample, tweedie.Sampler, tweedie.Schedule, tweedie.Trace, tweedie.Model.classify,
                  tweedie.Model.caption, tweedie.Model.generate, tweedie.Model.score, tweedie.Model.trace, tweedie.Model.logits,
                  tweedie.settings, tweedie.example, tweedie.examples, tweedie.Answer, tweedie.Text, tweedie.Scores):  # fmt: skip
        tests = runner.find(thing, thing.__name__)
        assert any(t.examples for t in tests), thing


def test_the_stub_names_what_the_native_part_has():
    """Members and the names of their parameters, on both sides."""
    import ast

    def parameters(f) -> list[str]:
        return [a.arg for a in f.args.posonlyargs + f.args.args + f.args.kwonlyargs if a.arg not in ("self", "cls")]

    tree = ast.parse((Path(tweedie.__file__).parent / "_tweedie.pyi").read_text(encoding="utf-8"))
    stub = {n.name: n for n in tree.body if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    native = {n for n in dir(_tweedie) if not n.startswith("__")}
    assert set(stub) == native
    for name, node in stub.items():
        have = getattr(_tweedie, name)
        if isinstance(node, ast.FunctionDef):
            assert parameters(node) == list(inspect.signature(have).parameters), name
            continue
        members = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        public = {n for n in vars(have) if not n.startswith("_") and name != "Error"}
        assert {n for n in members if not n.startswith("_")} == public, name
        for member in public:
            is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in members[member].decorator_list)
            assert is_property == inspect.isgetsetdescriptor(vars(have)[member]), member
            if not is_property:
                told = [p for p in inspect.signature(getattr(have, member)).parameters if p != "self"]
                assert parameters(members[member]) == told, member


def test_overloads_name_the_settings_there_are():
    """What a keyword argument may be is told twice: to checkers, and to Python."""
    from tweedie import _asked

    for call, told in (
        (tweedie.Model.classify, _asked.Classifying),
        (tweedie.Model.caption, _asked.Captioning),
        (tweedie.Model.generate, _asked.Generating),
    ):
        keywords = {p.name: p for p in inspect.signature(call).parameters.values() if p.kind is p.KEYWORD_ONLY}
        assert set(keywords) == set(told.__annotations__), call
        for name, kind in told.__annotations__.items():
            assert getattr(kind, "__forward_arg__", kind) == keywords[name].annotation, (call, name)
