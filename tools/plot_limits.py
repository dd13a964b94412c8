"""Draws the picture of docs/motivation.md: limits over a run whose service is four times slower for a while.

Needs matplotlib. `python tools/plot_limits.py` writes docs/limits.svg.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from tinker_deadlines.calls import Work
from tinker_deadlines.policy import Sample, policy_named
from tinker_deadlines.replay import load

REFERENCE = Work(prompt_tokens=4000, max_tokens=1024)
STYLES = {
    "flat": ("#888888", "--"),
    "scaled": ("#1f77b4", "-."),
    "p99x3": ("#2ca02c", ":"),
    "learned": ("#d62728", "-"),
}
TARGET = Path(__file__).resolve().parent.parent / "docs" / "limits.svg"


def main() -> None:
    """Runs the policies over the simulated slow spell and draws what they would have allowed one kind of call."""
    trace = load("slow-spell")
    policies = {name: policy_named(name, work_model=trace.work_model) for name in STYLES}
    limits: dict[str, list[float]] = {name: [] for name in STYLES}
    for call in trace.calls:
        for name, policy in policies.items():
            limits[name].append(policy.limit(call.kind, REFERENCE, call.model).seconds)
            if call.latency_s is not None:
                policy.learn(Sample(call.kind, call.work, call.model, call.latency_s, "completed"))
    shown = [
        (number, call.latency_s)
        for number, call in enumerate(trace.calls)
        if call.latency_s is not None and call.work is not None and call.work.max_tokens == REFERENCE.max_tokens
    ]
    mpl.rcParams["svg.hashsalt"] = "tinker-deadlines"
    figure, axes = plt.subplots(figsize=(8, 4.2))
    axes.scatter(
        *zip(*shown, strict=True), s=3, color="#bbbbbb", rasterized=True, label="calls of 1,024 tokens at most"
    )
    for name, (color, style) in STYLES.items():
        axes.plot(limits[name], color=color, linestyle=style, label=name)
    axes.set(xlabel="calls so far", ylabel="seconds", yscale="log", title="The limit of one call, as a run goes on")
    axes.axvspan(5000, 6000, color="#f3e6c8", zorder=0, label="the service is four times slower")
    axes.legend(loc="lower right", fontsize=8, framealpha=0.9)
    figure.tight_layout()
    figure.savefig(TARGET, dpi=110, metadata={"Date": None})


if __name__ == "__main__":
    main()
