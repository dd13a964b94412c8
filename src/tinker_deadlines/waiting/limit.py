"""What bounds this call: its own limit, or a budget around it? Asked once, before the call starts."""

from __future__ import annotations

import math

from tinker_deadlines import budgets, clock
from tinker_deadlines.budgets import Budget
from tinker_deadlines.calls import Call, TinkerCallKind, board
from tinker_deadlines.errors import BudgetExhaustedError, DeadlineExpiry, Late, submission_of
from tinker_deadlines.limits import MIN_LIMIT_S

__all__ = ["budget_for", "ends_at", "expiry_of", "is_budgets"]


def budget_for(kind: TinkerCallKind, method: str = "") -> Budget | None:
    """The smallest budget around the caller; `None` outside of all.

    Raises:
        BudgetExhaustedError: nothing is left of it: the call is refused before it is sent, free of charge.
    """
    budget = budgets.current()
    if budget is not None and budget.remaining_s() <= 0:
        error = BudgetExhaustedError(kind, owner=budget.name, budget_s=budget.seconds, method=method)
        refused = Call(kind, 0.0, budget.name, method)
        board.begin(refused)
        board.end(refused, "refused", error)
        raise error
    return budget


def ends_at(call: Call, budget: Budget | None) -> float:
    """The instant when the call is cut: its own deadline or the budget's, the earlier; infinite if neither runs."""
    deadline = math.inf if call.started_at is None else call.started_at + call.limit_s
    return deadline if budget is None else min(deadline, budget.deadline)


def is_budgets(call: Call, budget: Budget | None, at: float) -> bool:
    """Whether it is the budget that ends a call at an instant: the earlier deadline, of an overdue call in any case."""
    if budget is None or at < budget.deadline - MIN_LIMIT_S:
        return False
    return call.overdue or call.started_at is None or budget.deadline <= call.started_at + call.limit_s


def expiry_of(
    call: Call,
    budget: Budget | None,
    error: type[DeadlineExpiry],
    *,
    at: float | None = None,
    sent: bool | None = None,
    late: Late | None,
) -> DeadlineExpiry | BudgetExhaustedError:
    """Makes the error for a call whose time ran out, now or `at` an instant: the budget's where that cut it."""
    now = clock.monotonic() if at is None else at
    submission = submission_of(call.kind, sent)
    if budget is not None and is_budgets(call, budget, now):
        return BudgetExhaustedError(
            call.kind,
            owner=budget.name,
            budget_s=budget.seconds,
            elapsed_s=now - call.submitted_at,
            method=call.method,
            submission=submission,
            evidence=call.evidence(now),
            verdict=call.verdict or ("paused" if call.traffic is not None and call.traffic.paused else None),
            silent_s=None if call.traffic is None else call.traffic.silent_s(now),
            late=late,
        )
    return error(
        call.kind,
        elapsed_s=call.elapsed_until(now),
        deadline_s=call.limit_s,
        limit_owner=call.limit_owner,
        method=call.method,
        submission=submission,
        evidence=call.evidence(now),
        verdict=call.verdict,
        limit=call.limit,
        late=late,
    )
