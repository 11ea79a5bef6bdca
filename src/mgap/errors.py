"""One tree of errors. Each message is a sentence: what was given, what is allowed, what to do."""

from importlib.util import find_spec


class MgapError(Exception):
    """Everything this package raises on purpose; the command line prints it and exits with 2."""


class SettingError(MgapError, ValueError):
    """A hyper-parameter, option or name outside what is allowed."""


class PromptError(MgapError, ValueError):
    """A prompt, or a file of prompts, that cannot be used."""


class ImageError(MgapError, ValueError):
    """A picture that is missing, broken, or of an unusable size."""


class BenchmarkError(MgapError, ValueError):
    """A benchmark's files, or answers to it, that are missing, broken, or do not belong together."""


class RunError(MgapError):
    """A run's folder that cannot be used: in use, of other settings, or not a run."""


class ModelError(MgapError):
    """A model that cannot be found, loaded, or understood."""


class UnsupportedHead(ModelError):
    """The model's output head does something that a method cannot follow exactly."""


class BackboneMismatch(MgapError):
    """A saved object belongs to another model."""


class DegenerateSubspace(MgapError):
    """The states do not determine a subspace of the rank that was asked for."""


class NonFiniteStates(DegenerateSubspace):
    """The model produced NaN or infinite hidden states."""


class UnsupportedDecoding(MgapError):
    """A method, or an option, cannot act in the decoding mode that was asked for."""


class UnsupportedRequest(MgapError):
    """An evaluation harness asks for something that is not done here, or not in that way."""


class CorruptFile(MgapError):
    """A saved file is incomplete, altered, or not what its name says."""


class MissingExtra(MgapError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose} needs {package}; install it with: pip install "mgap[{extra}]"')


def require_extra(package: str, extra: str, purpose: str, *, module: str | None = None) -> None:
    """Refuse at once what an optional dependency that is not installed would end later; imports nothing."""
    if find_spec(module or package) is None:
        raise MissingExtra(package, extra, purpose)


def one_line(error: BaseException, most: int = 300) -> str:
    """What somebody else's error says, short enough to stand in a sentence of ours."""
    text = " ".join(str(error).split())
    return text if len(text) <= most else f"{text[:most].rstrip()} ..."
