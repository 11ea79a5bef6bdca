"""The package's exceptions. Each message is a sentence: what was given, what is allowed, what to do."""

import difflib
from collections.abc import Iterable
from importlib.util import find_spec


class MgapError(Exception):
    """Base of every error that this package raises on purpose; the command line prints it and exits with 2."""


class SettingError(MgapError, ValueError):
    """A hyper-parameter, option or name is not allowed."""


class PromptError(MgapError, ValueError):
    """A prompt, or a file of prompts, cannot be used."""


class ImageError(MgapError, ValueError):
    """A picture is missing, damaged, or of an unusable size."""


class BenchmarkError(MgapError, ValueError):
    """A benchmark's files, or the answers to it, are missing, damaged, or do not belong together."""


class RunError(MgapError):
    """A run folder cannot be used: another process uses it, it has other settings, or it is not a run."""


class PluginError(MgapError):
    """A part that another package provides by an entry point cannot be used."""


class ModelError(MgapError):
    """A model cannot be found, loaded, or understood."""


class UnsupportedHead(ModelError):
    """The model's output head does something that a method cannot follow exactly."""


class BackboneMismatch(MgapError):
    """A saved object belongs to another model."""


class DegenerateSubspace(MgapError):
    """The states do not determine a subspace of the requested rank."""


class NonFiniteStates(DegenerateSubspace):
    """The model produced NaN or infinite hidden states."""


class NonFiniteScores(MgapError):
    """A model, or a method, gave NaN or infinite scores, or dropped every token: there is none to choose."""


class NotEnoughMemory(SettingError, MemoryError):
    """More rows, beams or sequences at a time than the device's free memory can hold."""


class UnsupportedDecoding(MgapError):
    """A method or an option does not support the requested decoding mode."""


class UnsupportedRequest(MgapError):
    """An evaluation harness requests something that is not supported here, or not in that way."""


class CorruptFile(MgapError):
    """A saved file is incomplete, modified, or not what its name says."""


class MissingExtra(MgapError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose} needs {package}; install it with: pip install "mgap[{extra}]"')


def require_extra(package: str, extra: str, purpose: str, *, module: str | None = None) -> None:
    """Raise MissingExtra now if an optional dependency is not installed; does not import it."""
    if find_spec(module or package) is None:
        raise MissingExtra(package, extra, purpose)


def one_line(error: BaseException, limit: int = 300) -> str:
    """Another library's error message on one line, short enough to quote in ours."""
    text = " ".join(str(error).split())
    return text if len(text) <= limit else f"{text[:limit].rstrip()} ..."


def did_you_mean(given: object, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: "; did you mean ...?" with the nearest one, or nothing if none is near."""
    close = difflib.get_close_matches(str(given), list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
