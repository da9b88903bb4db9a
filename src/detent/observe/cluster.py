"""A Dask cluster as workers. Needs the package `distributed`; nothing else in Detent does.

The model and the description of the data are scattered, so that machines without a shared disk have them; past 2 GB,
the limit of one message, the model goes through a folder that all machines see. Dask itself starts a task again where
its worker dies; only what was scattered can be lost for good, and then it is scattered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import onnx_ir as ir

from detent.errors import DataError, UsageError
from detent.graph.save import PROTOBUF_LIMIT, complete_proto, serialize, tensor_bytes
from detent.observe.shards import R, Run, Shard, Ticket, Work, do_from_bytes, do_from_folder, dump_work, shared_folder

PATIENCE = 10.0
"""Seconds to wait for a scheduler to answer, and for it to have a worker."""

MOST_ROUNDS = 3
"""How often the model is scattered before its loss is an error."""

POLLS_ALONE = 6
"""How many times in a row, that many seconds apart, the cluster may be without workers while it works."""

Submit = Callable[[Shard], Any]


@contextmanager
def connect(address: str) -> Iterator[Any]:
    """A client of the scheduler at `address`. Raises UsageError where there is none, or no package for it."""
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


class ClusterWorkers:
    """The workers of a Dask cluster, through a client of it."""

    def __init__(self, client: Any) -> None:
        if client.asynchronous:
            raise UsageError("executor: this dask Client is asynchronous. Give one made without asynchronous=True.")
        self._client = client
        self._name = f"The Dask scheduler at {client.scheduler.address if client.scheduler else 'a closed address'}"
        if client.status != "running":
            raise self._unreachable()
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            raise self._deserted() from None
        self.count: int = self._threads()

    @contextmanager
    def begin(self, model: ir.Model, work: Work[R]) -> Iterator[Run[R]]:
        """Give the workers a work, for the time of the block: what does shards of it."""
        import cloudpickle

        # Not plain pickle: a class of the user's own script is unknown to the workers.
        packed = dump_work(work, cloudpickle.dumps)
        if tensor_bytes(model) > PROTOBUF_LIMIT:
            with shared_folder(packed, model) as (folder, ticket):
                submit = partial(self._client.submit, do_from_folder, folder, ticket, pure=False)
                yield partial(self._rounds, _Sent(lambda: submit))
        else:
            sent = _Sent(partial(self._scatter, packed, serialize(complete_proto(model)), Ticket()))
            yield partial(self._rounds, sent)

    def _scatter(self, work: bytes, model: bytes, ticket: Ticket) -> Submit:
        try:
            sent = self._client.scatter([work, model], broadcast=True, hash=False)
        except (asyncio.TimeoutError, OSError) as error:  # no worker was there for half a minute, or one died of it
            raise UsageError(
                f"No worker of the Dask cluster took the model: {error}. Start workers, and check the logs and memory "
                "of those that there are."
            ) from error
        return partial(self._client.submit, do_from_bytes, *sent, ticket, pure=False)

    def _rounds(self, sent: _Sent, shards: Sequence[Shard]) -> Generator[Any, None, None]:
        """Do all shards; those that were lost with what was scattered are submitted again."""
        missing = {shard.number: shard for shard in shards}
        for _ in range(MOST_ROUNDS):
            for result in self._one_round(sent.submit(), list(missing.values())):
                del missing[result.number]
                yield result
            if not missing:
                return
            if self._client.status != "running":
                raise self._unreachable()
            sent.lost()
        raise UsageError(
            f"The Dask cluster lost the model {MOST_ROUNDS} times, with {len(missing)} of {len(shards)} shards not "
            "done: all the workers that had it died. Check their logs and memory."
        )

    def _one_round(self, submit: Submit, shards: Sequence[Shard]) -> Generator[Any, None, None]:
        """What comes of the shards, except of those that Dask called off because their inputs were lost."""
        from distributed.scheduler import KilledWorker

        finished: SimpleQueue[Any] = SimpleQueue()
        outstanding: dict[Any, tuple[Any, Shard]] = {}
        try:
            for shard in shards:
                future = submit(shard)
                outstanding[future.key] = future, shard
                future.add_done_callback(finished.put)
            while outstanding:
                future, shard = outstanding.pop(self._next(finished).key)
                try:
                    yield future.result()
                except CancelledError:
                    continue
                except KilledWorker as error:
                    raise DataError(
                        f"Every worker that had {shard.name} died ({error.allowed_failures + 1} of them). Check "
                        "these samples, and the workers' memory and logs."
                    ) from error
                except ImportError as error:
                    raise UsageError(
                        f"A worker of the Dask cluster cannot run this: {error}. Install the same versions of detent "
                        "and its dependencies (and the code of your reader) on all workers."
                    ) from error
        finally:
            if outstanding and self._client.status == "running":
                self._client.cancel([future for future, _ in outstanding.values()])

    def _next(self, finished: SimpleQueue[Any]) -> Any:
        """The next future that is done. Raises UsageError where none can be, because nobody is there to work."""
        polls_alone = 0
        while polls_alone < POLLS_ALONE:
            try:
                return finished.get(timeout=PATIENCE)
            except Empty:
                polls_alone = 0 if self._threads() else polls_alone + 1
        raise self._deserted()

    def _threads(self) -> int:
        try:
            return sum(self._client.nthreads().values())
        except OSError:
            raise self._unreachable() from None

    def _deserted(self) -> UsageError:
        return UsageError(f"{self._name} has no workers. Start some with `dask worker ADDRESS`.")

    def _unreachable(self) -> UsageError:
        return UsageError(f"{self._name} cannot be reached any more. Check that it still runs, and try again.")


class _Sent:
    """What all shards need, sent when the first of them is submitted, and again after it was lost."""

    def __init__(self, send: Callable[[], Submit]) -> None:
        self._send = send
        self._submit: Submit | None = None

    def submit(self) -> Submit:
        """What submits a shard."""
        if self._submit is None:
            self._submit = self._send()
        return self._submit

    def lost(self) -> None:
        """Some worker did not find it any more."""
        self._submit = None
