"""A model of mlx-vlm that answers as `mgap.load`'s does: the same prompts, pictures, options and priors."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import mlx_vlm
from mlx_vlm.generate import generate_step
from PIL import Image
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.decoding_limits import check_tokens, new_tokens_that_fit
from mgap.backbones.loading import load_weightless
from mgap.backbones.null_images import check_null_image
from mgap.backbones.null_images import null_image as make_null_image
from mgap.backbones.prepared_pictures import process
from mgap.decoding.generate import end_ids
from mgap.decoding.model import read_answer
from mgap.errors import ModelError, SettingError, UnsupportedDecoding
from mgap.integrations.mlx.mlx_attachment import MlxAttachment, attach
from mgap.integrations.mlx.mlx_checkpoint import mlx_readable
from mgap.integrations.mlx.mlx_head import HeadPlace, find_head_place, hooked, to_torch
from mgap.integrations.mlx.mlx_identity import embedding_of, identity_of
from mgap.io.images import open_image
from mgap.methods.mgap import MGAP
from mgap.priors.spectrum import check_solver
from mgap.priors.subspace import HashedPrompts, Progress, Subspace, origin_of
from mgap.settings import check_choice
from mgap.types import Answer, Decoding

FAMILIES = ("llava", "qwen3_vl")  # tested: their pictures, as transformers prepares them, are what mlx-vlm's model reads
DTYPES = ("auto", "float32", "bfloat16", "float16")
_REFUSED = {  # options of Decoding, and why not
    "num_beams": "mlx-vlm searches among no beams",
    "num_return_sequences": "mlx-vlm draws one answer at a time: ask again with another seed",
    "repetition_penalty": "mlx-vlm looks back over 20 tokens only, and not at the prompt",
    "prompt_lookup": "mlx-vlm has no drafts from the prompt",
    "min_p": "mlx-vlm draws with it from a random state of the whole process, which no seed of ours reaches",
    "static_cache": "mlx-vlm has a cache of its own",
    "compile": "mlx-vlm compiles by itself where it can",
}


class MlxModel:
    """Answers questions about pictures with mlx-vlm. `mlx` and `processor` are what `mlx_vlm.load` returned."""

    def __init__(self, mlx: Any, processor: Any, backbone: Backbone) -> None:
        self.mlx, self.processor, self.backbone = mlx, processor, backbone
        self._attached: MlxAttachment | None = None

    @classmethod
    def load(cls, name: str, *, dtype: str = "auto", revision: str | None = None) -> MlxModel:
        """Load a folder, a hub id, quantised or not, or an embedded model such as pocket/llava."""
        check_choice("dtype", dtype, DTYPES)
        where = mlx_readable(name)
        backbone = load_weightless(where, called=name, revision=revision)
        kind = backbone.config.model_type
        if kind not in FAMILIES:
            raise ModelError(
                f"{name} is a {kind} model, and MlxModel prepares pictures for {' and '.join(FAMILIES)} only: use "
                "mgap.integrations.mlx.attach on your own mlx_vlm.load(...), and mlx-vlm's generate"
            )
        try:
            mlx, processor = mlx_vlm.load(where, revision=revision)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelError(f"{name}: mlx-vlm cannot load it ({str(error)[:300]})") from error
        if dtype != "auto":
            mlx.set_dtype(getattr(mx, dtype))
        return cls(mlx, processor, backbone)

    @contextmanager
    def using(self, method: MGAP) -> Iterator[MlxAttachment]:
        """Decode with MGAP inside the `with` block; afterwards, also after an error, the model is restored."""
        with attach(self, method) as attachment:
            before, self._attached = self._attached, attachment
            try:
                yield attachment
            finally:
                self._attached = before

    def answer(self, image: Any, prompt: str, **options: Any) -> Answer:
        """Answer one prompt about one picture (None: no picture). `options` are fields of `Decoding`."""
        decoding = _decoding(options)
        text, tensors = self._prepare(image, prompt)
        started = time.perf_counter()
        *_, last = self._generate(tensors, decoding)
        milliseconds = 1000 * (time.perf_counter() - started)
        return read_answer(self.backbone, last.token_ids, end_ids(self.backbone), text, milliseconds)

    def stream(self, image: Any, prompt: str, **options: Any) -> Iterator[str]:
        """The same answer in pieces of text, as mlx-vlm makes them. Methods stay as they were until all of it is read."""
        decoding, attached = _decoding(options), self._attached
        _, tensors = self._prepare(image, prompt)

        def pieces() -> Iterator[str]:
            results = self._generate(tensors, decoding)
            while True:
                if self._attached is not attached:
                    raise SettingError(
                        "mgap was switched on or off after this answer was asked for: read all of it inside the `with` block"
                    )
                if (result := next(results, None)) is None:
                    return
                if result.text:
                    yield result.text

        return pieces()

    def _generate(self, tensors: dict[str, Tensor], decoding: Decoding) -> Iterator[Any]:
        """mlx-vlm's own generation; its last result has all tokens."""
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        tokenizer.stopping_criteria.reset(sorted(end_ids(self.backbone)))
        options: dict[str, Any] = {"temperature": 0.0}
        if decoding.sample:
            options = {name: getattr(decoding, name) for name in ("temperature", "top_p", "top_k", "seed")}
        options["max_tokens"] = new_tokens_that_fit(self.backbone, tensors, decoding.max_new_tokens)
        results: Iterator[Any] = mlx_vlm.stream_generate(
            self.mlx, self.processor, "", skip_special_tokens=True, **to_mlx(tensors), **options
        )
        return results

    def _prepare(self, image: Any, prompt: str) -> tuple[str, dict[str, Tensor]]:
        """The rendered prompt, and what the model reads of it and of a picture, as transformers prepares them."""
        picture = None if image is None else open_image(image)
        text = self.backbone.render(prompt, pictures=int(picture is not None))
        tensors = process(self.backbone.processor, [picture], [text], self.backbone.name)
        check_tokens(self.backbone, tensors["input_ids"].tolist(), len(embedding_of(self.mlx)["weight"]))
        return text, tensors

    def fit(
        self,
        prompts: Iterable[str],
        rank: int | str = 5,
        *,
        null_image: str = "black336",
        size: tuple[int, int] | None = None,
        svd: str = "exact",
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Subspace:
        """`Subspace.fit` on the states of this model, prompt by prompt."""
        read = HashedPrompts(prompts, progress)
        check_solver(svd)
        check_null_image(null_image, size)
        picture = make_null_image(null_image, self.backbone.processor, size)
        place, state = find_head_place(self.mlx)
        fitted = Subspace.from_states(self._states(place, picture, read), rank, svd=svd, seed=seed)
        dtype, versions = str(state.dtype).rpartition(".")[2], {"mlx": version("mlx"), "mlx-vlm": version("mlx-vlm")}
        origin = origin_of(self.backbone, read, null_image=null_image, size=size, svd=svd, dtype=dtype, versions=versions)
        identity = replace(identity_of(self.mlx), name=self.backbone.name.rpartition("/")[2])
        return replace(fitted, identity=identity, origin=origin)

    def _states(self, place: HeadPlace, picture: Image.Image | None, prompts: Iterable[str]) -> Iterator[Tensor]:
        """The head's input [1, d] at the last position of each prompt, in float32."""
        states: list[Any] = []

        def catch(h: Any) -> Any:
            states[:] = [h[:, -1, :]]  # a prompt goes through the head in parts: the last one counts
            return place.own(h)

        for prompt in prompts:
            inputs = to_mlx(self._prepare(picture, prompt)[1])
            ids, pixels, mask = inputs.pop("input_ids"), inputs.pop("pixel_values", None), inputs.pop("mask")
            with hooked(place, catch):
                list(generate_step(ids, self.mlx, pixels, mask, max_tokens=0, temperature=0.0, **inputs))
            yield to_torch(states[0])


def to_mlx(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Inputs of a transformers model, under mlx-vlm's names."""
    return {"mask" if name == "attention_mask" else name: mx.array(tensor.numpy()) for name, tensor in tensors.items()}


def _decoding(options: dict[str, Any]) -> Decoding:
    decoding, default = Decoding.of(**options), Decoding()
    for name, why in _REFUSED.items():
        if getattr(decoding, name) != getattr(default, name):
            raise UnsupportedDecoding(f"{name}={getattr(decoding, name)}: {why}; leave {name} out")
    return decoding
