"""A run that is busy, with a worker that waits for ever; in processes of their own."""

import multiprocessing
import os
import signal

from mgap.run import picture_workers


def hold(teller):
    worker = multiprocessing.get_context("forkserver").Process(target=wait, args=(teller,))
    worker.start()
    worker.join()


def wait(teller):
    """The worker says who it is; the line is cut when it ends."""
    picture_workers._begin_worker(0)
    teller.send(os.getpid())
    while True:
        signal.pause()
