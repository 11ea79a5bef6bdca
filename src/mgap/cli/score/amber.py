"""`mgap score amber`: score a file of responses to AMBER."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mgap.cli import completion
from mgap.cli.options import UnfinishedInFile
from mgap.errors import BenchmarkError, SettingError
from mgap.io.strict_json import load_json, strict_json


def amber(
    responses: Annotated[str, typer.Option(help='JSON: [{"id": 1, "response": "..."}, ...] or [[1, "..."], ...].')],
    data: Annotated[str | None, typer.Option(help="Folder with AMBER's files; default: download them.")] = None,
    language: Annotated[
        str,
        typer.Option(
            autocompletion=completion.language,
            help="How to read descriptions: nltk, as published (with tables in or beside the folder if there are any, else "
            "NLTK's own data), or builtin.",
        ),
    ] = "nltk",
    normaliser: Annotated[
        str, typer.Option(help="How to read Yes and No: first-sentence, original, haltrapper, mod or lmms_eval.")
    ] = "first-sentence",
    similarity: Annotated[
        str, typer.Option(help="Which words count as the same: identical, a table's file, spacy or spacy:MODEL.")
    ] = "identical",
    unfinished: UnfinishedInFile = "keep",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: figures as printed, unrounded figures and counters.")
    ] = False,
    per_response: Annotated[str | None, typer.Option(help="Also write the counts of each response to this file.")] = None,
) -> None:
    """Score responses to AMBER as its published scorer does; ids without a response are left out.

    Example: mgap score amber --responses answers.json --data AMBER
    """
    from mgap.benchmarks.amber.official import official
    from mgap.benchmarks.amber.official import per_response as rows
    from mgap.benchmarks.amber.questions import read_amber
    from mgap.benchmarks.amber.scorer import GENERATIVE, AmberScorer
    from mgap.benchmarks.answer_texts import DROP, AnswerTexts, unfinished_of
    from mgap.benchmarks.language import LANGUAGES
    from mgap.benchmarks.language.nltk_pipeline import has_tables
    from mgap.benchmarks.published_files import find_data
    from mgap.io.output_folder import check_folder, write_files

    texts = read_responses(Path(responses))
    if per_response is not None:
        check_folder(Path(per_response).parent, (Path(per_response).name,))
    if language not in LANGUAGES:
        raise SettingError(f"unknown language {language!r}: choose from {', '.join(LANGUAGES)}")
    folder = find_data("amber", data)
    benchmark = read_amber(folder)
    if unknown := sorted(set(texts) - {sample.id for sample in benchmark.samples}):
        raise BenchmarkError(f"{responses}: id {unknown[0]} is none of AMBER's; remove {len(unknown)} such responses")
    answered = [sample for sample in benchmark.samples if sample.id in texts]
    tables = next((place for place in (folder, folder.parent) if has_tables(place)), None)
    reading: dict[str, Any] = {}  # yes/no questions need no language
    described = [sample for sample in answered if sample.group == GENERATIVE]
    if described:
        reading = {"language": language, **({"language_data": str(tables)} if language == "nltk" and tables else {})}
    scorer = AmberScorer.of(benchmark.lexicon, **reading, normaliser=normaliser, similarity=similarity, unfinished=unfinished)
    settings = {name: value for name, value in scorer.settings().items() if reading or name not in ("language", "unfinished")}
    if unfinished_of(scorer, answered) == DROP:
        settings["dropped"] = asdict(AnswerTexts(texts).of(described).dropped())
    judged = scorer.judge(answered, texts)
    figures = official(answered, judged)
    if per_response is not None:
        text = strict_json(rows(answered, judged), indent=1, ensure_ascii=False)
        write_files(Path(per_response).parent, {Path(per_response).name: text + "\n"})
    if as_json:
        print(strict_json({"responses": len(answered), "settings": settings, **figures}, indent=1))
        return
    for task, values in figures["printed"].items():
        print(f"{task:<20} " + "  ".join(f"{name} {value:.1f}" for name, value in values.items()))
    if "amber_score" in figures:
        print(f"{'AMBER score':<20} {figures['amber_score']:.2f}")
    print(f"{len(answered)} responses; " + ", ".join(f"{name} {_plain(value)}" for name, value in settings.items()))


def read_responses(path: Path) -> dict[str, str]:
    """Texts by id. Refuses other shapes and repeated ids."""
    try:
        entries = load_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise BenchmarkError(f"{path}: no responses can be read there ({error})") from None
    if not isinstance(entries, list) or not entries:
        raise BenchmarkError(f'{path}: no responses; write [{{"id": 1, "response": "..."}}, ...]')
    texts: dict[str, str] = {}
    for place, entry in enumerate(entries, start=1):
        match entry:
            case {"id": int() as number, "response": str() as text} | [int() as number, str() as text]:
                pass
            case _:
                raise BenchmarkError(
                    f'{path}: entry {place} is {str(entry)[:80]!r}; write {{"id": 1, "response": "..."}} or [1, "..."]'
                )
        if str(number) in texts:
            raise BenchmarkError(f"{path}: id {number} has two responses; keep one of them")
        texts[str(number)] = text
    return texts


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else strict_json(value)
