"""InstructBLIP with a language model that only decodes, such as Vicuna: a Q-Former reads the picture with the prompt in mind.

    [picture's tokens] [BOS] prompt      the rows that the language model reads, left padded
    prompt                               what the Q-Former reads with the picture, padded on the right: positions start at 0

So a picture's tokens depend on its prompt: they are not prepared apart, nor shared between prompts, and a branch whose text is
another one is refused. transformers' class generates through its language model alone, and reads no text without a picture;
ours has the forward and the generate that other families have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import transformers
from packaging.version import Version
from PIL import Image
from torch import Tensor, nn
from transformers import GenerationMixin

from mgap.backbones.base import Backbone
from mgap.backbones.decoding_limits import check_tokens
from mgap.backbones.picture_layout import FixedGrid, PictureLayout
from mgap.backbones.prepared_pictures import Prepared, processor_faults
from mgap.backbones.token_rows import Ids, join_rows, split_rows
from mgap.errors import ImageError, ModelError, PromptError

OLDEST = "5.18"  # transformers from which on `generate` encodes pictures before the first forward
QUESTION = ("qformer_input_ids", "qformer_attention_mask")


class InstructBlipForConditionalGeneration(transformers.InstructBlipForConditionalGeneration):  # its name is in checkpoints
    """The same weights. Text without a picture goes to the language model alone."""

    main_input_name = "input_ids"
    generate = GenerationMixin.generate
    asked: Mapping[str, Tensor]  # what the Q-Former read last, beside the pictures

    def get_image_features(
        self,
        pixel_values: Tensor,
        qformer_input_ids: Tensor | None,
        qformer_attention_mask: Tensor | None = None,
        **options: Any,
    ) -> Any:
        given = zip(QUESTION, (qformer_input_ids, qformer_attention_mask), strict=True)
        self.asked = {name: value for name, value in given if value is not None}
        return super().get_image_features(pixel_values, **self.asked, **options)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        pixel_values: Tensor | None = None,
        qformer_input_ids: Tensor | None = None,
        qformer_attention_mask: Tensor | None = None,
        mm_encoder_outputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        embeds = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds  # [B, T, d]
        pictures = (mm_encoder_outputs or {}).get("image")
        if pictures is None and pixel_values is not None:
            pictures = self.get_image_features(pixel_values, qformer_input_ids, qformer_attention_mask, return_dict=True)
        if pictures is not None:
            mask = self.get_placeholder_mask(input_ids, inputs_embeds=embeds)
            embeds = embeds.masked_scatter(mask, pictures.pooler_output.to(embeds))
        where = {"attention_mask": attention_mask, "position_ids": position_ids, "past_key_values": past_key_values}
        return self.language_model(inputs_embeds=embeds, **where, **options)


class InstructBlip(Backbone):
    """The prompt is the question itself, as in transformers' example; the picture stands before it and before the BOS token."""

    fallback_template = (
        "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'text' %}"
        "{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
    )
    pictures_read_prompts = True
    model_class = InstructBlipForConditionalGeneration
    picture_layout: ClassVar[PictureLayout | None] = FixedGrid()
    placeholder = None

    def __init__(self, model: nn.Module, processor: Any = None, *, name: str | None = None) -> None:
        if isinstance(model, transformers.InstructBlipForConditionalGeneration) and not isinstance(model, self.model_class):
            raise ModelError(
                "InstructBLIP as transformers loads it generates around its own forward, where a second branch cannot follow: "
                "load it with mgap.load, which has the same weights and answers"
            )
        if Version(transformers.__version__) < Version(OLDEST):
            raise ModelError(f"InstructBLIP needs transformers {OLDEST} or newer here, and this is {transformers.__version__}")
        super().__init__(model, processor, name=name)

    @property
    def input_side(self) -> int:
        return int(self.config.vision_config.image_size)

    def tower_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """With what the Q-Former reads beside these pictures, so that a branch can encode changed ones."""
        return {**super().tower_inputs(args, kwargs), **self.model.asked}

    def rewrite(self, inputs: Mapping[str, Tensor], edit: Callable[[Ids, int, int], Ids]) -> dict[str, Tensor]:
        """Rows may lose their picture, or stay; the Q-Former would have to read any other text again."""
        rewritten = super().rewrite(inputs, edit)
        for before, after in zip(split_rows(inputs), split_rows(rewritten), strict=True):
            if after != before and self.image_token_id in after:
                raise PromptError(
                    f"{self.name}: its Q-Former reads the prompt with the picture, so that a branch with another text beside a "
                    "picture is not supported: use a method that changes the picture, or leaves it out"
                )
        return rewritten

    def encode_rendered(
        self, images: Sequence[Image.Image | list[Image.Image] | Prepared | None], texts: Sequence[str]
    ) -> dict[str, Tensor]:
        shown = [image for image in images if isinstance(image, Image.Image)]
        if len(shown) < sum(image is not None for image in images):
            raise ImageError(f"{self.name} reads one picture a prompt, not several, and none that was prepared before")
        block = [self.image_token_id] * self.config.num_query_tokens
        rows = [
            [*(block if image is not None else ()), *self.tokenize(text)] for image, text in zip(images, texts, strict=True)
        ]
        check_tokens(self, rows)
        asked = [text for image, text in zip(images, texts, strict=True) if image is not None]
        processor = self._require_processor()
        with processor_faults(self.name):
            like = self.tokenizer([""], return_tensors="pt", add_special_tokens=True)
            inputs = join_rows(rows, like, pad=self.tokenizer.pad_token_id, image=self.image_token_id)
            if shown:
                inputs["pixel_values"] = processor.image_processor(shown, return_tensors="pt")["pixel_values"]
                read = processor.qformer_tokenizer(asked, padding=True, padding_side="right", return_tensors="pt")
                inputs |= dict(zip(QUESTION, (read["input_ids"], read["attention_mask"]), strict=True))
        if shown:
            self._check_question(inputs[QUESTION[0]])
        return {key: value.to(self.device) for key, value in inputs.items()}

    def _check_question(self, ids: Tensor) -> None:
        """Refuse a prompt that is longer than the Q-Former can read, or that has tokens it does not know."""
        reader = self.config.qformer_config
        if ids.shape[1] > reader.max_position_embeddings:
            raise PromptError(
                f"the prompt has {ids.shape[1]:,} tokens for the Q-Former of {self.name}, which reads "
                f"{reader.max_position_embeddings:,} at most: shorten it"
            )
        if int(ids.max()) >= reader.vocab_size:
            raise ModelError(
                f"{self.name}: its Q-Former's tokenizer gives token {int(ids.max())}, and its embedding has "
                f"{reader.vocab_size} rows"
            )
