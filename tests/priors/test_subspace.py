"""Fitting a prior on a model, saving it, and refusing what does not belong to it."""

import json
import os
from pathlib import Path

import pytest
import torch

import mgap
from mgap.backbones.null_images import SIZED
from mgap.errors import BackboneMismatch, CorruptFile, PromptError, SettingError
from mgap.io import tensor_files
from mgap.priors.collect_states import blind_states, last_states


def test_states_in_batches_equal_states_one_by_one(model):
    prompts = mgap.default_prompts()[:7]
    together = torch.cat(list(blind_states(model.backbone, prompts, batch_size=4)))
    alone = torch.cat(list(blind_states(model.backbone, prompts, batch_size=1)))
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_the_state_is_the_last_hidden_state_after_the_norm(model):
    inputs = model.backbone.blind(["What is this?", "And this, if one looks at it more closely?"])
    with torch.no_grad():
        expected = model.backbone.model(**inputs, output_hidden_states=True).hidden_states[-1][:, -1]
    torch.testing.assert_close(last_states(model.backbone, inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("null", ["black336", "mean_colour", "no_image", "black_same_size"])
def test_a_prior_can_be_fitted_with_each_null_image(model, null):
    size = (64, 48) if null in SIZED else None
    prior = mgap.Subspace.fit(model, mgap.default_prompts()[:12], rank=2, null_image=null, size=size)
    assert prior.origin["null_image"] == null
    assert prior.origin["size"] == (list(size) if size else None)


@pytest.mark.parametrize(("null", "size"), [("black_same_size", None), ("black336", (64, 48)), ("no_image", (64, 48))])
def test_a_size_that_is_missing_or_of_no_use_is_refused(model, null, size):
    with pytest.raises(SettingError, match=f"null image '{null}' .* size"):
        mgap.Subspace.fit(model, ["a", "b"], null_image=null, size=size)


def test_prompts_may_come_from_a_generator_and_progress_is_told(model):
    seen = []
    prior = mgap.Subspace.fit(model, (p for p in mgap.default_prompts()[:20]), rank=2, progress=seen.append)
    assert prior.count == 20
    assert seen == list(range(1, 21))


@pytest.mark.parametrize("rank", [0, 65])
def test_a_rank_outside_the_width_is_refused_before_the_model_runs(model, rank):
    with pytest.raises(SettingError, match="between 1 and the model's hidden size 64"):
        mgap.Subspace.fit(model, iter(()), rank=rank)


def test_one_string_is_not_a_list_of_prompts(model):
    with pytest.raises(PromptError, match="not one"):
        mgap.Subspace.fit(model, "What is this?")


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(PromptError, match="empty"):
        mgap.Subspace.fit(model, ["What?", "  "])


def test_a_saved_prior_comes_back_whole(prior, tmp_path):
    prior.save(tmp_path / "deep" / "prior")
    again = mgap.Subspace.load(tmp_path / "deep" / "prior")
    for name in ("basis", "singular_values", "mean"):
        assert torch.equal(getattr(again, name), getattr(prior, name))
    assert (again.identity, again.origin, again.count) == (prior.identity, prior.origin, prior.count)
    index = json.loads((tmp_path / "deep" / "prior" / "subspace.json").read_text())
    assert {"model", "spectrum", "origin", "sha256"} <= set(index)
    assert {"null_image", "template_sha256", "prompts_sha256", "versions"} <= set(index["origin"])
    assert {"name", "revision", "architecture"} <= set(index["model"])


def test_saving_over_an_old_prior_leaves_only_the_new_one(prior, tmp_path):
    prior.save(tmp_path)
    prior.truncate(2).save(tmp_path)
    assert mgap.Subspace.load(tmp_path).rank == 2
    assert len(list(tmp_path.iterdir())) == 2


def damage_tensors(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 0xFF
    file.write_bytes(data)


def cut_tensors(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:40])


def lose_tensors(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    file.unlink()


def edit(folder: Path, **changes) -> None:
    index = json.loads((folder / "subspace.json").read_text())
    (folder / "subspace.json").write_text(json.dumps({**index, **changes}))


@pytest.mark.parametrize(
    "damage",
    [
        damage_tensors,
        cut_tensors,
        lose_tensors,
        lambda folder: (folder / "subspace.json").write_text("{"),
        lambda folder: (folder / "subspace.json").write_text("[1, 2]"),
        lambda folder: (folder / "subspace.json").unlink(),
        lambda folder: edit(folder, tensors="../../etc/passwd"),
        lambda folder: edit(folder, format=99),
        lambda folder: edit(folder, model={"name": "x"}),
        lambda folder: edit(folder, count="many"),
    ],
)
def test_a_damaged_prior_is_refused(prior, tmp_path, damage):
    prior.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(CorruptFile, match=r"."):
        mgap.Subspace.load(tmp_path)


def test_a_basis_that_is_not_orthonormal_is_refused(prior, tmp_path):
    from dataclasses import replace

    replace(prior, basis=prior.basis * 1.1).save(tmp_path)
    with pytest.raises(CorruptFile, match="orthonormal"):
        mgap.Subspace.load(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(prior, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(mgap.MgapError, match="cannot be written"):
        prior.save(blocked / "prior")


def test_a_prior_goes_to_the_hub_and_back(prior, tmp_path, monkeypatch):
    """The hub's client is real up to the transfer, which is a copy to a folder here."""
    import shutil
    from types import SimpleNamespace

    remote = tmp_path / "remote"

    def upload(self, *, repo_id, folder_path, delete_patterns, commit_message):
        assert (repo_id, delete_patterns) == ("someone/prior", ["subspace-*"])
        shutil.copytree(folder_path, remote)
        return SimpleNamespace(commit_url="address")

    monkeypatch.setattr(tensor_files.HfApi, "create_repo", lambda self, repo, *, private, exist_ok: None)
    monkeypatch.setattr(tensor_files.HfApi, "upload_folder", upload)
    monkeypatch.setattr(
        tensor_files, "snapshot_download", lambda repo, *, revision, allow_patterns, local_files_only: str(remote)
    )
    assert prior.push("someone/prior") == "address"
    assert torch.equal(mgap.Subspace.load("someone/prior").basis, prior.basis)


def test_a_prior_that_is_nowhere_is_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(mgap.MgapError, match="someone/nothing"):
        mgap.Subspace.load("someone/nothing")


def test_another_model_is_refused(model, prior, checkpoints, tmp_path, family):
    from mgap.pocket.tiny import build_tiny

    build_tiny(family, tmp_path, seed=1)  # the same class and sizes, other weights
    with pytest.raises(BackboneMismatch, match="the weights differ"):
        prior.require(mgap.load(str(tmp_path)).backbone)


def test_two_hub_models_with_the_same_weights_are_told_apart_by_name(prior):
    from dataclasses import replace

    one = replace(prior.identity, name="someone/model")
    with pytest.raises(BackboneMismatch, match="ids differ"):
        one.require(replace(one, name="someone/finetune"), "the subspace")
    one.require(replace(one, name=os.getcwd()), "the subspace")


def test_bare_states_of_another_width_are_refused(model):
    with pytest.raises(BackboneMismatch, match="width"):
        mgap.Subspace.from_states(torch.randn(30, 8), rank=2).require(model.backbone)


def test_a_subspace_of_states_without_variance_explains_nothing():
    bare = mgap.Subspace(torch.eye(4)[:, :1].double(), torch.zeros(1), torch.zeros(4), total_variance=0.0, count=2)
    assert bare.explained_variance == 0
