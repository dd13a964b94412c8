"""How are the figures shown? As Markdown: what was measured, the ratio that matters, and the bar that it must keep."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.measure import Cost


class Bar(NamedTuple):
    """A ratio or figure with its upper bound."""

    what: str
    value: float
    at_most: float

    @property
    def met(self) -> bool:
        """Whether the figure keeps its bound."""
        return self.value <= self.at_most

    def line(self) -> str:
        """One sentence."""
        verdict = "met" if self.met else "NOT met"
        return f"**{self.what}: {self.value:.3g}**, at most {self.at_most:g}: {verdict}."


class Table(NamedTuple):
    """One comparison."""

    title: str
    costs: dict[str, Cost]
    baseline: str
    bars: list[Bar]

    def markdown(self) -> str:
        """The table, cheapest way first, and its bars."""
        base = self.costs[self.baseline].median_us
        rows = ["| way | median µs | added µs | p10 | p90 |", "| --- | ---: | ---: | ---: | ---: |"]
        for name, cost in sorted(self.costs.items(), key=lambda item: item[1].median_us):
            shown = f"**{name}**" if name.startswith("tinker-deadlines") else name
            added = "—" if name == self.baseline else f"{cost.median_us - base:.3g}"
            rows.append(f"| {shown} | {cost.median_us:.3g} | {added} | {cost.p10_us:.3g} | {cost.p90_us:.3g} |")
        return "\n".join([f"## {self.title}", "", *rows, "", *(bar.line() for bar in self.bars), ""])
