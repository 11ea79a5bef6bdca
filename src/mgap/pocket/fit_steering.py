"""Steering vectors of a pocket model (ASD's calibration): its own captions of development scenes, labelled exactly."""

from __future__ import annotations

from mgap.decoding.model import Model
from mgap.io.progress import Progress, report_progress
from mgap.pocket.benchmark import DEVELOPMENT, scenes
from mgap.pocket.language import DESCRIBE, mention_spans
from mgap.pocket.scenes import Scene, render
from mgap.priors.steering import Caption, Steering


def fit_steering(
    model: Model, first: int = DEVELOPMENT, count: int = 300, *, batch_size: int = 64, progress: Progress | None = None
) -> Steering:
    """The model describes scenes, and each word that names a thing is true or invented; other words count as neither."""
    shown = list(scenes(first, count))
    pictures = [render(scene) for scene in shown]
    texts = []
    for answer in model.answers(pictures, [DESCRIBE[0]] * count, batch_size=batch_size, max_new_tokens=96):
        texts.append(answer.text)
        report_progress(progress, "captions for steering", len(texts), count)
    captions = [Caption(*row) for row in zip(pictures, [DESCRIBE[0]] * count, map(label_caption, texts, shown), strict=True)]
    told = None if progress is None else lambda done: progress("steering", done, count)
    return Steering.fit(model, captions, progress=told)


def label_caption(text: str, scene: Scene) -> list[tuple[str, bool | None]]:
    """The caption in pieces: words for things that are drawn, for things that are not, and all others."""
    pieces: list[tuple[str, bool | None]] = []
    done = 0
    for name, start, end in mention_spans(text):
        pieces += [(text[done:start], None), (text[start:end], name in scene.names)]
        done = end
    return [(piece, label) for piece, label in (*pieces, (text[done:], None)) if piece]
