"""`mgap score chair`: score a file of captions with CHAIR."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.options import UnfinishedInFile
from mgap.errors import SettingError
from mgap.io.strict_json import strict_json
from mgap.settings import check_choice

if TYPE_CHECKING:
    from mgap.benchmarks.chair.truth import GroundTruth
    from mgap.benchmarks.statistics import Rate
    from mgap.benchmarks.tally import Tally
    from mgap.types import Sample

_PUBLISHED = {"CHAIRs": "CHAIRs", "CHAIRi": "CHAIRi", "recall": "Recall", "precision": "Precision", "f1": "F1", "length": "Len"}


def chair(
    captions: Annotated[str, typer.Option(help="JSON lines or a JSON array with image_id and caption.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder with chair/gt_val2014.json, or COCO's instances_*.json and captions_*.json; default: download COCO's."
        ),
    ] = None,
    language: Annotated[
        str,
        typer.Option(
            autocompletion=completion.language,
            help="nltk, as published (from the folder's tables if it has them, else with NLTK's own data), or builtin.",
        ),
    ] = "nltk",
    cut: Annotated[int | None, typer.Option(help="Score only the first N words of each caption.")] = None,
    match: Annotated[str | None, typer.Option(help="Cut captions to the mean length of those in this file.")] = None,
    match_recall: Annotated[str | None, typer.Option(help="Cut captions to the recall of those in this file.")] = None,
    lengths: Annotated[
        bool, typer.Option("--lengths", help="Also score captions cut after 25, 40, 50, 60 and 80 words.")
    ] = False,
    unfinished: UnfinishedInFile = "keep",
    id_key: Annotated[str, typer.Option(help="The file's key for the image id.")] = "image_id",
    caption_key: Annotated[str, typer.Option(help="The file's key for the caption.")] = "caption",
    per_caption: Annotated[
        str | None, typer.Option(help="Also write the objects found in each caption to this file, as JSON lines.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all decimals; Len is divided by 100 there.")] = False,
) -> None:
    """Score captions of COCO pictures as the published scorers do; every score names its language and its conventions.

    Example: mgap score chair --captions captions.jsonl --data DIR --language builtin
    """
    from mgap.benchmarks.answer_texts import DROP, UNFINISHED, AnswerTexts
    from mgap.benchmarks.caption_cuts import CaptionCuts
    from mgap.benchmarks.chair.questions import read_captions, read_lexicon
    from mgap.benchmarks.chair.scorer import ChairScorer, by_length, tally_mentions
    from mgap.benchmarks.chair.truth import find_truth
    from mgap.benchmarks.language import check_language
    from mgap.benchmarks.language.nltk_pipeline import has_tables
    from mgap.benchmarks.published_files import find_data
    from mgap.io.output_folder import check_folder, write_files

    if (cut is not None) + (match is not None) + (match_recall is not None) + lengths > 1:
        raise SettingError("--cut, --match, --match-recall and --lengths each say where to cut: give one of them")
    if cut is not None and cut < 1:
        raise SettingError(f"--cut {cut}: keep at least 1 word")
    if per_caption is not None:
        check_folder(Path(per_caption).parent, (Path(per_caption).name,))
    check_language(language)  # before COCO's annotations are downloaded
    check_choice("unfinished", unfinished, UNFINISHED)
    other = match if match is not None else match_recall
    rows, others = (read_captions(path, id_key, caption_key) if path is not None else [] for path in (captions, other))
    uncut, theirs = (AnswerTexts({str(number): text for number, (_, text) in enumerate(each)}) for each in (rows, others))
    folder = find_data("chair", data)
    tables = next((str(place) for place in (folder, folder.parent) if has_tables(place)), None)
    scorer = ChairScorer(read_lexicon(folder), language, tables if language == "nltk" else None, unfinished)
    truth = find_truth(folder, scorer.lexicon, scorer.finder.classes)
    samples = _samples(rows, truth)
    if match is not None:
        cut = CaptionCuts(scorer, samples, uncut).to_length(theirs)
    if match_recall is not None:
        cut = CaptionCuts(scorer, samples, uncut).to_recall(theirs.tally(scorer, _samples(others, truth)))
    scored = uncut.cut(cut)
    found = [scorer.mentions(text) for text in scored.scored(unfinished).values()]
    if per_caption is not None:
        told = ({"image_id": i, **m.to_json(s.truth)} for (i, _), s, m in zip(rows, samples, found, strict=True))
        lines = "".join(strict_json(line, ensure_ascii=False) + "\n" for line in told)
        write_files(Path(per_caption).parent, {Path(per_caption).name: lines})
    tally = tally_mentions(samples, found)
    table = by_length(scorer, samples, uncut.texts) if lengths else {}
    rates, dropped = tally.rates(), scored.dropped() if unfinished == DROP else None
    if as_json:
        made = {**scorer.settings(), "cut": cut, "dropped": None if dropped is None else asdict(dropped)}
        print(strict_json(_json(made, tally, rates, table), indent=1))
        return
    first = "" if cut is None else f", the first {cut} words of each"
    print(f"{len(samples):,} captions{first}; language {language}, unfinished {unfinished}")
    if dropped is not None:
        print(f"{dropped.shortened:,} lost an unfinished last sentence; {dropped.without_end:,} without an end were kept whole")
    for name, rate in rates.items():
        print(f"{_PUBLISHED[name]:<10} {_shown(name, rate)}{'' if rate.of else '  (0 out of 0)'}")
    if table:
        print(f"\n{'words':<6}" + "".join(f"{name:>11}" for name in _PUBLISHED.values()))
    for words, row in table.items():
        print(f"{words or 'all':<6}" + "".join(f"{_scale(name) * rate.value:>11.1f}" for name, rate in row.items()))


def _samples(rows: list[tuple[int, str]], truth: GroundTruth) -> list[Sample]:
    """One for each caption; a picture may have several."""
    from mgap.types import Sample

    classes = truth.of([i for i, _ in rows])
    return [Sample(str(number), str(i), "", "captions", classes[i]) for number, (i, _) in enumerate(rows)]


def _json(
    settings: dict[str, Any], tally: Tally, rates: dict[str, Rate], table: dict[int | None, dict[str, Rate]]
) -> dict[str, Any]:
    """With the keys of the published scorers. Rates are fractions; the length is divided by 100 too, as theirs is."""
    from mgap.benchmarks.chair.scorer import COLUMNS

    return {
        **settings,
        "overall": _overall(rates),
        "counts": {name: int(count) for name, count in zip(COLUMNS, tally.counts.sum(0), strict=True)},
        "intervals": {_PUBLISHED[name]: [rate.low * _unit(name), rate.high * _unit(name)] for name, rate in rates.items()},
        "undefined": [_PUBLISHED[name] for name, rate in rates.items() if rate.of == 0],
        **({"lengths": {str(words or "all"): _overall(row) for words, row in table.items()}} if table else {}),
    }


def _overall(rates: dict[str, Rate]) -> dict[str, float]:
    return {_PUBLISHED[name]: rate.value * _unit(name) for name, rate in rates.items()}


def _unit(name: str) -> float:
    return 0.01 if name == "length" else 1.0


def _scale(name: str) -> float:
    return 1.0 if name == "length" else 100.0


def _shown(name: str, rate: Rate) -> str:
    value, low, high = (_scale(name) * part for part in (rate.value, rate.low, rate.high))
    return f"{value:>6.2f}  [{low:.2f}, {high:.2f}]{' tokens' if name == 'length' else ''}"
