"""Where does a blocking call run? On a daemon thread that is reused, so that its caller can stop waiting for it.

Guarantees: a job starts on an idle worker if there is one, else on a new one, else, when `MAX_WORKERS` run, on the
first that becomes free. The idle worker that was used last is taken first: its stack is warm, and the others get to
time out. A worker is idle before its job tells the caller, so that the caller's next call finds it, and so that
nothing is left to do between telling and sleeping that would keep the caller from running. Workers are daemons that
the interpreter does not join, so that an abandoned one never delays exit; that is why this is no `ThreadPoolExecutor`.
"""

from __future__ import annotations

import threading
from collections import deque

from tinker_deadlines import clock
from tinker_deadlines.budgets import run_within
from tinker_deadlines.errors import AbandonedCallsError
from tinker_deadlines.limits import MAX_ABANDONED_WORKERS, MAX_WORKERS, WORKER_IDLE_S

__all__ = ["Job", "Workers", "workers"]


class Job:
    """Something to do on a worker. Neither method may raise: what there is to say, is stored and told."""

    __slots__ = ("abandoned", "running")

    def __init__(self) -> None:
        self.running = False
        self.abandoned = False

    def run(self) -> None:
        """Does the work and keeps what comes of it."""
        raise NotImplementedError

    def tell(self) -> None:
        """Tells whoever waits."""
        raise NotImplementedError


class Workers:
    """A pool of daemon threads."""

    def __init__(self, most: int = MAX_WORKERS, most_abandoned: int = MAX_ABANDONED_WORKERS) -> None:
        self.abandoned = 0
        self._most = most
        self._most_abandoned = most_abandoned
        # Reentrant: a signal handler may make a call while this thread makes one.
        self._lock = threading.RLock()
        self._idle: list[_Worker] = []
        self._threads = 0
        self._waiting: deque[Job] = deque()

    def start(self, job: Job) -> None:
        """Starts a job on a worker; one that was abandoned before is left alone.

        Raises:
            AbandonedCallsError: `MAX_ABANDONED_WORKERS` calls that were given up still hold a thread each.
        """
        with self._lock:
            if self.abandoned >= self._most_abandoned:
                raise AbandonedCallsError(self.abandoned, self._most_abandoned)
            if job.abandoned:
                return
            if self._idle:
                worker = self._idle.pop()
            elif self._threads < self._most + self.abandoned:
                worker = self._new_worker()
            else:
                self._waiting.append(job)
                return
            job.running = True
        worker.take(job)

    def _new_worker(self) -> _Worker:
        worker = _Worker(self)
        self._threads += 1
        return worker

    def abandon(self, job: Job) -> None:
        """Says that nobody waits for a job any more: while it runs, it counts; one that has not started never will."""
        with self._lock:
            if job.abandoned:
                return
            job.abandoned = True
            if not job.running:
                if job in self._waiting:
                    self._waiting.remove(job)
                return
            self.abandoned += 1
            if not self._waiting:
                return
            # Its place is free for the one that has waited longest.
            try:
                worker = self._new_worker()
            except RuntimeError:
                return  # the platform has no further thread: the next worker that becomes free takes it
            following = self._waiting.popleft()
            following.running = True
        worker.take(following)

    def after(self, worker: _Worker, job: Job) -> Job | None:
        """Notes the end of a job; returns the worker's next one, or `None` after noting the worker as idle."""
        with self._lock:
            job.running = False
            if job.abandoned:
                self.abandoned -= 1
            if self._waiting:
                following = self._waiting.popleft()
                following.running = True
                return following
            self._idle.append(worker)
            return None

    def retire(self, worker: _Worker) -> bool:
        """Takes an idle worker out of the pool; false when a job was given to it meanwhile."""
        with self._lock:
            if worker not in self._idle:
                return False
            self._idle.remove(worker)
            self._threads -= 1
            return True

    def forked(self) -> None:
        """Starts afresh in a forked child: the threads stayed with the parent."""
        Workers.__init__(self, self._most, self._most_abandoned)


class _Worker:
    """One thread. It sleeps on a lock of its own, which is released once for each job that it is given."""

    __slots__ = ("_job", "_pool", "_wake")

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        self._job: Job | None = None
        self._wake = threading.Lock()
        self._wake.acquire()
        # Outside of any budget: a worker outlives the block in which it was needed first.
        run_within(None, threading.Thread(target=self._work, name="tinker-deadlines-worker", daemon=True).start)

    def take(self, job: Job) -> None:
        self._job = job
        self._wake.release()

    def _work(self) -> None:
        while True:
            # Real time on purpose: a fake clock must not end workers.
            if not clock.SystemClock.acquire(self._wake, WORKER_IDLE_S):
                if self._pool.retire(self):
                    return
                self._wake.acquire()
            job, self._job = self._job, None
            while job is not None:
                job.run()
                following = self._pool.after(self, job)
                job.tell()
                job = following


workers = Workers()
