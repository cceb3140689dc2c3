"""What notebooks show, in light and in dark: colours are the notebook's own, but for one blue that reads on both."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from tweedie._train import Run

BLUE = "#2b8cc4"


def bar(share: float, width: int = 120) -> str:
    """A share of 1, on a track."""
    return (
        f"<div style='position:relative;width:{width}px;height:.8em'>"
        "<div style='position:absolute;inset:0;background:currentColor;opacity:.1'></div>"
        f"<div style='position:absolute;inset:0 auto 0 0;background:{BLUE};width:{max(width * share, 1):.0f}px'></div></div>"
    )


def card(title: str, rows: Mapping[str, Optional[str]], told: Mapping[str, Optional[str]] = {}) -> str:
    """Names and values; ``told`` is what the pointer is told of a row."""
    cells = "".join(
        f"<tr title='{html.escape(told.get(k) or '')}'><th style='text-align:left'>{k}</th><td style='text-align:left'>{html.escape(v)}</td></tr>"
        for k, v in rows.items()
        if v
    )
    return f"<b>{html.escape(title)}</b><table>{cells}</table>"


def run_card(run: "Run") -> str:
    """The folder, the best evaluation, and how loss and evaluations went."""
    rows: list[dict[str, Any]] = []
    path = run.path / "metrics.jsonl"
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    losses = [(r["step"], r["loss"]) for r in rows if r.get("event") == "step"]
    top1 = [(r["step"], 100 * (r["top1"] if r["ema_top1"] is None else r["ema_top1"])) for r in rows if r.get("event") == "eval"]
    texts = [r for r in rows if r.get("event") == "eval-text"]
    scores = [(r["step"], r["score"] if r["ema_score"] is None else r["ema_score"]) for r in texts]
    name = texts[-1]["metric"] if texts else "top-1 %"
    best = run._finished.get("best")
    told = "" if best is None else f"best {best['name']} " + (f"{100 * best['value']:.2f} %" if best["name"] == "top-1" else f"{best['value']:.4g}")
    stopped = "" if run.complete is not False else "stopped; run.resume() goes on"
    return (
        f"<b>{html.escape(str(run.path))}</b> {html.escape('; '.join(t for t in (told, stopped) if t))}"
        f"<div style='display:flex;flex-wrap:wrap;gap:1em'>{curve(losses, 'loss')}{curve(top1 or scores, name)}</div>"
    )


def curve(points: list[tuple[float, float]], name: str, width: int = 340, height: int = 110) -> str:
    """A small chart over steps."""
    points = [(a, b) for a, b in points if b == b]
    if len(points) < 2:
        return ""
    (x0, x1), ys = (points[0][0], points[-1][0]), [y for _, y in points]
    low, high = min(ys), max(ys)

    def x(v: float) -> float:
        return 44 + (width - 50) * (v - x0) / max(x1 - x0, 1)

    def y(v: float) -> float:
        return height - 20 - (height - 42) * (v - low) / max(high - low, 1e-9)

    line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    return (
        f"<svg width='{width}' height='{height}' role='img' aria-label='{html.escape(name)} over steps' font-size='11' fill='currentColor'>"
        f"<text x='44' y='12' font-weight='bold'>{html.escape(name)}</text>"
        f"<text x='40' y='{y(high) + 4:.0f}' text-anchor='end'>{high:.4g}</text><text x='40' y='{y(low) + 4:.0f}' text-anchor='end'>{low:.4g}</text>"
        f"<path d='M44,16V{height - 18}H{width - 4}' fill='none' stroke='currentColor' stroke-opacity='.3'/>"
        f"<text x='44' y='{height - 4}'>step {int(x0)}</text><text x='{width - 4}' y='{height - 4}' text-anchor='end'>{int(x1)}</text>"
        f"<polyline points='{line}' fill='none' stroke='{BLUE}' stroke-width='2' stroke-linejoin='round'/></svg>"
    )
