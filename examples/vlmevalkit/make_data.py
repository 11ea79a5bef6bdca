"""Write pocket-POPE as VLMEvalKit reads POPE: python make_data.py FOLDER [split] [scenes]; FOLDER is what LMUData names."""

import base64
import csv
import io
import sys
from pathlib import Path

from mgap.pocket.benchmark import pope
from mgap.pocket.scenes import render


def encoded(picture) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def main(folder: str, split: str = "adversarial", scenes: str = "10") -> None:
    questions = list(pope(split, count=int(scenes)))
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (Path(folder) / "PocketPOPE.tsv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(["index", "image", "question", "answer", "category"])
        for number, question in enumerate(questions, start=1):
            label = question.record(number)["label"].capitalize()
            table.writerow([number, encoded(render(question.scene)), question.text, label, split])
    print(f"{len(questions)} questions in {file.name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
