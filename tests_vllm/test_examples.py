"""The flags of examples/serving and docs/serving.md are flags of this vLLM, and give the engine what mgap looks for."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from mgap.serving.settings import Serving

HERE = Path(__file__).parents[1]
FILES = HERE / "examples" / "serving"


@pytest.fixture(scope="module")
def parser():
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


@pytest.mark.parametrize(
    ("file", "find"),
    [
        ("compose", lambda parts: parts[0]["services"]["vllm"]["command"]),
        ("kubernetes", lambda parts: parts[1]["spec"]["template"]["spec"]["containers"][0]["args"]),
    ],
)
def test_vllm_reads_the_flags(parser, file, find):
    words = find(list(yaml.safe_load_all((FILES / f"{file}.yaml").read_text())))
    read = parser.parse_args(words)
    assert read.model_tag == words[0]
    assert read.limit_mm_per_prompt == {"image": 1}
    serving = Serving.wanted(SimpleNamespace(additional_config=read.additional_config))
    assert serving.prior == "/priors/model"
    with pytest.raises(SystemExit):
        parser.parse_args([*words, "--no-such-flag=1"])


def test_vllm_knows_the_flags_that_the_page_names(parser):
    named = re.findall(r"`(--[a-z-]+)`", (HERE / "docs" / "serving.md").read_text())
    known = {flag for action in parser._actions for flag in action.option_strings}
    mine = {"--prior", "--alpha", "--lam", "--preset", "--rank", "--"}
    assert set(named) - mine <= known
