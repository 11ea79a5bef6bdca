"""A package that is not installed is asked for by its extra before anything is loaded, fetched or collected in vain."""

import json
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [
        ("scipy", "svd", ["fit", "-m", "no/model", "-o", "prior", "--svd", "lanczos"]),
        ("faiss", "neighbours", ["diagnose", "-m", "pocket/llava", "--search", "approximate"]),
        ("nltk", "bench", ["score", "chair", "--captions", "captions.json"]),
        ("gradio", "inspector", ["inspect", "-m", "no/model"]),
        ("vllm", "vllm", ["serve", "no/model", "--prior", "none"]),
        ("vllm", "vllm", ["run", "pope", "-m", "pocket/llava", "--engine", "vllm"]),
    ],
)
def test_it_is_named_at_once(run, module, extra, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "captions.json").write_text(json.dumps([{"image_id": 1, "caption": "A dog."}]))
    monkeypatch.setitem(sys.modules, module, None)
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert err.startswith("mgap: ")
    assert f'pip install "mgap[{extra}]"' in err
    assert err.count("\n") == 1, "nothing was begun"
    assert [path.name for path in tmp_path.iterdir()] == ["captions.json"]
