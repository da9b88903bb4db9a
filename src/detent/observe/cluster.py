"""A Dask cluster as workers. Needs the package `distributed`; nothing else in Detent does.

The model and the description of the data are scattered, so that machines without a shared disk have them; past 2 GB,
the limit of one message, the model goes through a folder that all machines see. Dask itself starts a task again if its
worker dies. Only what was scattered can be lost for good: then Dask cancels the tasks that need it, and it is scattered
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import onnx_ir as ir

from detent.errors import DataError, UsageError
from detent.graph.save import PROTOBUF_LIMIT, complete_proto, serialize, tensor_bytes
from detent.observe.executors import Backlog, Workers
from detent.observe.shards import Shard, Ticket, Work, do_from_bytes, dump_work, shared_folder

PATIENCE = 10.0  # seconds to wait for a scheduler to answer, and for it to have a worker

MOST_ROUNDS = 3  # how often the model is scattered before its loss is an error

POLLS_ALONE = 6  # how many times in a row, that many seconds apart, the cluster may be without workers while it works

Task = Callable[[Shard], Future[Any]]


@contextmanager
def connect(address: str) -> Iterator[Any]:
    """Open a client of the scheduler at `address`. Raise UsageError without one, or without the package for it."""
    try:
        import distributed
    except ImportError:
        raise UsageError("Dask is not installed here: pip install 'detent[distributed]'") from None
    try:
        client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError, asyncio.TimeoutError) as error:
        raise UsageError(
            f"No Dask scheduler answers at '{address}' ({error}). Give the address that `dask scheduler` prints, such "
            "as tcp://10.0.0.1:8786."
        ) from error
    with client:
        yield client


class ClusterWorkers(Workers):
    """The workers of a Dask cluster, through a client of it.

    What all shards need is sent when the first of them is submitted, and again after it was lost.
    """

    def __init__(self, client: Any) -> None:
        if client.asynchronous:
            raise UsageError("executor: this dask Client is asynchronous. Give one made without asynchronous=True.")
        self._client = client
        self._name = f"The Dask scheduler at {client.scheduler.address if client.scheduler else 'a closed address'}"
        self._check_reachable()
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            raise self._deserted() from None
        self.count = self._threads()
        self._submit: Task | None = None
        self._losses = 0

    @contextmanager
    def open(self, model: ir.Model, work: Work) -> Iterator[None]:
        """Give the workers a model and a work, within the block."""
        import cloudpickle

        # Not plain pickle: a class of the user's own script is unknown to the workers.
        packed = dump_work(work, cloudpickle.dumps)
        submit = partial(_submit, self._client)
        if tensor_bytes(model) > PROTOBUF_LIMIT:
            with shared_folder(packed, model) as task:
                self._send: Callable[[], Task] = lambda: partial(submit, task)
                yield
        else:
            parts = [packed, serialize(complete_proto(model))]
            ticket = Ticket()
            self._send = lambda: partial(submit, do_from_bytes, *self._scatter(parts), ticket)
            yield

    def _scatter(self, parts: list[bytes]) -> Any:
        try:
            return self._client.scatter(parts, broadcast=True, hash=False)
        except (asyncio.TimeoutError, OSError) as error:  # no worker was there for half a minute, or one died of it
            raise UsageError(
                f"No worker of the Dask cluster took the model: {error}. Start workers, and check the logs and memory "
                "of those that run."
            ) from error

    def _threads(self) -> int:
        """Count the threads of all workers. Raise UsageError if the scheduler does not answer."""
        try:
            return sum(self._client.nthreads().values())
        except OSError:
            raise self._unreachable() from None

    def _check_reachable(self) -> None:
        if self._client.status != "running":
            raise self._unreachable()

    def _deserted(self) -> UsageError:
        return UsageError(f"{self._name} has no workers. Start some with `dask worker ADDRESS`.")

    def _unreachable(self) -> UsageError:
        return UsageError(f"{self._name} cannot be reached any more. Check that it still runs, and try again.")

    def submit(self, shard: Shard) -> Future[Any]:
        """Start a shard, and send what it needs if that is not there."""
        if self._submit is None:
            self._submit = self._send()
        return self._submit(shard)

    def lost(self, shard: Shard, backlog: Backlog, error: BaseException) -> None:  # noqa: ARG002
        """Do the shard again: Dask itself counts how many workers die of it."""
        backlog.again(shard)

    def replace(self, backlog: Backlog) -> None:
        """Send everything again. Raise UsageError if it was lost too often."""
        self._check_reachable()
        self._submit = None
        self._losses += 1
        if self._losses == MOST_ROUNDS:
            raise UsageError(
                f"The Dask cluster lost the model {MOST_ROUNDS} times, with {backlog}: all the workers that had it "
                "died. Check their logs and memory."
            )

    def finished(self, running: Collection[Future[Any]]) -> Iterable[Future[Any]]:
        """Wait for some of the futures. Raise UsageError if the cluster has no workers left."""
        polls_alone = 0
        while polls_alone < POLLS_ALONE:
            done = wait(running, PATIENCE, FIRST_COMPLETED).done
            if done or not running:
                return done
            polls_alone = 0 if self._threads() else polls_alone + 1
        raise self._deserted()

    def explain(self, error: Exception, shard: Shard) -> Exception:
        """Say which samples killed every worker, and what a worker lacks."""
        from distributed.scheduler import KilledWorker

        if isinstance(error, KilledWorker):
            return DataError(
                f"Every worker that had {shard.name} died ({error.allowed_failures + 1} of them). Check these samples, "
                "and the workers' memory and logs."
            )
        if isinstance(error, ImportError):
            return UsageError(
                f"A worker of the Dask cluster cannot run this: {error}. Install the same versions of detent and its "
                "dependencies (and the code of your reader) on all workers."
            )
        return error


def _submit(client: Any, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Submit a task, and return a future of the standard library that follows it.

    Dask's own executor does not do: its futures are never done if a result is lost between its end and its transfer.
    """
    # Not pure: a shard that was lost is computed again, not looked up by the hash of its arguments.
    remote = client.submit(function, *arguments, pure=False)
    local: Future[Any] = Future()

    def follow(_: Any) -> None:
        if local.set_running_or_notify_cancel():
            try:
                local.set_result(remote.result())
            except BaseException as error:  # noqa: BLE001  (whoever waits for the future raises it)
                local.set_exception(error)

    def cancel(_: Any) -> None:
        if local.cancelled() and client.status == "running":
            remote.cancel()

    local.add_done_callback(cancel)
    remote.add_done_callback(follow)
    return local
