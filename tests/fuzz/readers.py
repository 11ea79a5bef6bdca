"""How what `writers` writes is read again, to be compared."""

import json
import re

from mgap.errors import CorruptFile, MgapError
from mgap.priors.bank import Bank
from mgap.priors.null_space import NullSpace
from mgap.priors.prior_map import PriorMap
from mgap.priors.steering import Steering
from mgap.priors.subspace import Subspace
from mgap.run.folder import refuse_strangers
from mgap.run.records import Run
from research.frontier.choosing import Choices
from tests.fuzz.saved import tensors

NOTHING = "nothing"
ABSENT = "no saved|it is no folder here|it is no run|nothing has been chosen|No such file"  # so nothing was written yet


def numbers(found):
    return [tensor.double().flatten().tolist() for tensor in tensors(found)]


def read_files(folder):
    """Each file by itself, as a reader of reports sees it."""
    return (
        {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else {}
    )


def read_run(folder):
    refuse_strangers(folder)  # what a kill left does not keep the next one out
    run = Run.load(folder)
    return [method.label for method in run.methods], run.samples, run.order


def read_collection(folder):
    try:
        return numbers(Bank.load(folder))
    except CorruptFile as error:
        if "not whole yet" not in str(error):
            raise
        return NOTHING


READERS = {
    "subspace": lambda folder: numbers(Subspace.load(folder)),
    "tuned": lambda folder: Subspace.load(folder).tuning,
    "steering": lambda folder: numbers(Steering.load(folder)),
    "prior_map": lambda folder: numbers(PriorMap.load(folder)),
    "bank": lambda folder: numbers(Bank.load(folder)),
    "null_space": lambda folder: numbers(NullSpace.load(folder)),
    "cached": lambda folder: numbers(Subspace.load(folder / "subspace-0123")),
    "collection": read_collection,
    "run": read_run,
    "choices": Choices.load,
    "profile": lambda folder: json.loads((folder / "profile.json").read_text()),
}


def read_or_nothing(read, folder):
    try:
        return read(folder)
    except (MgapError, OSError) as error:
        if not re.search(ABSENT, str(error)):
            raise
        return NOTHING
