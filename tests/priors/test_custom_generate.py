"""A prior as a repository that transformers decodes with by itself: `model.generate(custom_generate=...)`."""

import json
import os
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

import mgap
from mgap.errors import SettingError
from mgap.pocket.tiny import build_tiny
from mgap.priors.custom_generate.card import write_card
from mgap.priors.custom_generate.repository import write_repository
from tests import processes

ASKED = ["Is there a dog in the image?", "Describe this image."]
MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.8, "top_k": 20},
    "beams": {"do_sample": False, "num_beams": 3},
    "sequences": {"do_sample": True, "num_return_sequences": 2},
    "static": {"do_sample": False, "cache_implementation": "static"},
}


@pytest.fixture(scope="module")
def repository(prior, tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository") / "prior"
    write_repository(prior, folder, "user/prior")
    return str(folder)


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory):
    """Transformers copies remote code to a cache before it imports it; here not to the user's."""
    from transformers import dynamic_module_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        patch.setattr(sys, "path", list(sys.path))
        yield
    for name in [
        name for name in sys.modules if name.partition(".")[0] == dynamic_module_utils.TRANSFORMERS_DYNAMIC_MODULE_NAME
    ]:
        del sys.modules[name]


@pytest.fixture
def rows(model, picture):
    return dict(model.backbone.encode([picture, picture], ASKED))  # of two lengths, so one is padded


def generate(model, rows, **options):
    torch.manual_seed(0)
    settings = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_logits": True, **options}
    return model.backbone.model.generate(**rows, **settings)


@pytest.mark.parametrize("mode", MODES)
def test_its_answers_are_those_of_attach(model, prior, rows, repository, mode):
    plain = generate(model, rows, **MODES[mode])
    ours = generate(model, rows, custom_generate=repository, trust_remote_code=True, alpha=0.9, lam=2.0, **MODES[mode])
    with model.using(mgap.MGAP(prior, alpha=0.9, lam=2.0)):
        expected = generate(model, rows, **MODES[mode])
    assert torch.equal(ours.sequences, expected.sequences)
    assert torch.allclose(torch.stack(ours.logits), torch.stack(expected.logits), atol=1e-5)
    assert not torch.allclose(plain.logits[0], expected.logits[0], atol=1e-3)


def test_drafted_tokens_are_checked_against_its_own(model, prior, repository):
    rows = dict(model.backbone.encode([None], ASKED[:1]))  # without a picture, of which drafts would repeat placeholders
    drafted = {"do_sample": False, "prompt_lookup_num_tokens": 3, "max_new_tokens": 12}
    ours = generate(model, rows, custom_generate=repository, trust_remote_code=True, alpha=0.9, **drafted)
    with model.using(mgap.MGAP(prior, alpha=0.9)):
        expected = generate(model, rows, do_sample=False, max_new_tokens=12)
    assert torch.equal(ours.sequences, expected.sequences)


def test_it_streams(model, picture, repository):
    from transformers import TextIteratorStreamer

    rows = dict(model.backbone.encode([picture], ASKED[:1]))
    streamer = TextIteratorStreamer(model.backbone.tokenizer, skip_prompt=True)
    out = generate(
        model, rows, custom_generate=repository, trust_remote_code=True, alpha=0.9, do_sample=False, streamer=streamer
    )
    new = out.sequences[0, rows["input_ids"].shape[1] :]
    assert "".join(streamer) == model.backbone.tokenizer.decode(new)


def test_a_graph_compiled_before_does_not_leave_it_out(checkpoints, family, prior, picture, repository):
    compiled = mgap.load(str(checkpoints[family]))
    rows = dict(compiled.backbone.encode([picture], ASKED[:1]))
    with compiled.using(mgap.MGAP(prior, alpha=0.9)):
        expected = generate(compiled, rows, do_sample=False)
    compiled.backbone.model.compile(backend="eager")
    plain = generate(compiled, rows, do_sample=False)
    ours = generate(compiled, rows, custom_generate=repository, trust_remote_code=True, alpha=0.9, do_sample=False)
    assert torch.allclose(torch.stack(ours.logits), torch.stack(expected.logits), atol=1e-5)
    assert not torch.allclose(plain.logits[0], expected.logits[0], atol=1e-3)


@pytest.mark.parametrize("settings", [{"rank": 2}, {"gate": False}, {"protect": False}], ids=str)
def test_its_settings_are_those_of_mgap(model, prior, rows, repository, settings):
    ours = generate(model, rows, custom_generate=repository, trust_remote_code=True, alpha=0.9, do_sample=False, **settings)
    with model.using(mgap.MGAP(prior, alpha=0.9, **settings)):
        expected = generate(model, rows, do_sample=False)
    assert torch.allclose(torch.stack(ours.logits), torch.stack(expected.logits), atol=1e-5)


def test_in_sixteen_bits_it_computes_as_attach_does(checkpoints, family, prior, picture, repository):
    halved = mgap.load(str(checkpoints[family]), dtype="bfloat16")
    rows = dict(halved.backbone.encode([picture], ASKED[:1]))
    ours = generate(halved, rows, custom_generate=repository, trust_remote_code=True, alpha=0.9, do_sample=False)
    with halved.using(mgap.MGAP(prior, alpha=0.9)):
        expected = generate(halved, rows, do_sample=False)
    assert ours.logits[0].dtype == torch.float32
    assert torch.equal(ours.sequences, expected.sequences)
    assert torch.allclose(torch.stack(ours.logits), torch.stack(expected.logits), atol=1e-5)


def test_alpha_zero_is_plain_decoding(model, rows, repository):
    plain = generate(model, rows, do_sample=False)
    ours = generate(model, rows, custom_generate=repository, trust_remote_code=True, alpha=0.0, do_sample=False)
    assert torch.equal(torch.stack(plain.logits), torch.stack(ours.logits))


PROGRAM = """
import json, sys
sys.modules["mgap"] = None  # as where it is not installed
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText
checkpoint, repository, rows = sys.argv[1:]
model, rows = AutoModelForImageTextToText.from_pretrained(checkpoint), load_file(rows)
out = model.generate(**rows, custom_generate=repository, trust_remote_code=True, alpha=0.9, do_sample=False, max_new_tokens=6)
print(json.dumps(out[:, rows["input_ids"].shape[1] :].tolist()))
"""


def test_a_machine_without_this_package_decodes_with_it(model, prior, checkpoints, family, rows, repository, tmp_path):
    save_file({name: value.contiguous() for name, value in rows.items()}, tmp_path / "rows.safetensors")
    command = [sys.executable, "-c", PROGRAM, str(checkpoints[family]), repository, str(tmp_path / "rows.safetensors")]
    done = processes.run(command, env={**os.environ, "HF_MODULES_CACHE": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with model.using(mgap.MGAP(prior, alpha=0.9)):
        expected = generate(model, rows, do_sample=False).sequences
    assert json.loads(done.stdout) == expected[:, rows["input_ids"].shape[1] :].tolist()


def test_another_model_is_refused(family, rows, repository, tmp_path):
    build_tiny(family, tmp_path, seed=1)  # the same class and sizes, other weights
    with pytest.raises(ValueError, match="not on the model at hand: the weights differ, such as "):
        generate(mgap.load(str(tmp_path)), rows, custom_generate=repository, trust_remote_code=True)


def test_one_changed_weight_is_another_model(checkpoints, family, rows, repository):
    changed = mgap.load(str(checkpoints[family]))
    weight = list(changed.backbone.model.parameters())[-1]
    with torch.no_grad():
        weight.mul_(1.5)
    with pytest.raises(ValueError, match="the weights differ"):
        generate(changed, rows, custom_generate=repository, trust_remote_code=True)


@pytest.mark.one_family
def test_a_model_of_another_class_is_refused(checkpoints, family, rows, repository):
    (other,) = [name for name in checkpoints if name != family]
    with pytest.raises(ValueError, match=r"architecture is .* there and .* here"):
        generate(mgap.load(str(checkpoints[other])), rows, custom_generate=repository, trust_remote_code=True)


def test_logits_that_change_behind_the_head_are_refused(model, rows, repository):
    def cap(_model, _args, out):
        out.logits = 5 * torch.tanh(out.logits / 5)

    handle = model.backbone.model.register_forward_hook(cap)
    try:
        with pytest.raises(ValueError, match="changes its logits after the head"):
            generate(model, rows, custom_generate=repository, trust_remote_code=True)
    finally:
        handle.remove()


@pytest.mark.one_family
def test_a_head_of_another_class_is_refused(checkpoints, family, rows, repository):
    class Packed(torch.nn.Linear):
        pass

    packed = mgap.load(str(checkpoints[family]))
    head = packed.backbone.model.get_output_embeddings()
    head.__class__ = Packed
    with pytest.raises(ValueError, match="the head of this model is Packed"):
        generate(packed, rows, custom_generate=repository, trust_remote_code=True)


def test_its_hooks_are_gone_afterwards_also_after_an_error(model, rows, repository):
    head = model.backbone.model.get_output_embeddings()
    before = len(head._forward_hooks), len(model.backbone.model._forward_hooks)
    generate(model, rows, custom_generate=repository, trust_remote_code=True)
    with pytest.raises(ValueError, match="alpa"):  # transformers' own check of what is left over
        generate(model, rows, custom_generate=repository, trust_remote_code=True, alpa=1.0)
    assert (len(head._forward_hooks), len(model.backbone.model._forward_hooks)) == before


@pytest.mark.one_family
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -1.0}, "alpha=-1.0 must be a number of at least 0"),
        ({"alpha": "high"}, "alpha='high' must be a number"),
        ({"lam": float("nan")}, "lam=nan must be a number"),
        ({"gate": 1}, "gate=1 must be True or False"),
        ({"rank": 6}, "rank=6 is not between 1 and 5"),
        ({"rank": True}, "rank=True is not between"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(model, rows, repository, settings, message):
    with pytest.raises(ValueError, match=message):
        generate(model, rows, custom_generate=repository, trust_remote_code=True, **settings)


def test_the_code_is_not_run_unless_it_is_trusted(model, rows, repository):
    with pytest.raises(ValueError, match="trust_remote_code"):
        generate(model, rows, custom_generate=repository, trust_remote_code=False)


@pytest.mark.one_family
def test_the_card_tells_of_the_prior_and_of_its_tuning(prior):
    point = {"alpha": 2.0, "lam": 0.25, "rank": 3, "gate": True, "protect": True}
    tuning = {
        "settings": point,
        "rule": {"name": "labels", "stated": "the highest F1"},
        "data": {"name": "mine.jsonl", "judged": {"questions": 120, "pictures": 40}},
        "figures": {"chosen": {**point, "value": 0.9, "step": 1.0, "f1": [0.912, 0.85, 0.96], "turned": {"yes to no": 3}}},
    }
    known = replace(prior.identity, name="someone/model", revision="abc")
    card = write_card(replace(prior, tuning=tuning), known, "user/prior")
    assert "base_model: someone/model\n" in card
    assert 'custom_generate="user/prior", trust_remote_code=True, alpha=2.0, lam=0.25, rank=3, max' in card
    assert f"| prompts (N) | {prior.count}, SHA-256 {prior.origin['prompts_sha256'][:16]} |" in card
    assert f"{100 * prior.explained_variance:.1f}%" in card
    assert "on 120 questions about 40 pictures (mine.jsonl), by the rule *the highest F1*" in card
    assert "| chosen | 2.0 | 0.25 | 3 | True | True | 91.2 (85.0 to 96.0) |" in card
    assert "nothing was measured" in write_card(prior, known, "user/prior")


@pytest.mark.one_family
def test_a_prior_that_names_no_model_is_not_shared_as_code(prior, tmp_path):
    with pytest.raises(SettingError, match="does not describe its model"):
        write_repository(replace(prior, identity=None), tmp_path / "prior", "user/prior")
    assert not (tmp_path / "prior").exists()


@pytest.mark.one_family
def test_push_writes_the_folder_that_would_be_uploaded(run, prior, tmp_path):
    prior.save(tmp_path / "saved")
    shared = tmp_path / "shared"
    status, out, _ = run("push", tmp_path / "saved", "user/prior", "--custom-generate", "--out", shared)
    assert status == 0
    assert f"{shared}: look at it" in out
    names = {str(path.relative_to(shared)) for path in shared.rglob("*") if path.is_file() and path.suffix != ".safetensors"}
    code = {f"custom_generate/{name}" for name in ("generate.py", "prior_data.py", "requirements.txt")}
    assert names - {".lock"} == {"README.md", "subspace.json", *code}
    assert torch.equal(mgap.Subspace.load(shared).basis, prior.basis)
    status, _, error = run("push", tmp_path / "saved", "user/prior", "--out", shared)
    assert (status, "is there already" in error) == (2, True)
    status, _, error = run("push", tmp_path / "saved", "user/prior", "--out", tmp_path / "new", "--private")
    assert (status, "--private is for the hub" in error) == (2, True)


@pytest.mark.one_family
def test_push_uploads_the_same_files(run, prior, tmp_path, monkeypatch):
    """The hub's client is real up to the transfer, which is a list of the files here."""
    from types import SimpleNamespace

    from mgap.io import tensor_files

    sent = []

    def upload(self, *, repo_id, folder_path, **_):
        sent.append((repo_id, sorted(str(path.relative_to(folder_path)) for path in folder_path.rglob("*.py"))))
        return SimpleNamespace(commit_url="address")

    monkeypatch.setattr(tensor_files.HfApi, "create_repo", lambda self, repo, *, private, exist_ok: sent.append(private))
    monkeypatch.setattr(tensor_files.HfApi, "upload_folder", upload)
    prior.save(tmp_path / "saved")
    assert run("push", tmp_path / "saved", "user/prior", "--custom-generate", "--private")[:2] == (0, "address\n")
    assert sent == [True, ("user/prior", ["custom_generate/generate.py", "custom_generate/prior_data.py"])]
