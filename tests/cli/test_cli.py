"""The command line as a user types it: what it prints, and one sentence with exit status 2 for every mistake."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

import mgap
from mgap.cli.options import score_run
from mgap.errors import SettingError
from mgap.registry import METHODS
from tests import processes


@pytest.fixture(scope="session")
def saved(prior, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prior")
    prior.save(folder)
    return folder


@pytest.fixture
def checkpoint(family, checkpoints):
    return checkpoints[family]


def test_help_names_every_verb(run):
    status, out, _ = run("--help")
    assert status == 0
    assert all(verb in out for verb in ("ask", "fit", "ls", "doctor", "verify", "demo"))


@pytest.mark.parametrize("verb", ["ask", "fit", "ls", "doctor", "verify", "demo"])
def test_each_verb_has_help(run, verb):
    status, out, _ = run(verb, "--help")
    assert status == 0
    assert "Usage" in out


def test_ask_answers_with_a_saved_prior(run, checkpoint, saved, picture_file, model, prior):
    status, out, _ = run(
        "ask", picture_file, "What?", "--model", checkpoint, "--prior", saved, "--max-new-tokens", 5, "--alpha", 1
    )
    with model.using(mgap.MGAP(prior, alpha=1.0)):
        expected = model.answer(picture_file, "What?", max_new_tokens=5).text
    assert (status, out.rstrip("\n")) == (0, expected)


def test_ask_fits_the_default_prior_when_none_is_given_once_and_says_which(
    run, checkpoint, picture_file, tmp_path, monkeypatch
):
    monkeypatch.setenv("MGAP_CACHE", str(tmp_path))
    words = ["ask", picture_file, "What?", "--model", checkpoint, "--max-new-tokens", 3]
    status, out, err = run(*words)
    assert status == 0
    assert out.strip()
    assert "50/50" in err
    assert "prior: 50 prompts of 'default', black336, rank 5" in err
    status, again, err = run(*words)
    assert again == out
    assert "50/50" not in err
    assert "prior: 50 prompts of 'default', black336, rank 5" in err


def test_ask_plainly(run, checkpoint, picture_file, model):
    words = ["ask", picture_file, "What?", "-m", checkpoint, "--method", "vanilla", "--max-new-tokens", 5]
    assert run(*words)[1].rstrip("\n") == model.answer(picture_file, "What?", max_new_tokens=5).text
    assert run(*words, "--stream")[1].strip() == model.answer(picture_file, "What?", max_new_tokens=5).text


def test_ask_samples_among_the_likely_tokens(run, checkpoint, picture_file, model):
    words = ["ask", picture_file, "What?", "-m", checkpoint, "--method", "vanilla", "--max-new-tokens", 5, "--sample"]
    greedy = model.answer(picture_file, "What?", max_new_tokens=5).text
    assert run(*words, "--min-p", 0.9999)[1].rstrip("\n") == greedy
    assert run(*words)[1].rstrip("\n") != greedy


def test_a_trace_is_printed_as_a_table(run, checkpoint, saved, picture_file):
    words = ["ask", picture_file, "What?", "-m", checkpoint, "--prior", saved, "--max-new-tokens", 4]
    status, out, _ = run(*words, "--trace")
    assert status == 0
    assert all(name in out for name in ("token", "entropy", "cosine", "delta", "gamma", "beta", "before", "after"))
    status, out, _ = run(*words, "--trace", "--json", "--set", "gate=false", "--set", "preset=reference-code")
    answer = json.loads(out)
    assert len(answer["trace"]) == len(answer["token_ids"])
    assert answer["settings"] == {"gate": False, "preset": "reference-code"}
    assert answer["trace"][0]["values"]["gamma"] == 1.0


def test_json_is_strict_however_strong_a_method_is(run, checkpoint, saved, picture_file):
    words = ["ask", picture_file, "What?", "-m", checkpoint, "--prior", saved, "--max-new-tokens", 2, "--trace", "--json"]
    status, out, _ = run(*words, "--alpha", 1e300)
    assert status in (0, 2)  # logits that are not finite may be refused
    if status == 0:
        assert json.loads(out, parse_constant=pytest.fail)["token_ids"]


@pytest.mark.parametrize(
    ("method", "words", "build"),
    [
        ("bias", ["--set", "shift=9", "--set", "up=[is, picture]", "--set", "down=the"],
         lambda: mgap.Bias(shift=9, up=("is", "picture"), down=("the",))),
        ("dola", ["--set", "layers=[1, 2]", "--preset", "paper"], lambda: mgap.DoLa(layers=[1, 2], preset="paper")),
        ("deco", ["--set", "layers=2", "--alpha", 9], lambda: mgap.DeCo(layers=2, alpha=9.0)),
        ("mod", ["--set", "rho=0.1", "--set", "theta=0", "--set", "a2=9", "--set", "refresh=every_step",
                 "--set", "branch_mode=sequential"],
         lambda: mgap.MoD(rho=0.1, theta=0, a2=9, refresh="every_step", branch_mode="sequential")),
        ("icd", ["--alpha", 4, "--set", "with_vcd=true", "--set", "noise_step=900"],
         lambda: mgap.ICD(alpha=4.0, with_vcd=True, noise_step=900)),
        ("haltrapper", ["--set", "candidates=[dog, cat]", "--alpha", 3],
         lambda: mgap.HalTrapper(candidates=["dog", "cat"], alpha=3.0)),
        ("haltrapper", ["--set", "vocabulary={dog: [puppy], cat: }", "--set", "length=4", "--set", "n=1"],
         lambda: mgap.HalTrapper(vocabulary={"dog": ["puppy"], "cat": []}, length=4, n=1)),
        ("opera", ["--set", "beams=2", "--set", "candidates=3", "--alpha", 9],
         lambda: mgap.OPERA(beams=2, candidates=3, alpha=9)),
    ],
)  # fmt: skip
def test_ask_with_a_method_that_needs_no_prior(run, checkpoint, picture_file, model, method, words, build):
    words = ["ask", picture_file, "What?", "-m", checkpoint, "--max-new-tokens", 5, "--method", method, *words]
    with model.using(build()):
        expected = model.answer(picture_file, "What?", max_new_tokens=5)
    status, out, err = run(*words)
    assert (status, out.rstrip("\n")) == (0, expected.text)
    assert "fitting" not in err
    status, out, _ = run(*words, "--json", "--trace")
    assert tuple(json.loads(out)["token_ids"]) == expected.token_ids


@pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "streamed"])
def test_a_terminal_shows_what_keeps_a_method_from_answering(run, checkpoint, picture_file, monkeypatch, stream):
    monkeypatch.setenv("FORCE_COLOR", "1")  # standard error is taken for a terminal
    words = ["ask", picture_file, "What?", "-m", checkpoint, "--max-new-tokens", 2, "--method", "haltrapper", *stream]
    status, out, err = run(*words, "--set", "length=64")
    assert status == 0
    assert out.strip()
    assert "imagining what is around the picture" in err


def test_a_strong_setting_warns_on_standard_error(run, checkpoint, saved, picture_file):
    words = ["ask", picture_file, "What?", "-m", checkpoint, "--prior", saved, "--max-new-tokens", 2, "--alpha", 3]
    status, _, err = run(*words)
    assert status == 0
    assert "mgap: warning: alpha=3.0 > 1" in err


def test_a_pocket_model_that_is_shown_what_it_cannot_know_says_so(run, tmp_path):
    words = ["Is there a car in the image?", "-m", "pocket/llava", "--method", "vanilla"]
    drawn = Path(__file__).parents[2] / "examples" / "pictures" / "street.png"
    status, out, err = run("ask", drawn, *words)
    assert (status, out) == (0, "Yes, there is a car in the image.\n")
    assert "warning" not in err
    Image.new("RGB", (64, 48), "grey").save(tmp_path / "photo.png")
    status, _, err = run("ask", tmp_path / "photo.png", *words)
    assert status == 0
    assert "pocket/llava was trained on square drawings only" in err
    assert "photo.png is 64 x 48: the answer to a photograph means nothing" in err


def test_fit_writes_a_prior_that_ask_reads(run, checkpoint, tmp_path, picture_file):
    (tmp_path / "prompts.txt").write_text("\n".join(mgap.default_prompts()[:20]))
    status, out, err = run(
        "fit", "-m", checkpoint, "-o", tmp_path / "p", "--prompts", tmp_path / "prompts.txt", "--rank", "auto"
    )
    assert status == 0
    assert "20 prompts" in out
    assert "20/20" in err
    assert run("ask", picture_file, "What?", "-m", checkpoint, "--prior", tmp_path / "p", "--max-new-tokens", 2)[0] == 0


@pytest.mark.parametrize("solver", ["exact", "lanczos", "randomized"])
def test_fit_with_each_solver(run, checkpoint, tmp_path, solver):
    assert run("fit", "-m", checkpoint, "-o", tmp_path, "--svd", solver, "--rank", 3)[0] == 0
    assert mgap.Subspace.load(tmp_path).rank == 3


def test_ls_lists_methods_with_seam_cost_and_modes(run):
    status, out, _ = run("ls", "methods")
    assert status == 0
    assert "seam head" in out
    assert "seam layers, 1 forward a token" in out
    assert (
        "seam search, 2 forwards a token (each over 5 beams, the second over 5 candidates a beam; more after a return)" in out
    )
    assert all(line.split()[0] in METHODS for line in out.splitlines() if " seam " in line)
    assert "presets: convis, agla, halc, marine, cicd\n" in out
    assert "dola paper" in run("ls", "presets")[1]
    assert "beam" in out
    assert "reference-code" in run("ls")[1]
    assert len(run("ls", "prompts")[1].splitlines()) == 60
    assert run("ls", "models")[1].splitlines() == ["pocket/llava", "pocket/qwen3-vl", "pocket/natural  (fetched on first use)"]


def test_doctor_says_whether_mgap_is_exact(run, checkpoint):
    status, out, _ = run("doctor", checkpoint)
    assert status == 0
    assert "exact, in one head product" in out
    assert "transformers" in out
    assert "plain: the head is on cpu" in out
    assert "by mgap's loop" in out
    assert "shared prefill   yes" in out


def test_doctor_without_a_model_shows_the_environment(run):
    status, out, _ = run("doctor")
    assert status == 0
    assert mgap.__version__ in out


@pytest.mark.long
def test_the_demo_prints_its_table_and_where_the_report_is(run, checkpoint, tmp_path):
    folder = tmp_path / "demo"
    words = ["demo", "-m", checkpoint, "-o", folder, "--questions", 4, "--captions", 1, "--alpha", 0.9]
    status, out, err = run(*words)
    assert status == 0
    assert all(word in out for word in ("Random", "Popular", "Adversarial", "CHAIRi", "paper", "took"))
    assert f"report:  {folder / 'report.html'}" in out
    assert "7/7" in err
    assert "7/7" not in out, "progress belongs to standard error"
    assert "\x1b" not in out + err
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "results.json"]
    results = json.loads((folder / "results.json").read_text())
    assert results["plan"] == {"model": str(checkpoint), "questions": 4, "captions": 1, "alpha": 0.9}
    assert f"{100 * results['pope']['random']['paper']['accuracy']['value']:.1f}" in out


ASK = ["ask", "PICTURE", "What?", "-m", "MODEL", "--prior", "PRIOR"]
FIT = ["fit", "-m", "MODEL", "-o", "OUT"]
MISTAKES = {  # what is wrong: the words typed, and what the sentence must name
    "no image file": (["ask", "none.png", *ASK[2:]], "none.png"),
    "a broken image": (["ask", "broken.png", *ASK[2:]], "broken.png"),
    "one pixel": (["ask", "dot.png", *ASK[2:]], "1 x 1"),
    "a difficulty without a value": (["run", "pope", "--difficulty", "noise"], "--difficulty 'noise' is not of the form"),
    "an option of the engine without a value": (["run", "pope", "--engine-option", "x"], "such as --engine-option tensor"),
    "an empty prompt": (["ask", "PICTURE", "", *ASK[3:]], "empty"),
    "blank lines": ([*FIT, "--prompts", "blank.txt"], "line 2"),
    "no prompts file": ([*FIT, "--prompts", "none.txt"], "none.txt"),
    "prompts all alike": ([*FIT, "--prompts", "alike.txt"], "distinct states, but rank 5 needs 6"),
    "negative alpha": ([*ASK, "--alpha", "-1"], "alpha=-1"),
    "alpha nan": ([*ASK, "--alpha", "nan"], "alpha=nan"),
    "lambda infinite": ([*ASK, "--lam", "inf"], "lam=inf"),
    "lambda negative": ([*ASK, "--set", "lam=-2"], "lam=-2"),
    "rank 0": ([*FIT, "--rank", "0"], "rank=0"),
    "rank above d": ([*FIT, "--rank", "65"], "hidden size 64"),
    "rank in words": ([*FIT, "--rank", "five"], "rank=five"),
    "a setting that is none": ([*ASK, "--set", "alhpa=1"], "alhpa"),
    "a setting that is none, before anything is loaded": (
        ["ask", "PICTURE", "What?", "-m", "someone/nothing", "--set", "alhpa=1"],
        "alhpa",
    ),
    "a value that no method takes, before anything is loaded": (
        ["ask", "PICTURE", "What?", "-m", "someone/nothing", "--set", "alpha=high"],
        "alpha='high' must be a finite number of at least 0",
    ),
    "a preset that is none, before anything is loaded": (
        ["ask", "PICTURE", "What?", "-m", "someone/nothing", "--preset", "papr"],
        "did you mean 'paper'",
    ),
    "a misspelt embedded model": (["ask", "PICTURE", "What?", "-m", "pocket/lava"], "did you mean 'pocket/llava'"),
    "a misspelt embedded model for the doctor": (["doctor", "pocket/natual"], "did you mean 'pocket/natural'"),
    "a prior as a setting": ([*ASK[:-2], "--set", "prior=somewhere"], "--prior"),
    "a setting without a value": ([*ASK, "--set", "alpha"], "key=value"),
    "an unknown method": ([*ASK, "--method", "mgpa"], "did you mean 'mgap'"),
    "a prior for a method without one": ([*ASK, "--method", "dola"], "uses no prior"),
    "layers that the model lacks": (
        ["ask", "PICTURE", "What?", "-m", "MODEL", "--method", "deco", "--set", "layers=9"],
        "3 blocks",
    ),
    "a word that YAML reads as true": ([*ASK[:-2], "--method", "bias", "--set", "shift=1", "--set", "up=Yes"], "up=True"),
    "a word that is no token": ([*ASK[:-2], "--method", "bias", "--set", "shift=1"], "'Yes' is not one token"),
    "a bias without a shift": ([*ASK[:-2], "--method", "bias"], "shift"),
    "settings for vanilla": ([*ASK, "--method", "vanilla", "--alpha", "1"], "vanilla"),
    "an unknown preset": ([*ASK, "--preset", "papr"], "reference-code"),
    "no such model": (["ask", "PICTURE", "What?", "-m", "someone/nothing", "--prior", "PRIOR"], "someone/nothing"),
    "a folder that is no model": (["ask", "PICTURE", "What?", "-m", "half"], "config.json"),
    "no such prior": ([*ASK[:-1], "someone/none"], "someone/none"),
    "a damaged prior": ([*ASK[:-1], "half"], "damaged"),
    "a prior of another model": (["ask", "PICTURE", "What?", "-m", "OTHER", "--prior", "PRIOR"], "was made with"),
    "temperature without sampling": ([*ASK, "--temperature", "0.5"], "sample"),
    "a temperature next to nothing": ([*ASK, "--sample", "--temperature", "1e-320"], "temperature=1e-320 must be from 1e-10"),
    "a search that is to stream": ([*ASK[:-2], "--method", "opera", "--stream"], "opera does not work with stream"),
    "a search with other beams": ([*ASK[:-2], "--method", "opera", "--num-beams", "2"], "beams=5"),
    "beams and stream": ([*ASK, "--num-beams", "2", "--stream"], "cannot be combined"),
    "stream and trace": ([*ASK, "--stream", "--trace"], "--stream"),
    "an unknown dtype": ([*ASK, "--dtype", "float63"], "float63"),
    "an unknown device": ([*ASK, "--device", "gpu9"], "gpu9"),
    "a GPU that is not there": ([*ASK, "--device", "cuda:77"], "cuda:77"),
    "an unknown null image": ([*FIT, "--null-image", "white"], "black336"),
    "an unknown solver": ([*FIT, "--svd", "qr"], "lanczos"),
    "a size that is none": ([*FIT, "--size", "big"], "WIDTHxHEIGHT"),
    "a size that no picture may have": (
        [*FIT, "--null-image", "black_same_size", "--size", "99999999x99999999"],
        "--size: 99999999 x 99999999 is more than 89,478,485 pixels",
    ),
    "a size of 5000 digits": ([*FIT, "--null-image", "black_same_size", "--size", f"{'9' * 5000}x8"], "WIDTHxHEIGHT"),
    "a rank of 5000 digits": ([*FIT, "--rank", "9" * 5000], "must be a whole number of at least 1, or auto"),
    "a batch of none": ([*FIT, "--batch-size", "0"], "batch_size=0"),
    "nothing to list": (["ls", "weather"], "weather"),
    "no vectors": (["verify", "nowhere"], "reference vectors"),
    "a demo of no model": (["demo", "-m", "pocket/gpt"], "pocket/llava"),
    "a demo of no questions": (["demo", "-m", "pocket/gpt", "--questions", "0"], "questions=0"),
    "a demo of no strength": (["demo", "-m", "pocket/gpt", "--alpha", "nan"], "alpha=nan"),
    "a report below a file": (["demo", "-m", "pocket/gpt", "-o", "dot.png/demo"], "dot.png is a file"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence_and_status_2(
    run, mistake, family, checkpoints, saved, picture_file, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (1, 1)).save("dot.png")
    Path("broken.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    Path("blank.txt").write_text("What?\n\nWhere?\n")
    Path("alike.txt").write_text("What?\n" * 20)
    Path("half").mkdir()
    Path("half/subspace.json").write_text("{")
    (other,) = (folder for name, folder in checkpoints.items() if name != family)
    names = {"PICTURE": picture_file, "MODEL": checkpoints[family], "OTHER": other, "PRIOR": saved, "OUT": "out"}
    words, named = MISTAKES[mistake]
    status, out, err = run(*(names.get(word, word) for word in words))
    lines = [line for line in err.splitlines() if line.startswith("mgap: ")]
    assert status == 2
    assert out == ""
    assert len(lines) == 1
    assert named in lines[0]
    assert "Traceback" not in err
    assert not Path("out").exists(), "nothing half-written"


def test_a_setting_of_the_scorer_is_given_once():
    with pytest.raises(SettingError, match="parser is given twice: leave out --parser, or --set parser="):
        score_run("runs/any", None, False, "vcd", None, ["parser=vcd"])


def test_a_mistake_typed_in_a_shell_shows_no_traceback(tmp_path):
    command = [sys.executable, "-m", "mgap.cli.main", "ask", str(tmp_path / "none.png"), "What?", "--model", "x"]
    done = processes.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
