"""Small runs on disk, written by hand as the engine writes them."""

import json
from dataclasses import asdict

from mgap.run.records import ANSWERS, FORMAT, RUN, SAMPLES, Record, RunMethod
from mgap.types import Sample

VANILLA, OURS = RunMethod("Vanilla", "vanilla"), RunMethod("Ours", "mgap", {"alpha": 0.75}, {"rank": 5, "count": 50})
PUBLISHED = {
    "table": "Table 1",
    "columns": ["accuracy", "f1"],
    "backbones": [
        {
            "name": "LLaVA-1.5-7B",
            "family": "llava",
            "rows": {"Vanilla": {"random": [88.88, 89.76], "note": "cannot be"}, "VCD": {"random": [87.57, None]}},
        }
    ],
}


def questions(pictures=6, groups=("random", "adversarial")):
    """Two about every picture and group, the first true, the second not."""
    return [
        Sample(f"{group}/{2 * n + k}", f"{n}.png", f"Is there a {('dog', 'cat')[k]}?", group, ("yes", "no")[k])
        for group in groups
        for n in range(pictures)
        for k in (0, 1)
    ]


def answers(samples, wrong=(), *, seconds=0.5, tied=None, **special):
    """Right but for some ids; `tied` ones have a tie, None: not counted; `special` records stand as they are, None: missing."""
    records = []
    for sample in samples:
        if sample.id in special:
            if special[sample.id] is not None:
                records.append(special[sample.id])
            continue
        said = {"yes": "no", "no": "yes"}[sample.truth] if sample.id in wrong else sample.truth
        ties = None if tied is None else int(sample.id in tied)
        records.append(Record(sample.id, f"{said.capitalize()}.", tokens=2, stop="end", milliseconds=1000 * seconds, ties=ties))
    return records


def write_run(folder, samples, answered, *methods, **plan):
    """`answered`: the records of every method by label; `methods`: those that need more than a label."""
    known = {method.label: method for method in (VANILLA, OURS, *methods)}
    methods = [known.get(label, RunMethod(label, label.lower())) for label in answered]
    plan = {
        "format": FORMAT,
        "benchmark": {"name": "pocket-pope", "task": "yesno", "lexicon": {}, "sources": {}, "notes": []},
        "model": {"name": "pocket/llava", "family": "llava", "dtype": "float32"},
        "arms": [asdict(method) for method in methods],
        "scoring": {},
        "decoding": {"max_new_tokens": 16},
        "versions": {"mgap": "0.1.0"},
        "created": "2026-11-15T12:00:00+00:00",
        "command": "mgap run pope",
        **plan,
    }
    folder.mkdir(parents=True)
    (folder / RUN).write_text(json.dumps(plan))
    (folder / SAMPLES).write_text("".join(json.dumps(asdict(sample)) + "\n" for sample in samples))
    for method, records in zip(methods, answered.values(), strict=True):
        (folder / ANSWERS / method.folder).mkdir(parents=True)
        (folder / ANSWERS / method.folder / "0.jsonl").write_text("".join(record.line() for record in records))
    return folder
