"""How a training goes, for whoever watches: a line in a terminal, a bar in a notebook."""

from __future__ import annotations

import html
import sys
import time
from typing import Any, Optional


class Progress:
    """Shows nothing."""

    @staticmethod
    def of(wanted: Optional[bool]) -> "Progress":
        """A bar in a notebook, a line in a terminal; None: only where somebody looks."""
        if wanted is False:
            return Progress()
        if in_notebook():
            return Notebook()
        if wanted or sys.stderr.isatty():
            return Line()
        return Progress()

    def tell(self, kind: str, event: dict[str, Any]) -> None:
        """An event, or how far the work has come."""

    def close(self) -> None:
        """It is over."""


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class Shown(Progress):
    """What both have: the last of each thing that was told."""

    def __init__(self) -> None:
        self.total, self.step = 0, 0
        self.loss: Optional[float] = None
        self.eta: Optional[float] = None
        self.score, self.stage, self.drawn = "", "", 0.0
        self.notes: list[str] = []

    def tell(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "progress":
            if event["work"] == "steps":
                self.step, self.total, self.stage = event["done"], event["of"] or self.total, ""
            else:
                self.stage = event["work"]
        elif event["event"] == "begin":
            self.total, self.step = event["total_steps"], event["step"]
        elif event["event"] == "step":
            self.step, self.loss, self.eta = event["step"], event["loss"], event["eta"]
        elif event["event"] == "eval":
            top1 = event["ema_top1"] if event["ema_top1"] is not None else event["top1"]
            self.score = f"top-1 {100 * top1:.2f} %"
        elif event["event"] == "eval-text":
            score = event["ema_score"] if event["ema_score"] is not None else event["score"]
            self.score = f"{event['metric']} {score:.3f}"
        elif event["event"] in ("warning", "note"):
            self.notes.append(event["message"])
        elif event["event"] == "skipped":
            self.notes.append(f"{event['examples']} examples passed over: {'; '.join(event['errors'][:1])}")
        now = time.monotonic()
        if now - self.drawn > 0.2 or kind == "event":
            self.drawn = now
            self.draw()

    def words(self) -> str:
        parts = [f"step {self.step}/{self.total}" if self.total else "", self.stage]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.eta:
            parts.append(f"{self.eta:.0f} s to go")
        parts.append(self.score)
        return ", ".join(p for p in parts if p)

    def draw(self) -> None:
        raise NotImplementedError


class Line(Shown):
    """A line that is written again and again."""

    def draw(self) -> None:
        while self.notes:
            print(f"\r\x1b[Knote: {self.notes.pop(0)}", file=sys.stderr)
        print(f"\r\x1b[K{self.words()}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print("", file=sys.stderr)


class Notebook(Shown):
    """A bar in the cell's output."""

    def __init__(self) -> None:
        super().__init__()
        from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]

        self._html = HTML
        self._handle: Any = display(HTML(""), display_id=True)

    def draw(self) -> None:
        done = 100 * self.step / self.total if self.total else 0
        bar = f"<progress value='{done:.1f}' max='100' style='width:16em;vertical-align:middle'></progress>"
        notes = "".join(f"<div style='opacity:.7'>{html.escape(n)}</div>" for n in self.notes)
        self._handle.update(self._html(f"<div>{bar} {html.escape(self.words())}</div>{notes}"))

    def close(self) -> None:
        self.draw()
