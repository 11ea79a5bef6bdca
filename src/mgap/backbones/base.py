"""The generic backbone: any AutoModelForImageTextToText with a processor that has a chat template.

A family file overrides only what differs. Nothing here knows about decoding methods.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from jinja2 import TemplateError
from PIL import Image
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText

from mgap.backbones.checkpoint_faults import checkpoint_faults, refuse_own_loop, tokenizer_faults
from mgap.backbones.clock import Clock
from mgap.backbones.decoding_limits import check_characters, check_tokens
from mgap.backbones.head import Head, find_head
from mgap.backbones.identity import Identity, describe_tensors, named_weights, sample_embedding
from mgap.backbones.null_images import NOISE, null_image
from mgap.backbones.prepared_pictures import Prepared, Shown, assemble, pictures_in, process
from mgap.backbones.template_rendering import broken_template, chat_template, find_template, message, render_template
from mgap.backbones.token_rows import Ids, find_block, join_rows, split_rows
from mgap.errors import ImageError, ModelError, PromptError
from mgap.io.images import open_image
from mgap.io.prompt_files import check_prompt
from mgap.io.strict_json import lone_surrogate
from mgap.registry import BACKBONES

if TYPE_CHECKING:
    from mgap.backbones.picture_layout import PictureLayout


class Backbone:
    """A transformers model and its processor. Batches are left padded; rows never see each other."""

    pixel_keys: ClassVar[tuple[str, ...]] = ("pixel_values",)  # normalised pixels, for methods that add noise
    fallback_template: ClassVar[str | None] = None  # for checkpoints older than chat templates
    processor_class: ClassVar[str | None] = None  # in transformers; None: the one transformers maps the model to
    model_class: ClassVar[Any] = AutoModelForImageTextToText  # whose from_pretrained loads it

    # Capabilities. A family declares one where tests check it; other families take a slower path, or are refused.
    prepares_pictures: ClassVar[bool] = False  # pictures prepared apart from their prompts give the processor's own rows
    embeds_pictures: ClassVar[bool] = False  # accepts encoded pictures at the text decoder if the forward takes none
    shares_prefill: ClassVar[bool] = False  # rows of one picture give the same answers from a shared prefill
    captures_steps: ClassVar[bool] = False  # a step at fixed addresses decodes like transformers' own
    pictures_read_prompts: ClassVar[bool] = False  # a picture's tokens depend on its prompt
    maps_pictures: ClassVar[bool] = False  # a picture's tokens form one map of rows and columns, which `picture_maps` knows
    picture_layout: ClassVar[PictureLayout | None] = None  # how pixels hold whole pictures; None: in tiles, or not checked

    def __init__(self, model: nn.Module, processor: Any = None, *, name: str | None = None) -> None:
        self.model: Any = getattr(model, "_orig_mod", model)  # under torch.compile's wrapper
        self.processor = processor
        self.name = name or getattr(self.config, "_name_or_path", "") or type(self.model).__name__
        self.clock = Clock()  # off by default
        if processor is not None:
            self.prepare_processor()

    @classmethod
    def of(cls, model: Any) -> Backbone:
        """The backbone of what a user passes: a Backbone, an mgap model, or a transformers model."""
        if isinstance(model, Backbone):
            return model
        inner = getattr(model, "backbone", None)
        if isinstance(inner, Backbone):
            return inner
        if isinstance(model, nn.Module):
            return backbone_class(getattr(model, "_orig_mod", model).config)(model)
        raise ModelError(f"{type(model).__name__} is not a model: pass mgap.load(...) or a transformers model")

    # --- parts of the model -----------------------------------------------------------------------------------

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def device(self) -> torch.device:
        embedding: nn.Module = self.model.get_input_embeddings()
        return next(embedding.parameters()).device

    @property
    def dtype_name(self) -> str:
        """The dtype of the weights, such as bfloat16."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def tokenizer(self) -> Any:
        return self._require_processor().tokenizer

    @property
    def head_module(self) -> nn.Module:
        return find_head(self.model)

    def probe_head(self) -> Head:
        with checkpoint_faults(self):
            return Head.probe(self.model)

    @property
    def language(self) -> nn.Module:
        """The text decoder: embeddings, blocks and final norm, without the head."""
        decoder: nn.Module = self.model.get_decoder()
        return decoder

    @property
    def layers(self) -> nn.ModuleList:
        layers = getattr(self.language, "layers", None)
        if not isinstance(layers, nn.ModuleList):
            raise ModelError(f"{type(self.model).__name__}: no list of decoder blocks at get_decoder().layers")
        return layers

    @property
    def final_norm(self) -> nn.Module:
        norm = getattr(self.language, "norm", None)
        if not isinstance(norm, nn.Module):
            raise ModelError(f"{type(self.model).__name__}: no final norm at get_decoder().norm")
        return norm

    @property
    def image_token_id(self) -> int:
        for name in ("image_token_id", "image_token_index"):
            token = getattr(self.config, name, None)
            if isinstance(token, int) and 0 <= token < 2**31:
                return token
        raise ModelError(f"{type(self.model).__name__}: its configuration names no image token")

    def image_mask(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Which positions of input_ids are image placeholders: bool [B, T]."""
        return inputs["input_ids"] == self.image_token_id

    @property
    def vision(self) -> nn.Module:
        """The vision tower."""
        tower: nn.Module = self.model.get_encoder(modality="image")
        if tower is self.model:
            raise ModelError(f"{type(self.model).__name__}: no vision tower found")
        return tower

    def tower_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """The vision tower's arguments, under the names that `encode` uses."""
        return {"pixel_values": args[0] if args else kwargs["pixel_values"]}

    def encode_pictures(self, inputs: Mapping[str, Tensor]) -> Any:
        """Run pixels through the vision tower and projector; returns transformers' own output, one entry per picture."""
        encode = self.model.base_model.get_image_features
        accepted = {key: inputs[key] for key in inspect.signature(encode).parameters if key in inputs}
        try:
            return encode(**accepted, return_dict=True)
        except (TypeError, ValueError) as error:  # families that tile a picture need more than its pixels
            raise ModelError(f"{type(self.model).__name__}: changed pictures cannot be encoded here ({error})") from error

    @property
    def image_block_ids(self) -> tuple[int, ...]:
        """The placeholder, and the markers around it that mean nothing without a picture."""
        markers = [getattr(self.config, name, None) for name in ("boi_token_id", "eoi_token_id")]
        markers += [getattr(self.processor, name, None) for name in ("start_image_token_id", "end_image_token_id")]
        return (self.image_token_id, *(marker for marker in markers if isinstance(marker, int)))

    def positions(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Position ids of left-padded rows, as the model's own generate computes them: [B, T], or [4, B, T] with M-RoPE."""
        positions: Tensor = self.model._prepare_position_ids_for_generation(inputs["input_ids"], dict(inputs))
        return positions

    def pictures(self, inputs: Mapping[str, Tensor]) -> list[slice]:
        """The rows of the pixels that belong to each picture."""
        return [slice(row, row + 1) for row in range(len(inputs[self.pixel_keys[0]]))]

    def picture_maps(self, inputs: Mapping[str, Tensor]) -> list[tuple[int, int]]:  # noqa: ARG002
        """Rows and columns of each picture's map; its tokens stand in the prompt row by row."""
        raise ModelError(f"{self.config.model_type}: its image tokens are not known to form one map of the picture")

    @property
    def input_side(self) -> int | None:
        """The side in pixels of the square that every picture is brought to; None: pictures keep their proportions."""
        return None

    def null_pixels(self, inputs: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
        """Normalised pixels of the same shape that show a null image: "mean_colour", "black_same_size" or "noise"."""
        null = {}
        for key in self.pixel_keys:
            pixels = inputs[key]
            null[key] = torch.zeros_like(pixels)  # the mean colour
            if kind == "black_same_size":
                null[key] += self.per_channel(self._black(), pixels)
            elif kind == "noise":
                null[key] += torch.cat([self._noise(pixels[rows]) for rows in self.pictures(inputs)]).to(pixels.device)
        return null

    def _black(self) -> Tensor:
        """Black after normalisation, one number per channel."""
        images = self._require_processor().image_processor
        mean, std = torch.tensor(images.image_mean), torch.tensor(images.image_std)
        return -mean / std

    def _noise(self, pixels: Tensor) -> Tensor:
        """Noise on grey in place of one picture: the same for every picture of a size, whatever else is in the batch."""
        values = (torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0)) * NOISE + 0.5).clamp(0, 1)
        std = torch.tensor(self._require_processor().image_processor.image_std)
        return self.per_channel(self._black(), values) + values / self.per_channel(std, values)

    def per_channel(self, values: Tensor, pixels: Tensor) -> Tensor:
        """Values [channels] with the pixels' dtype and device, in a shape that broadcasts to [..., channels, height, width]."""
        return values.to(pixels).view(-1, 1, 1)

    def rewrite(self, inputs: Mapping[str, Tensor], edit: Callable[[Ids, int, int], Ids]) -> dict[str, Tensor]:
        """Edit rows as lists and left pad them again; `edit` gets a row and the start and end of its image block."""
        rows = [edit(row, *find_block(row, self.image_token_id, self.image_block_ids)) for row in split_rows(inputs)]
        return join_rows(rows, inputs, pad=self.pad_id, image=self.image_token_id)

    def without_image(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same rows without their image tokens, left padded again; the text around them stays (text_only_prompts.py)."""
        rows = [[token for token in row if token not in self.image_block_ids] for row in split_rows(inputs)]
        return join_rows(rows, inputs, pad=self.pad_id, image=self.image_token_id)

    @property
    def pad_id(self) -> int:
        """The padding token; it is masked, so any token would do."""
        pad = self.model.generation_config.pad_token_id
        return pad if isinstance(pad, int) and pad >= 0 else 0

    # --- picture and prompt to tensors -------------------------------------------------------------------------

    def prepare_processor(self) -> None:
        """Make the processor pad on the left with a real pad token."""
        tokenizer = self.processor.tokenizer
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token

    @property
    def template(self) -> str:
        return find_template(self._require_processor(), self.fallback_template, self.name)

    @property
    def placeholder(self) -> str | None:
        """What stands for a picture in a rendered prompt; None: nothing does, its place is always before the prompt."""
        named = getattr(self._require_processor(), "boi_token", None)
        return str(named or self.tokenizer.convert_ids_to_tokens(self.image_token_id))

    def state_template(self, stated: str) -> None:
        """Write prompts like this text, with {question} and {image} in their places, whatever template the processor has."""
        self._require_processor().chat_template = chat_template(stated, self.placeholder, self.name)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest entry of the vocabulary."""
        return max(map(len, self.tokenizer.get_vocab()), default=1)

    def words(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token as an answer of its own."""
        texts = self.tokenizer.batch_decode([[token] for token in tokens], skip_special_tokens=True)
        return [str(text).strip() for text in texts]

    def render(self, prompt: str, *, pictures: int = 1, system: str | None = None) -> str:
        """The prompt in the chat template, behind a placeholder for each picture; `system` adds a system message."""
        self._refuse_placeholders(check_prompt(prompt))
        content: list[dict[str, str]] = [{"type": "image"}] * pictures
        turn = {"role": "user", "content": [*content, {"type": "text", "text": prompt}]}
        if system is None:
            text = self._render([turn])
            if not pictures and str(self.tokenizer.convert_ids_to_tokens(self.image_token_id)) in text:
                raise PromptError(
                    f"{self.name}: its chat template leaves room for a picture where there is none: give a picture"
                )
            return text
        if why := lone_surrogate(system):
            raise PromptError(f"the system text: {why}; write the character itself")
        texts = {role: self._render([message(role, system), turn], or_empty=True) for role in ("system", "assistant")}
        if system not in texts["system"] or texts["system"] == texts["assistant"]:
            raise PromptError(f"{self.name}: its chat template has no system role; leave the system text out")
        return texts["system"]

    def _refuse_placeholders(self, prompt: str) -> None:
        """Refuse image placeholders in the prompt: the processor would look for a picture that is not there."""
        ids = [self.image_token_id, getattr(self.config, "video_token_id", None)]
        tokens = self.tokenizer.convert_ids_to_tokens([token for token in ids if isinstance(token, int) and 0 <= token < 2**31])
        for token in (*tokens, *(getattr(self.processor, name, None) for name in ("image_token", "boi_token"))):
            if token and str(token) in prompt:
                raise PromptError(f"the prompt contains {token}, where {self.name} puts a picture itself: leave {token} out")

    def _render(self, messages: list[dict[str, Any]], *, or_empty: bool = False) -> str:
        options = {"chat_template": self.template, "add_generation_prompt": True, "tokenize": False}
        processor = self._require_processor()
        try:
            text = render_template(lambda: processor.apply_chat_template(messages, **options), self.name)
        except TemplateError as error:  # templates refuse unknown roles
            if not or_empty:
                raise broken_template(self.name, error) from error
            return ""
        return check_characters(self, text)

    def tokenize(self, text: str) -> Ids:
        """The tokens of a rendered text, as in `encode`."""
        ids: Ids = self._tokenize(text)["input_ids"]
        return ids

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The characters [start, end) of each token of `tokenize`; an empty span for an added token."""
        if not self.tokenizer.is_fast:
            raise ModelError(f"{self.name}: its tokenizer does not say where tokens are in a text; load the fast one")
        spans: list[tuple[int, int]] = self._tokenize(text, return_offsets_mapping=True)["offset_mapping"]
        return spans

    def _tokenize(self, text: str, **options: Any) -> Any:
        bos = self.tokenizer.bos_token  # the template may have written it already
        with tokenizer_faults(self.name):
            return self.tokenizer(text, add_special_tokens=bos is None or not text.startswith(bos), **options)

    def encode(self, images: Sequence[Shown], prompts: Sequence[str]) -> dict[str, Tensor]:
        """Turn rows of picture (or several, or None) and prompt into model inputs: left padded, on the model's device."""
        if len(images) != len(prompts):
            raise PromptError(f"{len(images)} images but {len(prompts)} prompts: give one image a prompt")
        opened = [_open(image) for image in images]
        texts = [self.render(p, pictures=len(pictures_in(i))) for i, p in zip(images, prompts, strict=True)]
        return self.encode_rendered(opened, texts)

    def encode_rendered(
        self, images: Sequence[Image.Image | list[Image.Image] | Prepared | None], texts: Sequence[str]
    ) -> dict[str, Tensor]:
        """`encode` for rendered prompts and opened pictures; either all pictures of a batch are prepared, or none."""
        unprepared = [image for image in images if not isinstance(image, Prepared)]
        if len(unprepared) == len(images):
            inputs = process(self._require_processor(), unprepared, texts, self.name)
            check_tokens(self, inputs["input_ids"].tolist())
            return {key: value.to(self.device) for key, value in inputs.items()}
        if any(image is not None for image in unprepared):
            raise ImageError("some pictures of this batch are prepared and some are not: prepare all of them, or none")
        return assemble(self, [image if isinstance(image, Prepared) else None for image in images], texts)

    def blind(self, prompts: Sequence[str], null: str = "black336", size: tuple[int, int] | None = None) -> dict[str, Tensor]:
        """Encode prompts with a null image, to read the model's prior."""
        picture = null_image(null, self._require_processor(), size)
        texts = [self.render(prompt, pictures=int(picture is not None)) for prompt in prompts]
        return self.encode_rendered([picture] * len(texts), texts)

    def _require_processor(self) -> Any:
        if self.processor is None:
            raise ModelError(f"{self.name} was given without its processor: use mgap.wrap(model, processor)")
        return self.processor

    # --- identity ----------------------------------------------------------------------------------------------

    @property
    def hidden_size(self) -> int:
        """The width of the states that the head reads."""
        return int(self.config.get_text_config().hidden_size)

    @property
    def identity(self) -> Identity:
        """Read from the weights as they are now: milliseconds, whatever the model's size."""
        embedding: nn.Module = self.model.get_input_embeddings()
        weights, has_others = named_weights(self.model)
        return Identity(
            name=self.name,
            revision=getattr(self.config, "_commit_hash", None),
            architecture=type(self.model).__name__,
            hidden_size=self.hidden_size,
            vocab_size=len(embedding.weight),  # type: ignore[arg-type]
            sample=sample_embedding(embedding),
            tensors=describe_tensors(weights),
            is_partial=has_others,
        )

    def template_hash(self) -> str:
        return hashlib.sha256(self.template.encode()).hexdigest()


def _open(shown: Shown) -> Image.Image | list[Image.Image] | Prepared | None:
    """What a row shows, opened."""
    if shown is None or isinstance(shown, Prepared):
        return shown
    if not isinstance(shown, list | tuple):
        return open_image(shown)
    if not shown or any(isinstance(picture, Prepared) for picture in shown):
        raise ImageError("several pictures of one prompt are given as pictures or files, none of them prepared; None is none")
    return [open_image(picture) for picture in shown if not isinstance(picture, Prepared)]


def backbone_class(config: Any) -> type[Backbone]:
    """The class for a model's family; `Backbone` itself for an unknown family."""
    kind = refuse_own_loop(config.model_type)
    family: type[Backbone] = BACKBONES.get(kind) if kind in BACKBONES else Backbone
    return family


def families_that(capability: str) -> list[str]:
    """The model types whose backbone class declares a capability, such as "shares_prefill"."""
    return sorted(kind for kind, family in BACKBONES.loaded().items() if getattr(family, capability))


class HasBackbone(Protocol):
    """Anything that carries a backbone, such as the object that `mgap.load` returns."""

    @property
    def backbone(self) -> Backbone: ...
