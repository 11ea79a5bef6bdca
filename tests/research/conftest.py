"""As for the pocket world: tiny checkpoints with words to answer with."""

from tests.pocket.conftest import checkpoints, model, prior  # noqa: F401
