"""Write pocket-POPE as a parquet file with the columns of lmms-eval's POPE: python make_data.py FILE [split] [scenes]."""

import sys

from datasets import Dataset, Features, Image, Value

from mgap.pocket.benchmark import pope
from mgap.pocket.scenes import render

FEATURES = Features({"question_id": Value("int64"), "image": Image(), "question": Value("string"), "answer": Value("string")})


def rows(split: str, scenes: int):
    for number, question in enumerate(pope(split, count=scenes), start=1):
        record = question.record(number)
        yield {"question_id": number, "image": render(question.scene), "question": record["text"], "answer": record["label"]}


def main(file: str, split: str = "adversarial", scenes: str = "10") -> None:
    data = Dataset.from_list(list(rows(split, int(scenes))), features=FEATURES)
    data.to_parquet(file)
    print(f"{len(data)} questions in {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
