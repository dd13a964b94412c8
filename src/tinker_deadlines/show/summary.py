"""What is said at the end of a run? How long it took, how many calls ended how, and what was cut."""

from __future__ import annotations

import json

from tinker_deadlines.calls import Call
from tinker_deadlines.limits import SESSION_BUDGET, sessions_allowed
from tinker_deadlines.recovery.sessions import Counts, session_budget
from tinker_deadlines.show.story import Row, Story, age, total
from tinker_deadlines.show.tables import calls_table, counts_table, lines_of, plural

__all__ = ["calls_in_flight", "headline", "summary_json", "summary_text"]

# Cuts written out in the text; the JSON document has all that were kept. More push the counts off the screen.
SHOWN_CUTS = 20


def headline(rows: list[Row], duration_s: float) -> str:
    """The whole run in one line."""
    in_flight = sum(row.in_flight for row in rows)
    ended = sum(sum(row.counts.values()) for row in rows)
    if not rows:
        return f"tinker-deadlines {age(duration_s)}  no Tinker call was made"
    facts = [plural(ended + in_flight, "Tinker call")]
    facts += [f"{total(rows, 'expired'):,} expired"]
    facts += [f"{total(rows, 'out_of_budget'):,} out of budget"] if total(rows, "out_of_budget") else []
    facts += [f"{total(rows, 'failed'):,} failed"] if total(rows, "failed") else []
    facts += [f"{in_flight:,} in flight"] if in_flight else []
    return f"tinker-deadlines {age(duration_s)}  {', '.join(facts)}"


def summary_text(story: Story, *, width: int, colour: bool) -> str:
    """The summary as people read it."""
    rows = story.rows()
    lines = [_bold(headline(rows, story.duration_s()), colour)]
    if rows:
        table = counts_table(rows, in_flight=any(row.in_flight for row in rows))
        lines += [f"  {line}" for line in lines_of(table, width=width - 2, colour=colour)]
    cuts, in_all = story.cuts_after(0)
    for title, outcome in (("given up", "expired"), ("out of budget", "out_of_budget")):
        chosen = [cut for cut in cuts if cut.outcome == outcome]
        if chosen:
            lines.append(f"  {title}:")
            lines += [f"    {age(cut.at_s)}  {cut.sentence()}" for cut in chosen[-SHOWN_CUTS:]]
    hidden = in_all - sum(line.startswith("    ") for line in lines)
    if hidden > 0:
        lines.append(f"    and {hidden:,} earlier ones")
    lines += sessions_lines(session_budget.counts(), _allowed())
    return "\n".join(lines)


def sessions_lines(counts: Counts, most: int) -> list[str]:
    """What became of the run's sessions, where there is more to tell than that there was one, and it was finished."""
    lost = [*counts.orphans]
    lost += [f"{counts.unanswered} whose creation was not answered"] if counts.unanswered else []
    if counts.created < 2 and not lost:
        return []
    lines = [f"  sessions: {counts.created} created, {counts.finished} finished (at most {most} may be open)"]
    return lines + ([f"    may be left on the service: {', '.join(lost)}"] if lost else [])


def _allowed() -> int:
    try:
        return sessions_allowed()
    except ValueError:
        return SESSION_BUDGET  # whoever asked for a session was told of the rubbish


def summary_json(story: Story) -> str:
    """The same as one JSON document on one line."""
    cuts, in_all = story.cuts_after(0)
    return json.dumps(
        {
            "duration_s": round(story.duration_s(), 3),
            "calls": {row.kind: {**row.counts, "in_flight": row.in_flight} for row in story.rows()},
            "cuts_in_all": in_all,
            "sessions": {**session_budget.counts()._asdict(), "at_most": _allowed()},
            "cuts": [_rounded(cut._asdict()) for cut in cuts],
        }
    )


def calls_in_flight(calls: list[Call], *, width: int) -> str:
    """What a person is told who asks what a run is waiting for."""
    if not calls:
        return "tinker-deadlines: no Tinker call is in flight"
    lines = lines_of(calls_table(calls[:SHOWN_CUTS]), width=width, colour=False)
    more = [f"and {len(calls) - SHOWN_CUTS:,} younger ones"] if len(calls) > SHOWN_CUTS else []
    return "\n".join([f"tinker-deadlines: {plural(len(calls), 'Tinker call')} in flight, oldest first", *lines, *more])


def _rounded(facts: dict[str, object]) -> dict[str, object]:
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in facts.items()}


def _bold(text: str, colour: bool) -> str:
    return f"\x1b[1m{text}\x1b[0m" if colour else text
