"""A Dask cluster for tests."""

from __future__ import annotations

import logging
from contextlib import contextmanager

from distributed import Client, LocalCluster


@contextmanager
def running(workers=2, **options):
    """A Dask cluster on this machine."""
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL + 1,
            **options,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
