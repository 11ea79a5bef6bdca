"""The flags of examples/serving and docs/serving.md are flags of this vLLM, and give the engine what mgap looks for;
the scripts that use vLLM run as a user starts them."""

import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from engines import environment
from servers import IN_PROCESS

import mgap
from mgap.pocket.scenes import make_scene, render
from mgap.serving.engine_settings import Serving

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
    serving = Serving.of_engine(SimpleNamespace(additional_config=read.additional_config))
    assert serving.prior == "/priors/model"
    with pytest.raises(SystemExit):
        parser.parse_args([*words, "--no-such-flag=1"])


@pytest.mark.parametrize("page", ["serving.md", "serving-operations.md"])
def test_vllm_knows_the_flags_that_the_pages_name(parser, page):
    named = re.findall(r"`(--[a-z-]+)`", (HERE / "docs" / page).read_text())
    known = {flag for action in parser._actions for flag in action.option_strings}
    mine = {"--prior", "--method", "--alpha", "--lam", "--preset", "--rank", "--reload", "--"}
    assert set(named) - mine <= known


@pytest.mark.filterwarnings("ignore:alpha=4.* > 1")
@pytest.mark.parametrize(("family", "more"), [("llava", []), ("qwen3-vl", ["--offline"])])
def test_the_script_asks_at_three_strengths_and_leaves_no_server_behind(work, tmp_path, family, more):
    words = [sys.executable, str(HERE / "examples" / "serve_vllm.py"), "--model", f"pocket/{family}", *more]
    env = environment(work, **IN_PROCESS)
    ran = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stderr[-4000:]
    model, prior = mgap.load(f"pocket/{family}", dtype="float32"), mgap.Subspace.load(tmp_path / "priors/serve_vllm")
    wanted = ["Is there a cup in the image?"]
    for alpha in (0, 0.75, 4):
        with model.using(mgap.MGAP(prior, alpha=alpha)):
            answer = model.answer(render(make_scene(200_000)), wanted[0], max_new_tokens=64)
        wanted.append(f"alpha {alpha:<5g} {answer}")
    assert ran.stdout.splitlines() == wanted
    if not more:
        port = re.search(r"--port (\d+)", (tmp_path / "serve_vllm.log").read_text())[1]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", int(port)), timeout=5)


@pytest.mark.parametrize("family", ["llava", "qwen3-vl"])
def test_two_contexts_give_one_answer(family, work):
    words = [sys.executable, str(HERE / "examples" / "vllm_two_contexts.py"), "--model", f"pocket/{family}"]
    ran = subprocess.run(words, env=environment(work, **IN_PROCESS), capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stderr[-4000:]
    model, question = mgap.load(f"pocket/{family}", dtype="float32"), "Please describe this image in detail."
    picture = render(make_scene(350_002))
    plain = model.answer(picture, question, max_new_tokens=48)
    with model.using(mgap.Blind(rho=1.0, beta=0.1)):
        contrast = model.answer(picture, question, max_new_tokens=48)
    assert ran.stdout.splitlines()[-2:] == [f"plain: {plain}", f"contrast: {contrast}"]
    assert str(plain) != str(contrast)
