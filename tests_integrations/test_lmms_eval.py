"""Our model class inside lmms-eval itself, its own command, and what docs/lmms-eval.md says of them."""

import json
import os
import re
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import mgap
from mgap.benchmarks.yesno_parsers import yes_or_no
from mgap.errors import BackboneMismatch, SettingError, UnsupportedDecoding, UnsupportedRequest
from mgap.integrations.harness_models import ModelArguments
from mgap.pocket.benchmark import pope
from mgap.pocket.scenes import render
from tests import processes

pytestmark = pytest.mark.filterwarnings("default")  # of lmms-eval and what it imports
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "lmms-eval.md").read_text()
GREEDY = {"max_new_tokens": 12, "temperature": 0.0, "do_sample": False, "until": [","]}
DESCRIBE = {"max_new_tokens": 6, "until": ["\n\n"]}


@pytest.fixture(scope="module")
def plugin():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from lmms_eval.models import get_model

        return get_model("mgap")


@pytest.fixture(scope="module")
def questions():
    return list(pope("adversarial", count=2))


@pytest.fixture(scope="module")
def plain(plugin):
    return plugin(pretrained="pocket/llava", method="vanilla", batch_size=5, device="cpu")


def show(question):
    return [render(question.scene)]


def instances(questions, options=GREEDY, visual=show, kind="generate_until"):
    from lmms_eval.api.instance import Instance

    about = {"task": "pocket", "repeats": 1}
    return [
        Instance(kind, (q.text, dict(options), visual, place, "pocket", "test"), place, {**about, "doc_id": place})
        for place, q in enumerate(questions)
    ]


def answer(lmm, questions, *args, **kwargs):
    lmm.task_dict = {"pocket": {"test": questions}}
    return lmm.generate_until(instances(questions, *args, **kwargs))


def test_lmms_eval_finds_the_model_by_its_entry_point(plugin):
    assert "mgap" in entry_points(group="lmms_eval.models").names
    assert plugin.__module__ == "mgap.integrations.lmms_eval"


def test_answers_are_those_of_the_model_itself_cut_at_the_stop_word(plain, questions):
    direct = plain.model.answers([render(q.scene) for q in questions], [q.text for q in questions], max_new_tokens=12)
    expected = list(direct)
    found = answer(plain, questions)
    assert [result.text for result in found] == [each.text.split(",")[0] for each in expected]
    assert {result.text for result in found} == {"Yes", "No"}
    assert [result.token_counts.output_tokens for result in found] == [len(each.token_ids) for each in expected]


def test_answers_come_back_in_the_order_of_requests_with_different_options(plain, questions):
    plain.task_dict = {"pocket": {"test": questions}}
    short, long = instances(questions), instances(questions, DESCRIBE)
    mixed = [long[i] if i % 3 == 0 else short[i] for i in range(len(questions))]
    found = [result.text for result in plain.generate_until(mixed)]
    expected = [r.text for r in plain.generate_until(short)], [r.text for r in plain.generate_until(long)]
    assert found == [expected[i % 3 == 0][i] for i in range(len(questions))]
    assert expected[0] != expected[1]


def test_stop_words_can_be_left_alone(plugin, questions):
    uncut = plugin(pretrained="pocket/llava", method="vanilla", batch_size=12, device="cpu", until="none")
    assert all("," in result.text for result in answer(uncut, questions))


def test_repeats_of_a_sampled_request_are_not_copies(plain, questions):
    plain.task_dict = {"pocket": {"test": questions}}
    options = {"max_new_tokens": 20, "temperature": 3.0}
    again = instances(questions[:1], options) * 15  # three batches
    texts = [result.text for result in plain.generate_until(again)]
    assert texts[:5] != texts[5:10]
    assert texts == [result.text for result in plain.generate_until(again)]


def test_the_method_acts_and_its_settings_are_read(plugin, plain, questions):
    denier = plugin(pretrained="pocket/llava", method="bias", shift=-50.0, batch_size=12, device="cpu")
    assert {yes_or_no(result.text) for result in answer(denier, questions)} == {"no"}
    still = plugin(pretrained="pocket/llava", method="mgap", alpha=0, batch_size=5, device="cpu")
    assert [r.text for r in answer(still, questions)] == [r.text for r in answer(plain, questions)]


def test_a_saved_prior_is_used_and_one_of_another_model_refused(plugin, tmp_path, checkpoints):
    model = mgap.load(str(checkpoints["llava"]), device="cpu")
    mgap.Subspace.fit(model, mgap.default_prompts()[:12], rank=3).save(tmp_path)
    lmm = plugin(pretrained=str(checkpoints["llava"]), prior=str(tmp_path), device="cpu")
    assert lmm.method.prior.rank == 3
    with pytest.raises(BackboneMismatch):
        plugin(pretrained="pocket/llava", prior=str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "magic"},
        {"method": "vanilla", "alpha": 1},
        {"method": "vcd", "prior": "folder"},
        {"alhpa": 1},
        {"batch_size": "auto"},
        {"batch_size": 0},
        {"until": "never"},
    ],
)
def test_model_args_that_cannot_be_used_are_refused_before_the_model_is_loaded(plugin, wrong):
    with pytest.raises(SettingError):
        plugin(pretrained="no/such-model", **wrong)


def test_requests_of_other_kinds_are_refused(plain, questions):
    for kind in ("loglikelihood", "generate_until_multi_round"):
        with pytest.raises(UnsupportedRequest, match="pocket asks for"):
            getattr(plain, kind)(instances(questions, kind=kind))


def test_no_picture_and_several_are_asked_as_they_are_where_the_method_can(plugin, plain, questions):
    two = [render(question.scene) for question in questions[:2]]
    vcd = plugin(pretrained="pocket/llava", method="vcd", batch_size=2, device="cpu")
    for shown in ([], two):
        (found,) = answer(plain, questions[:1], visual=lambda _doc, shown=shown: shown)
        own = plain.model.answer(shown or None, questions[0].text, max_new_tokens=12)
        assert found.text == own.text.split(",")[0]
        with pytest.raises(
            UnsupportedRequest, match=f"pocket, document 0, comes with {len(shown)} pictures, and vcd needs one"
        ):
            answer(vcd, questions[:1], visual=lambda _doc, shown=shown: shown)


def test_videos_are_refused(plain, questions):
    with pytest.raises(UnsupportedRequest, match="pocket, document 0,"):
        answer(plain, questions, visual=lambda _doc: ["clip.mp4"])


def test_a_placeholder_in_the_text_is_refused(plain, questions):
    with pytest.raises(UnsupportedRequest, match="'<image>' in its text"):
        answer(plain, [replace(questions[0], text="<image> Is there a dog in the image?")])


def test_decoding_that_the_method_does_not_accept_is_refused(plugin, questions):
    opera = plugin(pretrained="pocket/llava", method="opera", batch_size=12, device="cpu")
    with pytest.raises(UnsupportedDecoding):
        answer(opera, questions, {**GREEDY, "do_sample": True, "temperature": 1.0})


@pytest.fixture
def call(tmp_path):
    """Run a command where a clone's examples are; returns all that it prints."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def call(command):
        env = {**os.environ, "PATH": path, "HF_HOME": str(tmp_path / "hf")}
        done = processes.run(["bash", "-ec", command], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return call


def evaluated(folder):
    """What a run of lmms-eval wrote: the results of its tasks, and the answers in the order of the documents."""
    (results,) = (folder / "logs").rglob("*_results.json")
    (samples,) = (folder / "logs").rglob("*_samples_*.jsonl")
    lines = sorted((json.loads(line) for line in samples.read_text().splitlines()), key=lambda line: line["doc_id"])
    return json.loads(results.read_text())["results"], [line["filtered_resps"] for line in lines]


def figures_in(text):
    """The cells of the rows of lmms-eval's table; its column headings are another package's matter."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|pocket_pope|")
    ]
    assert len(rows) == 4
    return rows


def test_the_pages_versions_and_packages_are_those_of_this_environment():
    installed = re.findall(r"^pip install (.*)$", PAGE, re.MULTILINE)
    assert installed[0] == "--no-deps lmms-eval"
    needed = (ROOT / "tests_integrations" / "needs.txt").read_text().splitlines()
    assert not set(installed[1].split()) - set(needed)
    told = re.search(r"\(lmms-eval ([\d.]+), datasets ([\d.]+), transformers ([\d.]+), torch ([\d.]+)\)", PAGE).groups()
    found = [version(name).split("+")[0] for name in ("lmms-eval", "datasets", "transformers", "torch")]
    assert list(told) == found


def test_the_run_of_the_page_prints_the_pages_table_and_answers_as_the_model_does(tmp_path, call, plain):
    command = re.search(r"```bash\n(python examples/lmms_eval/make_data.py .*?)```", PAGE, re.DOTALL)[1]
    table = re.search(r"```text\n(mgap \(.*?)```", PAGE, re.DOTALL)[1]
    shown = call(command)
    assert table.splitlines()[0] in shown
    assert figures_in(shown) == figures_in(table)
    questions = list(pope("adversarial", count=10))
    _, answers = evaluated(tmp_path)
    direct = plain.model.answers([render(q.scene) for q in questions], [q.text for q in questions], max_new_tokens=16)
    assert answers == [answer.text.split(",")[0] for answer in direct]


def test_every_row_of_the_pages_table_is_what_lmms_eval_finds(tmp_path, call, monkeypatch, plugin):
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.tasks import TaskManager

    call("python examples/lmms_eval/make_data.py pocket_pope.parquet adversarial 10")
    monkeypatch.chdir(tmp_path)
    manager = TaskManager(include_path=str(tmp_path / "examples" / "lmms_eval"))
    rows = re.findall(r"^\|(.*)\| `(method=.*?)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 7
    found, pretrained = [], ""
    for named, method, *_ in rows:
        pretrained = named.strip(" `") or pretrained
        results = simple_evaluate(
            "mgap",
            model_args=f"{pretrained},{method}",
            tasks=["pocket_pope"],
            batch_size=10,
            device="cpu",
            task_manager=manager,
            log_samples=False,
        )["results"]["pocket_pope"]
        names = ("accuracy", "precision", "recall", "f1_score")
        found.append((named, method, *(f"{results[f'pope_{name},none']:.4f}" for name in names)))
    assert found == rows, found


PAIRS = """
task: pocket_pairs
dataset_path: parquet
dataset_kwargs: {data_files: {test: pairs.parquet}}
test_split: test
output_type: generate_until
doc_to_visual: !function pairs.pictures
doc_to_text: "{{question}}"
doc_to_target: answer
generation_kwargs: {max_new_tokens: 24, temperature: 0, do_sample: false, until: ["~"]}
process_results: !function pairs.score
metric_list: [{metric: right, aggregation: mean, higher_is_better: true}]
"""
PAIRS_CODE = """
def pictures(doc):
    return [doc["first"].convert("RGB"), doc["second"].convert("RGB")]


def score(doc, results):
    return {"right": float(results[0].lower().startswith(doc["answer"]))}
"""


@pytest.fixture
def pairs(tmp_path):
    """A task of lmms-eval with two pictures a document; returns the writer of its questions."""
    from datasets import Dataset

    scenes = [render(question.scene) for question in list(pope("adversarial", count=3))[::6]]
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "pairs.yaml").write_text(PAIRS)
    (tmp_path / "task" / "pairs.py").write_text(PAIRS_CODE)

    def write(texts):
        shown = [(scenes[i % 3], scenes[(i + 1) % 3]) for i in range(len(texts))]
        rows = [{"first": a, "second": b, "question": text, "answer": "yes"} for (a, b), text in zip(shown, texts, strict=True)]
        Dataset.from_list(rows).to_parquet(str(tmp_path / "pairs.parquet"))
        return shown

    return write


LOGS = "--output_path logs --log_samples"
EVAL = f"python -m lmms_eval eval --model mgap --tasks pocket_pairs --include_path task --batch_size 2 --device cpu {LOGS}"
TEXTS = ["Is there a dog in the image?", "Describe the image.", "Is there a cup in the image?", "Is there a car in the image?"]


@pytest.mark.parametrize("given", [{"method": "vanilla"}, {"method": "mgap", "alpha": 6}])
def test_documents_with_two_pictures_are_answered_as_the_model_answers_them(tmp_path, call, pairs, given):
    shown = pairs(TEXTS)
    named = ",".join(f"{key}={value}" for key, value in given.items())
    printed = call(f"{EVAL} --model_args pretrained=pocket/llava,{named}")
    assert "|pocket_pairs|" in printed
    results, answers = evaluated(tmp_path)
    model, method = ModelArguments.of("pocket/llava", given).load()
    with nullcontext() if method is None else model.using(method):
        direct = list(model.answers(shown, TEXTS, batch_size=2, max_new_tokens=24))
    assert answers == [answer.text for answer in direct]
    assert results["pocket_pairs"]["right,none"] == sum(text.startswith("Yes") for text in answers) / len(answers)


def test_placeholders_among_two_pictures_end_the_run_with_the_documents_number(call, pairs):
    pairs([TEXTS[0], "<image> Is there a dog? <image> And here?"])
    printed = " ".join(call(f"{EVAL} --model_args pretrained=pocket/llava,method=vanilla").split())
    assert "pocket_pairs, document 1, has '<image>' in its text: pictures stand before the text here" in printed
    assert "|pocket_pairs|" not in printed
