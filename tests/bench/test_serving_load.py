"""What bench/serving_load.py says of two servers' figures, and the vocabulary that bench/checkpoints.py fills."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from mgap.pocket.tiny import build_tiny


@pytest.fixture
def bench(monkeypatch):
    """`bench(name)`: a script of bench/."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench"))
    yield import_module
    for name in ("checkpoints", "measure", "serving_load"):
        sys.modules.pop(name, None)


def row(way, level, number, rate):
    figures = {
        "output_throughput": rate,
        "median_ttft_ms": 20.0,
        "p99_ttft_ms": 30.0,
        "median_tpot_ms": 4.0,
        "p99_tpot_ms": 5.0,
    }
    return {"model": "llava", "way": way, "level": level, "round": number, **figures}


ROWS = [
    *(row("plain", 1, number, 100.0 + 10 * number) for number in range(3)),
    *(row("mgap", 1, number, 99.0 + 10 * number) for number in range(3)),
    row("plain", 8, 0, 700.0),
    row("mgap", 8, 0, 693.0),
]


def test_medians_and_ratios_of_the_same_round(bench):
    told = bench("serving_load").written(ROWS).splitlines()
    assert told[2] == "| llava | 1 | 110 / 109 | 20 / 20 | 30 / 30 | 4.00 / 4.00 | 5.00 / 5.00 | 0.991 (0.990 to 0.992) |"
    assert told[3].startswith("| llava | 8 | 700 / 693 |")
    assert told[3].endswith("| 0.990 (0.990 to 0.990) |")


def test_the_figure_has_every_median(bench, tmp_path, capsys):
    (tmp_path / "load.json").write_text(json.dumps({"about": "a card", "rows": ROWS}))
    bench("serving_load").main(["--draw", str(tmp_path / "load.json"), str(tmp_path)])
    assert "a card\n\n| model |" in capsys.readouterr().out
    lines = (tmp_path / "serving-load.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 * 2 * 2  # quantities, ways, levels
    assert (tmp_path / "serving-load.png").stat().st_size > 5000


def test_every_token_of_a_vocabulary_has_a_word(bench, tmp_path):
    from tokenizers import Tokenizer

    build_tiny("llava", tmp_path)
    before = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    bench("checkpoints").fill_vocabulary(tmp_path / "tokenizer.json", 600)
    after = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert all(after.id_to_token(number) for number in range(600))
    assert after.decode([599, 598]) == " w599 w598"
    words = "Is there a dog in the image?"
    assert after.encode(words).ids == before.encode(words).ids
