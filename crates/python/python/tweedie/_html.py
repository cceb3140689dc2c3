"""What notebooks show of a run."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tweedie._train import Run


def run_card(run: "Run") -> str:
    """The folder, the best evaluation, and the loss as a curve."""
    rows: list[dict[str, Any]] = []
    path = run.path / "metrics.jsonl"
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    losses = [(r["step"], r["loss"]) for r in rows if r.get("event") == "step"]
    best = run._finished.get("best")
    told = f"{html.escape(best['name'])} {best['value']:.4g}" if best else ""
    return f"<b>{html.escape(str(run.path))}</b> {told}{curve(losses)}"


def curve(points: list[tuple[float, float]], width: int = 360, height: int = 90) -> str:
    """A small chart."""
    if len(points) < 2:
        return ""
    (x0, x1), ys = (points[0][0], points[-1][0]), [y for _, y in points]
    low, high = min(ys), max(ys)

    def x(v: float) -> float:
        return 34 + (width - 40) * (v - x0) / max(x1 - x0, 1)

    def y(v: float) -> float:
        return height - 16 - (height - 24) * (v - low) / max(high - low, 1e-9)

    line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    return (
        f"<br><svg width='{width}' height='{height}' role='img' aria-label='loss over steps' font-size='10' fill='currentColor'>"
        f"<text x='0' y='{y(high) + 4:.0f}'>{high:.2f}</text><text x='0' y='{y(low) + 4:.0f}'>{low:.2f}</text>"
        f"<text x='34' y='{height - 2}'>loss over {int(x1)} steps</text>"
        f"<polyline points='{line}' fill='none' stroke='#0072b2' stroke-width='1.5'/></svg>"
    )
