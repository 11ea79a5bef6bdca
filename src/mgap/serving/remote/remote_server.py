"""One server with the OpenAI API: what it tells of itself, and one request."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors

from mgap.errors import CorruptFile, ModelError, PromptError, one_line
from mgap.io.typed_json import typed
from mgap.priors.subspace import Subspace
from mgap.serving.engine_settings import ALPHA
from mgap.serving.remote.chat_bodies import chat_body

if TYPE_CHECKING:
    from pathlib import Path

    from openai import APIStatusError, AsyncOpenAI
    from openai.types.chat import ChatCompletion

    from mgap.backbones.base import Backbone
    from mgap.serving.remote.remote_options import RemoteOptions

STATUS, PRIOR = "/mgap", "/mgap/prior"  # status_endpoint.py
PROBE = "Is there a car in the image?"
REFUSED = (400, 413, 422)  # what a request gets for what it asks


@dataclass(frozen=True)
class Status:
    """What a server with our plugin tells (status_endpoint.py)."""

    is_on: bool
    method: str | None
    sha256: str | None  # of what the method has learnt
    settings: dict[str, Any] | None
    exact: bool | None
    model: dict[str, Any] | None  # its identity, where its workers can tell
    family: str
    dtype: str
    device: str
    drafts: bool
    versions: dict[str, str]


@dataclass(frozen=True)
class Told:
    """What a server is. Those that share a run must all be the same."""

    model: str  # its name there
    is_vllm: bool
    has_mgap: bool  # requests may set their strength, and are corrected if they do not
    status: Status | None  # None: it does not tell
    adds_special_tokens: bool = False  # whether requests must ask for the token that begins a text
    shows_prompts: bool = False  # whether its prompts were compared with ours

    def difference(self, other: Told) -> str:
        """The first thing in which it differs from another, in words; empty if there is none."""
        mine, theirs = self._facts(), other._facts()
        names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        return f"{names[0]} is {mine.get(names[0])!s:.120}, not {theirs.get(names[0])!s:.120}" if names else ""

    def _facts(self) -> dict[str, Any]:
        of_status = {} if self.status is None else {f"MGAP's {name}": value for name, value in vars(self.status).items()}
        return {**vars(self), "status": self.status is not None, **of_status}


class RemoteServer:
    """A server at an address."""

    def __init__(self, address: str, options: RemoteOptions) -> None:
        from openai import AsyncOpenAI

        self.address, self.options = address, options
        self.client: AsyncOpenAI = AsyncOpenAI(base_url=address, api_key=options.key, max_retries=0, timeout=options.timeout)
        self.told: Told | None = None
        self.must_check = False  # after a broken connection: another server may have come up there
        self.lists = True  # whether it says which models it has
        self.checking = asyncio.Lock()

    async def connect(self, backbone: Backbone) -> Told:
        """Find out what it is. Raises if it cannot answer for this model."""
        from openai import APIConnectionError

        try:
            told = await self._look()
        except APIConnectionError as error:
            raise ModelError(f"{self.address}: no server answers there ({one_line(error.__cause__ or error)})") from error
        return await self._with_prompts(told, backbone) if told.is_vllm else told

    async def require_same(self) -> None:
        """Raise if it is not what it was when the run began: it has been started anew, or given another prior."""
        assert self.told is not None
        now = replace(
            await self._look(),
            adds_special_tokens=self.told.adds_special_tokens,
            shows_prompts=self.told.shows_prompts,
        )
        if difference := now.difference(self.told):
            raise ModelError(
                f"{self.address} has changed since the run began: {difference}; give it back what it had, and resume the run"
            )

    async def ask(self, body: Mapping[str, Any]) -> ChatCompletion:
        """One request. Raises PromptError if the server refuses it; other errors are the client's."""
        from openai import APIStatusError

        assert self.told is not None
        async with self.checking:  # once for all requests that met the broken connection
            if self.must_check:
                await self.require_same()
                self.must_check = False
        try:
            return await self._send({**body, "model": self.told.model})
        except APIStatusError as error:
            if error.status_code in REFUSED:
                raise PromptError(f"{self.address} refuses it: {reason(error)}") from error
            raise

    async def prior(self, folder: Path) -> Subspace:
        """The prior that it has; `folder` is named where it is damaged."""
        data = await self.client.get(PRIOR, cast_to=object)
        try:
            found = typed(dict[str, Any], data, "it")
            tensors = parse_tensors(base64.b64decode(typed(str, found["tensors"], "tensors")))
            about = typed(dict[str, Any], found["about"], "about")
        except (KeyError, TypeError, ValueError, SafetensorError) as error:
            raise CorruptFile(f"{self.address}{PRIOR}: no prior ({one_line(error)})") from error
        return Subspace.from_described(tensors, about, folder)

    async def _send(self, body: Mapping[str, Any]) -> ChatCompletion:
        answer: ChatCompletion = await self.client.post("/chat/completions", body=dict(body), cast_to=_completion_type())
        return answer

    async def _look(self) -> Told:
        """What it is now, but for its prompts."""
        name, is_vllm = await self._model()
        status = await self._status()
        has_mgap = status.is_on if status is not None else is_vllm and await self._takes_strengths(name)
        return Told(name, is_vllm, has_mgap, status)

    async def _model(self) -> tuple[str, bool]:
        """The model's name there, and whether vLLM serves it. A name that is given need not be listed."""
        from openai import APIStatusError

        wanted, owners = self.options.served_model, dict[str, str]()
        try:
            if self.lists:
                owners = {model.id: model.owned_by for model in (await self.client.models.list()).data}
        except APIStatusError as error:
            if self.told is not None:
                raise  # it did, when the run began: it is not back yet
            if error.status_code in (401, 403):
                raise ModelError(
                    f"{self.address} wants a key: put it into the environment as {self.options.api_key}, or name the variable "
                    "that has it with --engine-option api_key=NAME"
                ) from error
            if wanted is None:
                raise ModelError(
                    f"{self.address} lists no models ({reason(error)}): give its whole address, such as http://HOST:8000/v1, "
                    "or the model's name with --engine-option served_model=NAME"
                ) from error
            self.lists = False
        if wanted is None and len(owners) != 1:
            raise ModelError(
                f"{self.address} lists {len(owners)} models ({', '.join(owners)[:300]}): give --engine-option served_model=NAME"
            )
        name = wanted or next(iter(owners))
        return name, owners.get(name) == "vllm"

    async def _status(self) -> Status | None:
        from openai import APIStatusError

        try:
            data = await self.client.get(STATUS, cast_to=object)
        except APIStatusError as error:
            if error.status_code in (404, 405):  # no such path, or workers that do not tell
                return None
            if self.told is not None:
                raise
            raise ModelError(f"{self.address}{STATUS}: {reason(error)}") from error
        try:
            status: Status = typed(Status, data, "its status")
        except TypeError as error:
            raise ModelError(f"{self.address}{STATUS} is of another mgap ({error}): use the same on both sides") from error
        return status

    async def _takes_strengths(self, name: str) -> bool:
        """Whether MGAP is on in a vLLM that does not tell: our plugin refuses an impossible strength, and any without MGAP."""
        return not await self._accepts(name, -1) and await self._accepts(name, 0)

    async def _accepts(self, name: str, alpha: float) -> bool:
        from openai import APIStatusError

        body = {**chat_body(PROBE, None), "model": name, "max_tokens": 1, "vllm_xargs": {ALPHA: alpha}}
        try:
            await self._send(body)
        except APIStatusError as error:
            if error.status_code not in REFUSED:
                raise ModelError(f"{self.address}: {reason(error)}") from error
            return False
        return True

    async def _with_prompts(self, told: Told, backbone: Backbone) -> Told:
        """Compare the prompt that the server makes of a question with ours. Raises if they differ."""
        from openai import APIStatusError

        body = {**chat_body(PROBE, Image.new("RGB", (64, 64))), "model": told.model, "max_tokens": 1, "temperature": 0.0}
        body |= {"return_prompt_text": True, "return_token_ids": True}
        if told.has_mgap:  # refused here if this engine takes no strengths of requests
            body["vllm_xargs"] = {ALPHA: 0.0}
        try:
            extra = (await self._send(body)).model_extra or {}
        except APIStatusError as error:
            raise ModelError(f"{self.address} refuses a question about a picture: {reason(error)}") from error
        theirs, ids = extra.get("prompt_text"), extra.get("prompt_token_ids")
        if not isinstance(theirs, str) or not ids:  # an older vLLM
            return told
        begins = backbone.tokenizer.bos_token or ""
        ours = backbone.render(PROBE)
        if theirs.removeprefix(begins) != ours.removeprefix(begins):
            raise ModelError(
                f"{self.address} asks in other words than {backbone.name} here: {theirs[:120]!r}, not {ours[:120]!r}; give the "
                "server the checkpoint's own chat template, as `mgap serve` does"
            )
        first = backbone.tokenizer.bos_token_id
        begin_there, begin_here = ids[0] == first, backbone.tokenize(ours)[0] == first
        if begin_there and not begin_here:
            raise ModelError(
                f"{self.address} begins every prompt with {begins}, and {backbone.name} here does not: start it with the chat "
                "template of `mgap serve`"
            )
        is_missing = begin_here and not begin_there
        return replace(told, adds_special_tokens=is_missing, shows_prompts=True)


def reason(error: APIStatusError) -> str:
    """A server's own words for why it refuses."""
    body = error.body
    said = body.get("message") if isinstance(body, Mapping) else None
    return " ".join(str(said or error.message).split())[:400]


def _completion_type() -> type[ChatCompletion]:
    from openai.types.chat import ChatCompletion

    return ChatCompletion
