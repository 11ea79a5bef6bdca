"""Small files in MME's form, and pictures to go with them, for tests."""

import itertools

from mgap.benchmarks.mme.questions import ENDING, HALLUCINATION
from mgap.pocket.benchmark import TEST, pope
from mgap.pocket.scenes import render


def write_questions(folder, tasks=HALLUCINATION, pictures=3):
    """Every task has pictures of the same names; the first question about each is answered by yes."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        lines = [
            f"{number:04}.jpg\tIs {task} {number} {word}? {ENDING}\t{label}\n"
            for number in range(pictures)
            for word, label in (("there", "Yes"), ("gone", "No"))
        ]
        (folder / f"{task}.txt").write_text("".join(lines))
    return folder


def draw_mme(folder, pictures=2):
    """The four tasks of the hallucination subset about drawn scenes; two of them keep their pictures in `images`."""
    scenes = [list(questions) for _, questions in itertools.groupby(pope("random", TEST, 4 * pictures), lambda q: q.scene.seed)]
    for number, task in enumerate(HALLUCINATION):
        place = folder / task / "images" if number % 2 else folder / task
        place.mkdir(parents=True)
        lines = []
        for index, (yes, no, *_) in enumerate(scenes[number * pictures : (number + 1) * pictures]):
            render(yes.scene).save(place / f"{index}.png")
            lines += [f"{index}.png\t{question.text} {ENDING}\t{question.label.capitalize()}\n" for question in (yes, no)]
        (folder / f"{task}.txt").write_text("".join(lines))
    return folder
