"""Prompts without their picture: the tokens that the chat template gives for the same conversation without one.

Taking a placeholder out of a row leaves what the template, or the processor, writes around it: LLaVA's `USER: <image>\\nIs`
would become `USER: \\nIs`, where a text-only prompt is `USER: Is`. So what comes with a picture is found once, on attaching,
from a prompt encoded with a picture and without. It is taken out of each row's text, which is then tokenized again. The result
is the prompt that a prior is fitted on with the null image "no_image".
"""

from __future__ import annotations

from collections.abc import Mapping

from PIL import Image
from torch import Tensor

from mgap.backbones.base import Backbone
from mgap.backbones.token_rows import Ids, decode_exact, find_block, split_rows, tokenize_text
from mgap.errors import ModelError, PromptError

_PROBE = "Is it?"
_OTHERWISE = 'use another null image, such as "black_same_size"'


class TextOnlyPrompts:
    """Takes the picture out of encoded prompts. Needs the processor; raises ModelError if the template does not allow it."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        shown, text = backbone.render(_PROBE), backbone.render(_PROBE, pictures=0)
        (row,) = split_rows(backbone.encode_rendered([Image.new("RGB", (64, 64))], [shown]))
        expected = backbone.tokenize(text)
        self.before = self.after = ""  # what is written around a picture
        try:
            head, tail = self._around(row, *self._block(row))
            text = text.removeprefix(backbone.tokenizer.bos_token or "")
            common = next((n for n, pair in enumerate(zip(head, text, strict=False)) if len({*pair}) > 1), len(head))
            self.before, self.after = head[common:], tail.removesuffix(text[common:])
            found = self._edit(row, *self._block(row))
        except PromptError as error:
            raise ModelError(
                f"{backbone.name}: its prompts cannot be read without a picture ({error}); {_OTHERWISE}"
            ) from error
        if found != expected:
            raise ModelError(
                f"{backbone.name}: its chat template writes another text without a picture than around one; {_OTHERWISE}"
            )

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows without their pictures, left padded again; raises PromptError if a row is not the chat template's."""
        return self.backbone.rewrite(inputs, self._edit)

    def _block(self, row: Ids) -> tuple[int, int]:
        return find_block(row, self.backbone.image_token_id, self.backbone.image_block_ids)

    def _around(self, ids: Ids, start: int, end: int) -> tuple[str, str]:
        """The texts before and after the picture, without a BOS token."""
        tokenizer, opening = self.backbone.tokenizer, self._opening(ids)
        head = decode_exact(tokenizer, ids[opening:start], right=ids[start])
        tail = decode_exact(tokenizer, ids[end:], left=ids[end - 1])
        if head is None or tail is None:
            raise PromptError(f"the tokens of a prompt are not those of its text, so that its picture cannot go; {_OTHERWISE}")
        return head, tail

    def _edit(self, ids: Ids, start: int, end: int) -> Ids:
        if start == 0 and ids[end : end + 1] == [self.backbone.tokenizer.bos_token_id]:
            return ids[end:]  # the picture stands before everything else
        head, tail = self._around(ids, start, end)
        if not (head.endswith(self.before) and tail.startswith(self.after)):
            written = f"{self.before}<picture>{self.after}"
            raise PromptError(
                f"a prompt does not have {written!r}, as the chat template writes it; write it so, or {_OTHERWISE}"
            )
        text = head.removesuffix(self.before) + tail.removeprefix(self.after)
        return ids[: self._opening(ids)] + tokenize_text(self.backbone.tokenizer, text)

    def _opening(self, ids: Ids) -> int:
        return int(ids[0] == self.backbone.tokenizer.bos_token_id)
