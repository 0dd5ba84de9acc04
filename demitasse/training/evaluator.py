"""The test nets of a run: who runs their batches, and what is asked for in between."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from demitasse.core.log import get_logger
from demitasse.errors import ConfigError, ErrorCode
from demitasse.training.evaluate import evaluate
from demitasse.training.requests import Requests
from demitasse.training.run import Run
from demitasse.training.tester import ByItself, Tester, Together, needs_one_process

__all__ = ["Evaluator", "OnBatch"]

OnBatch = Callable[[int, int, int], None]
"""Takes the number of a test net, how many batches are done, and of how many; 0 for an epoch."""

log = get_logger(__name__)


class Evaluator:
    """Tests the nets of a run with the present weights.

    Args:
        run: The run.
        requests: What it is asked for; looked at between batches.
        snapshot: Writes one that is asked for.
        on_batch: Called before each batch and after the last.
    """

    def __init__(
        self,
        run: Run,
        requests: Requests,
        snapshot: Callable[[], None],
        on_batch: Sequence[OnBatch],
    ) -> None:
        self._run, self._requests = run, requests
        self._snapshot, self._on_batch = snapshot, on_batch
        self._stopped = False
        self._by_root = self._say_who_tests()

    def test(self, index: int, iteration: int) -> dict[str, np.ndarray] | None:
        """Test a net and report it; see ``Solver.test``.

        Returns:
            The mean of every output; None where a request ended the test.

        Raises:
            ConfigError: There is no such net.
        """
        run, team = self._run, self._run.team
        if not 0 <= index < len(run.test_nets):
            message = f"there is no test net {index}; this solver has {len(run.test_nets)}"
            raise ConfigError(
                message, code=ErrorCode.OUT_OF_RANGE, got=index, test_nets=len(run.test_nets)
            )
        if run.is_root:
            log.info("Iteration %d, Testing net (#%d)", iteration, index)
        net = run.test_nets[index]
        if net.device is not run.net.device:  # which may have moved
            net.to(run.net.device)
        net.share_trained_layers_with(run.net)
        self._stopped = False
        tester = self._tester(index)
        if tester.several or team.size == 1 or run.is_root:
            means, loss = evaluate(run.param, index, net, tester)
        else:
            means, loss = {}, 0.0
        if team.size > 1 and not tester.several:
            batches = run.param.test_iter[index] or 1
            means, loss, self._stopped = team.broadcast_object(
                (means, loss, self._stopped), timeout_factor=batches
            )
        if self._stopped:
            log.info("Test interrupted.")
            return None
        if run.is_root:
            run.report.test(
                net, index, iteration, means, loss if run.param.test_compute_loss else None
            )
        return means

    def _say_who_tests(self) -> set[int]:
        """Return the test nets that the first of several processes runs by itself."""
        alone = set()
        for index, net in enumerate(self._run.test_nets if self._run.team.size > 1 else ()):
            why = needs_one_process(net)
            if why:
                alone.add(index)
                if self._run.is_root:
                    log.info("Test net #%d is tested by process 0 alone: %s.", index, why)
        return alone

    def _tester(self, index: int) -> Tester:
        """Return who runs the batches of a test net."""
        if self._run.team.size > 1 and index not in self._by_root:

            def go_on(done: int, asked: str | None) -> bool:
                self._tell_batch(index, done)
                return self._heed(asked)

            return Together(self._run.team, self._requests.next, go_on)
        batches = itertools.count()

        def may_go_on() -> bool:
            self._tell_batch(index, next(batches))
            while request := self._requests.next():
                self._heed(request)
            return not self._stopped

        return ByItself(may_go_on)

    def _tell_batch(self, index: int, done: int) -> None:
        for callback in self._on_batch:
            callback(index, done, self._run.param.test_iter[index])

    def _heed(self, request: str | None) -> bool:
        """Do what is asked for during a test; return whether that goes on."""
        if request == "snapshot" and self._run.is_root:
            self._snapshot()
        self._stopped |= request == "stop"
        return not self._stopped
