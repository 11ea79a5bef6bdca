import json

import pytest

from mgap.errors import PromptError
from mgap.io.prompt_files import read_prompts
from mgap.priors.prompts import default_prompts


def test_the_default_prompts_are_fifty_or_more_and_all_different():
    prompts = default_prompts()
    assert len(prompts) >= 50
    assert len({p.lower() for p in prompts}) == len(prompts)
    assert all(p == p.strip() and p for p in prompts)


def test_the_default_prompts_share_no_sentence_with_pope(shared):
    questions = set()
    for path in (shared / "data" / "pope").rglob("*.json"):
        text = path.read_text()
        rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
        questions |= {row["text"].strip().lower() for row in rows}
    assert len(questions) > 100
    sentences = {s.strip().lower() for prompt in default_prompts() for s in prompt.replace("?", "?|").split("|") if s}
    assert not sentences & questions
    assert not [p for p in default_prompts() if p.lower().startswith("is there a")]


def test_prompts_are_read_line_by_line(tmp_path):
    (tmp_path / "p.txt").write_text("What is this?\nWhere is it?")
    assert list(read_prompts(tmp_path / "p.txt")) == ["What is this?", "Where is it?"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"What?\n\nWhere?\n", "line 2 is empty"),
        (b"What?\n  \n", "line 2 is empty"),
        (b"", "is empty"),
        (b"a\n\xff\xfe\n", "UTF-8"),
    ],
)
def test_a_file_with_blank_lines_or_no_text_is_refused(tmp_path, content, message):
    (tmp_path / "p.txt").write_bytes(content)
    with pytest.raises(PromptError, match=message):
        list(read_prompts(tmp_path / "p.txt"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PromptError, match=r"none\.txt"):
        list(read_prompts(tmp_path / "none.txt"))
