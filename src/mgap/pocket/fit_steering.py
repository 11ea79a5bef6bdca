"""Fits a pocket model's steering vectors (ASD's calibration) on its own captions of development scenes, labelled exactly."""

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
    """The model describes scenes. Each word for a thing is labelled true or invented; other words are neither."""
    shown = list(scenes(first, count))
    pictures = [render(scene) for scene in shown]
    texts = []
    for answer in model.answers(pictures, [DESCRIBE[0]] * count, batch_size=batch_size, max_new_tokens=96):
        texts.append(answer.text)
        report_progress(progress, "captions for steering", len(texts), count)
    captions = [Caption(*row) for row in zip(pictures, [DESCRIBE[0]] * count, map(label_caption, texts, shown), strict=True)]
    report = None if progress is None else lambda done: progress("steering", done, count)
    return Steering.fit(model, captions, progress=report)


def label_caption(text: str, scene: Scene) -> list[tuple[str, bool | None]]:
    """The caption in labelled pieces: words for drawn things (True), for others (False), and the rest (None)."""
    pieces: list[tuple[str, bool | None]] = []
    done = 0
    for name, start, end in mention_spans(text):
        pieces += [(text[done:start], None), (text[start:end], name in scene.names)]
        done = end
    return [(piece, label) for piece, label in (*pieces, (text[done:], None)) if piece]
