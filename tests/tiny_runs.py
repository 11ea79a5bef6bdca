"""Fixtures of a tiny run: drawn scenes, a tiny random model, and the job that answers them.

Imports are late: the process that hands out tests needs no torch.
"""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    from mgap.pocket.tiny import build_tiny

    folder = tmp_path_factory.mktemp("tiny-llava")
    build_tiny("llava", folder, words=("Yes", "No", "yes", "no"))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny):
    from mgap.decoding.model import load

    return load(str(tiny))


@pytest.fixture
def make_config(tiny):
    from mgap.run.config import Config

    def make(**keys):
        given = {
            "benchmark": "pope", "model": str(tiny), "dataset": "pocket", "scenes": 3, "methods": ["vanilla"],
            "decoding": {"max_new_tokens": 4}, "batch_size": 4,
        }  # fmt: skip
        return Config.of({**given, **keys})

    return make


@pytest.fixture
def answer(make_config, tiny_model):
    """Do a run, or what is left of it."""
    from mgap.run.engine import execute
    from mgap.run.folder import Shard
    from mgap.run.job import Job

    def do(out, shard=None, listener=None, retry_failed=False, worker=None, **keys):
        job = Job.prepare(make_config(**keys), out, shard or Shard())
        run, own = job.begin(tiny_model)
        used = own if worker is None else worker(own)
        return run, execute(run, used, shard=job.shard, labels=job.labels, retry_failed=retry_failed, listener=listener)

    return do
