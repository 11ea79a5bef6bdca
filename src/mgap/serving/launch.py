"""Build the command that serves a model with a prior. It is checked first: vLLM takes minutes to find a mistake."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mgap.errors import BackboneMismatch, SettingError
from mgap.methods.mgap import MGAP
from mgap.priors.subspace import Subspace
from mgap.registry import locate
from mgap.serving.engine_settings import EXTENSION, KEY, SERVED_METHODS, Serving, learnt_key
from mgap.serving.installed import PLUGINS, all_plugins
from mgap.settings import check_choice

COMMAND, SERVER = "vllm.entrypoints.cli.main", "vllm.entrypoints.openai.api_server"  # modules: vLLM's command, and its server
ADDITIONAL = "--additional-config"
OURS = ("--model", "--host", "--port", "--revision", "--trust-remote-code")  # options of `mgap serve` itself


@dataclass(frozen=True)
class Launch:
    """A checked server command: the model as vLLM reads it, and all flags."""

    model: str
    flags: tuple[str, ...]

    @property
    def line(self) -> str:
        """The `vllm serve` line that starts the same server."""
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join([*settings, "vllm", "serve", self.model, *self.flags])

    @property
    def environment(self) -> dict[str, str]:
        """What is set for it besides: vLLM loads the endpoint that tells of MGAP only where it is named."""
        return {} if PLUGINS in os.environ else {PLUGINS: all_plugins()}

    @property
    def command(self) -> list[str]:
        """The arguments to run: vLLM's command, or its server for builds under another name, which the command cannot find."""
        has_name = any(metadata.distributions(name="vllm"))
        entry = [COMMAND, "serve", self.model] if has_name else [SERVER, "--model", self.model]
        return [sys.executable, "-m", *entry, *self.flags]


def plan_launch(
    model: str,
    prior: str,
    settings: Mapping[str, Any],
    *,
    method: str = MGAP.name,
    host: str,
    port: int,
    revision: str | None = None,
    trust_remote_code: bool = False,
    further: Sequence[str] = (),
) -> Launch:
    """Check the prior, the settings and the flags, and combine them. `settings` are the method's, `further` vLLM's flags."""
    from mgap.serving.checkpoint import servable

    place = str(Path(prior).resolve()) if Path(prior).exists() else prior
    check_choice("method", method, SERVED_METHODS)
    given = {learnt_key(SERVED_METHODS[method]): place, **settings, **({} if method == MGAP.name else {"method": method})}
    require_model(Serving.of(given).method().subspace, model, revision=revision, trust_remote_code=trust_remote_code)
    additional, rest = read_flags(further)
    source = str(servable(model))
    flags = ["--host", host, "--port", str(port)]
    flags += ["--revision", revision] if revision else []
    flags += ["--trust-remote-code"] if trust_remote_code else []
    flags += [] if source == model or has_flag(rest, "--served-model-name") else ["--served-model-name", model]
    flags += [] if has_flag(rest, "--worker-extension-cls") else ["--worker-extension-cls", EXTENSION]
    flags += [] if has_flag(rest, "--limit-mm-per-prompt") else ["--limit-mm-per-prompt", '{"image": 1}']
    return Launch(source, (*flags, ADDITIONAL, json.dumps({**additional, KEY: given}), *rest))


def require_model(prior: Subspace, model: str, **where: Any) -> None:
    """Raise if the model's configuration shows that the prior was made with another kind of model."""
    from transformers import AutoModelForImageTextToText

    from mgap.backbones.loading import load_config

    config = load_config(locate(model, where.get("revision")), **where)
    text, mapping = config.get_text_config(), AutoModelForImageTextToText._model_mapping
    properties: dict[str, Any] = {"hidden_size": text.hidden_size, "vocab_size": text.vocab_size}
    if type(config) in mapping:  # else the model brings its own code
        properties["architecture"] = mapping[type(config)].__name__
    identity = prior.identity
    for name, actual in properties.items():
        expected = getattr(identity, name, actual) if identity else {"hidden_size": prior.hidden_size}.get(name, actual)
        if expected != actual:
            made = identity.name if identity else "another model"
            raise BackboneMismatch(
                f"the prior was made with {made}, not with {model}: {name} is {expected} there and {actual} here; "
                f"fit one for it with `mgap fit --model {model} --out DIR`"
            )


def refuse_taken(host: str, port: int) -> None:
    """Raise if nothing can listen there. vLLM would find out after it has loaded the model."""
    try:
        socket.create_server((host.strip("[]"), port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0  # negative where a name has no address
        why = os.strerror(number) if number > 0 else "no address of that name"
        raise SettingError(f"cannot listen on {host}, port {port} ({why}): choose another --port, or --host") from None


def has_flag(words: Sequence[str], name: str) -> bool:
    """Whether a flag is given, in any spelling that vLLM accepts: --a-b X, --a_b X, --a-b=X, --a-b.key X."""
    return any(_flag(word) == name for word in words)


def read_flags(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split vLLM's flags into the keys of --additional-config and the rest. Raises on flags that are set here."""
    rest: list[str] = []
    additional: dict[str, Any] = {}
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
        additional |= _read_object(word.partition("=")[2] if "=" in word else next(pending, ""))
    return additional, rest


def _read_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingError(
            f"{ADDITIONAL} {text!r:.200} is no JSON ({error}); write an object, such as '{{\"key\": 1}}'"
        ) from None
    if not isinstance(value, dict):
        raise SettingError(f"{ADDITIONAL} {text!r:.200} must be a JSON object, such as '{{\"key\": 1}}'")
    if KEY in value:
        raise SettingError(f"{ADDITIONAL} with {KEY!r}: give --prior, --alpha and the others to `mgap serve` instead")
    return value


def _flag(word: str) -> str:
    """A flag's full name, or "" for a value. vLLM accepts abbreviations; one of --additional-config must not override ours."""
    name = word.partition("=")[0].partition(".")[0].replace("_", "-") if word.startswith("--") else ""
    return ADDITIONAL if len(name) > len("--ad") and ADDITIONAL.startswith(name) else name
