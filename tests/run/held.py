"""A run that is busy, with a worker that would wait for ever; in processes of their own."""

import multiprocessing
import os
import time

from mgap.run import ahead


def hold(path):
    worker = multiprocessing.get_context("forkserver").Process(target=wait, args=(path,))
    worker.start()
    worker.join()


def wait(path):
    """The worker writes down who it is."""
    ahead._end_with_parent(0)
    path.write_text(str(os.getpid()))
    time.sleep(600)
