"""What transformers answers to questions about pocket scenes: the reference that vLLM is held against."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

import mgap
from mgap.pocket.benchmark import DEVELOPMENT
from mgap.pocket.samples import SceneRenderer, chair_samples, pope_samples

SCENES = 10  # of each kind of question
TOKENS = 24  # of an answer, at most
torch.set_num_threads(1)  # several processes make references; small models gain nothing from more, and lose all on 16 cores
FIRST = DEVELOPMENT + 50_000  # nothing is chosen, or judged, on these scenes


class World:
    """One pocket model in transformers, its prior, the questions, and its answers at any strength."""

    def __init__(self, family: str, work: Path) -> None:
        self.family, self.draw = family, SceneRenderer()
        self.model = mgap.load(f"pocket/{family}", dtype="float32", device="cpu")
        self.subspace = mgap.Subspace.fit(self.model, mgap.default_prompts())
        self.prior = work / f"prior-{family}"  # its folder, for additional_config
        self.subspace.save(self.prior)
        asked = [*pope_samples(["adversarial"], SCENES, first=FIRST).samples[::6], *chair_samples(SCENES, first=FIRST).samples]
        self.asked = [(sample.image, sample.prompt) for sample in asked]  # a question a scene, then a description of each
        self.answers = cache(self._answers)

    def requests(self, **sampling: Any) -> list[dict[str, Any]]:
        """The questions as engines.py's `generate` takes them."""
        options = {"max_tokens": TOKENS, **sampling}
        return [{"tokens": self.tokens(prompt), "picture": name, "sampling": options} for name, prompt in self.asked]

    def tokens(self, prompt: str) -> list[int]:
        """A prompt as it goes to vLLM, with one placeholder where the picture is."""
        return self.model.backbone.tokenize(self.model.backbone.render(prompt))

    def _answers(self, alpha: float | None = None, **settings: Any) -> list[list[int]]:
        """Tokens of transformers' greedy answers, the end included: plain (None), or under MGAP of the prior."""
        if alpha is None:
            return [self._answer(name, prompt) for name, prompt in self.asked]
        with self.model.using(mgap.MGAP(self.subspace, alpha=alpha, **settings)):
            return self._answers()

    def _answer(self, name: str, prompt: str) -> list[int]:
        return list(self.model.answer(self.draw(name), prompt, max_new_tokens=TOKENS).token_ids)
