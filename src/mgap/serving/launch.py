"""From a model and a prior to the command that serves them: checked first, since vLLM takes minutes to find out by itself."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mgap.errors import BackboneMismatch, SettingError
from mgap.priors.subspace import Subspace
from mgap.registry import locate
from mgap.serving.engine_settings import KEY, Serving

COMMAND, SERVER = "vllm.entrypoints.cli.main", "vllm.entrypoints.openai.api_server"  # vLLM's own, and what is behind it
ADDITIONAL = "--additional-config"
OURS = ("--model", "--host", "--port", "--revision", "--trust-remote-code")  # options of `mgap serve` itself


@dataclass(frozen=True)
class Launch:
    """A server that may be started: the model as vLLM reads it, and all flags."""

    model: str
    flags: tuple[str, ...]

    @property
    def line(self) -> str:
        """What to type for the same server without this package's command."""
        return shlex.join(["vllm", "serve", self.model, *self.flags])

    @property
    def command(self) -> list[str]:
        """What is run: vLLM's own command, or its server where a build has another name, which that command does not find."""
        has_name = any(metadata.distributions(name="vllm"))
        entry = [COMMAND, "serve", self.model] if has_name else [SERVER, "--model", self.model]
        return [sys.executable, "-m", *entry, *self.flags]


def plan_launch(
    model: str,
    prior: str,
    settings: Mapping[str, Any],
    *,
    host: str,
    port: int,
    revision: str | None = None,
    trust_remote_code: bool = False,
    further: Sequence[str] = (),
) -> Launch:
    """Check the prior, the settings and the flags, and put them together. `settings` are MGAP's, those that were given."""
    from mgap.serving.checkpoint import servable

    place = str(Path(prior).resolve()) if Path(prior).exists() else prior
    given = {"prior": place, **settings}
    method = Serving.of(given).method()
    require_model(method.prior, model, revision=revision, trust_remote_code=trust_remote_code)
    more, rest = read_flags(further)
    where = str(servable(model))
    flags = ["--host", host, "--port", str(port)]
    flags += ["--revision", revision] if revision else []
    flags += ["--trust-remote-code"] if trust_remote_code else []
    flags += [] if where == model or has_flag(rest, "--served-model-name") else ["--served-model-name", model]
    flags += [] if has_flag(rest, "--limit-mm-per-prompt") else ["--limit-mm-per-prompt", '{"image": 1}']
    return Launch(where, (*flags, ADDITIONAL, json.dumps({**more, KEY: given}), *rest))


def require_model(prior: Subspace, model: str, **where: Any) -> None:
    """Raise if the prior was made with another kind of model, as far as the model's configuration tells."""
    from transformers import AutoModelForImageTextToText

    from mgap.backbones.loading import load_config

    config = load_config(locate(model, where.get("revision")), **where)
    text, mapping = config.get_text_config(), AutoModelForImageTextToText._model_mapping
    here: dict[str, Any] = {"hidden_size": text.hidden_size, "vocab_size": text.vocab_size}
    if type(config) in mapping:  # else the model brings its own code
        here["architecture"] = mapping[type(config)].__name__
    identity = prior.identity
    for name, found in here.items():
        wanted = getattr(identity, name, found) if identity else {"hidden_size": prior.hidden_size}.get(name, found)
        if wanted != found:
            made = identity.name if identity else "another model"
            raise BackboneMismatch(
                f"the prior was made with {made}, not with {model}: {name} is {wanted} there and {found} here; fit one for it "
                f"with `mgap fit --model {model} --out DIR`"
            )


def has_flag(words: Sequence[str], name: str) -> bool:
    """Whether a flag is among vLLM's words, in any of the ways that it reads: --a-b X, --a_b X, --a-b=X, --a-b.key X."""
    return any(_flag(word) == name for word in words)


def read_flags(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The keys of an additional_config among further flags, and the other flags; refuses flags that are set here."""
    rest: list[str] = []
    more: dict[str, Any] = {}
    pending = iter(words)
    for word in pending:
        name = _flag(word)
        if name in OURS:
            raise SettingError(
                f"{word.partition('=')[0]} among vLLM's flags: it is an option of `mgap serve`; give it before --"
            )
        if name == "--config":
            raise SettingError(
                "--config among vLLM's flags could set what is set here: write its keys as flags, or use vllm serve"
            )
        if name != ADDITIONAL:
            rest.append(word)
            continue
        if "." in word.partition("=")[0]:
            raise SettingError(f"{word}: write {ADDITIONAL} as one JSON object, so that mgap's part can join it")
        given = word.partition("=")[2] if "=" in word else next(pending, "")
        more |= _read_object(given)
    return more, rest


def _read_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingError(
            f"{ADDITIONAL} {text!r:.200} is no JSON ({error}); write an object, such as '{{\"key\": 1}}'"
        ) from None
    if not isinstance(found, dict):
        raise SettingError(f"{ADDITIONAL} {text!r:.200} must be a JSON object, such as '{{\"key\": 1}}'")
    if KEY in found:
        raise SettingError(f"{ADDITIONAL} with {KEY!r}: give --prior, --alpha and the others to `mgap serve` instead")
    return found


def _flag(word: str) -> str:
    """A flag's name as vLLM knows it; empty for a value. It may be cut short, which must not replace what is set here."""
    name = word.partition("=")[0].partition(".")[0].replace("_", "-") if word.startswith("--") else ""
    return ADDITIONAL if len(name) > len("--ad") and ADDITIONAL.startswith(name) else name
