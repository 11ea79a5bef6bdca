"""`mgap verify`: green on the vectors that ship and on others of any size, red on anything altered."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch

from mgap.cli.main import main
from mgap.verify import compare
from mgap.verify.compare import CHECKS, SHIPPED, differ, verify_folder, verify_shipped
from tests.reference.opera import mode
from tests.verify import sizes


@pytest.fixture
def vectors():
    return SHIPPED


def test_every_shipped_file_is_checked_and_within_tolerance(capsys, monkeypatch):
    verdicts = list(verify_shipped())
    assert {v.file for v in verdicts} == {path.name for path in SHIPPED.iterdir()}
    assert len(verdicts) == len(CHECKS)
    for verdict in verdicts:
        assert verdict.status == "ok", [d for d in verdict.differences if not d.within]
        assert all(d.largest < 1e-12 for d in verdict.differences if d.tolerance < 1e-6)
    monkeypatch.setattr(sys, "argv", ["mgap", "verify"])
    with pytest.raises(SystemExit) as leave:
        main()
    assert not leave.value.code
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["ok", v.file] for v in verdicts]


def test_the_shipped_vectors_are_the_published_ones(shared):
    """Large arrays may be cut to their last part, such as the last query's, where a check reads no more."""
    for path in SHIPPED.iterdir():
        published = shared / "fixtures" / "methods" / path.name
        if path.read_bytes() == published.read_bytes():
            continue
        with np.load(path) as ours, np.load(published) as theirs:
            assert set(ours) == set(theirs), path.name
            for name, array in ours.items():
                whole = theirs[name]
                last = tuple(slice(size - kept, size) for size, kept in zip(whole.shape, array.shape, strict=True))
                assert np.array_equal(array, whole[last]), (path.name, name)


def test_the_published_files_are_within_tolerance_as_a_whole_too(shared):
    for verdict in verify_folder(shared / "fixtures" / "methods"):
        assert verdict.status in ("ok", "absent"), (verdict.file, verdict.problem)


def test_a_shipped_file_that_is_missing_or_altered_fails_without_a_folder_too(tmp_path, monkeypatch):
    shutil.copytree(SHIPPED, tmp_path / "vectors")
    (tmp_path / "vectors" / "code.npz").unlink()
    with np.load(SHIPPED / "vcd.npz") as file:
        arrays = {**file, "out": file["out"] * 1.001}
    np.savez(tmp_path / "vectors" / "vcd.npz", **arrays)
    monkeypatch.setattr(compare, "SHIPPED", tmp_path / "vectors")
    failed = {v.file: v for v in verify_shipped() if v.status == "failed"}
    assert set(failed) == {"code.npz", "vcd.npz"}
    assert "FileNotFoundError" in failed["code.npz"].problem


@pytest.mark.parametrize(
    ("rank", "width", "vocab", "rows", "states"), [(1, 8, 11, 1, 9), (3, 40, 17, 4, 12), (7, 24, 90, 2, 60)]
)
def test_mgap_files_of_any_rank_and_size_are_checked(tmp_path, rank, width, vocab, rows, states):
    for stem, arrays in sizes.mgap_files(rank, width, vocab, rows, states).items():
        np.savez(tmp_path / f"{stem}.npz", **arrays)
    verdicts = list(verify_folder(tmp_path))
    assert [v.file for v in verdicts] == ["mgap_edges.npz", "mgap_paper.npz", "mgap_refcode.npz"]
    for verdict in verdicts:
        assert verdict.status == "ok", (verdict.problem, [d for d in verdict.differences if not d.within])


def test_a_file_of_another_rank_is_still_held_to_its_numbers(tmp_path):
    arrays = sizes.mgap_files(3, 40, 17, 4, 12)["mgap_refcode"]
    np.savez(tmp_path / "mgap_refcode.npz", **{**arrays, "native_projector_f32": arrays["native_projector_f32"] + 0.05})
    (verdict,) = verify_folder(tmp_path)
    assert [d.name for d in verdict.differences if not d.within] == ["native_projector_f32"]


FEWER_ROWS = [
    "vcd", "icd", "code", "given", "m3id", "ritual", "pai", "mod", "sid", "avisc", "vaf", "nullu", "ed", "asd", "deco", "dola",
    "vista", "haltrapper", "vcd_noise", "opera",
]  # fmt: skip


@pytest.mark.parametrize("stem", FEWER_ROWS)
def test_files_with_fewer_rows_are_checked(tmp_path, stem):
    with np.load(SHIPPED / f"{stem}.npz") as file:
        arrays = sizes.fewer(stem, dict(file))
    if stem == "opera":
        for window in ("short", "long"):
            arrays[f"{window}_rollback_loc"] = mode([mode(row.tolist()) for row in arrays[f"{window}_rollback_locs"]])
    np.savez(tmp_path / f"{stem}.npz", **arrays)
    (verdict,) = verify_folder(tmp_path)
    assert verdict.status == "ok", (verdict.problem, [d for d in verdict.differences if not d.within])


def test_haltrapper_files_with_several_captions_are_checked(tmp_path):
    with np.load(SHIPPED / "haltrapper.npz") as file:
        arrays = dict(file)
    for name in ("attn_context", "attn_object"):
        arrays[name] = np.concatenate([arrays[name], arrays[name]], axis=1)
    arrays["ig_similarity"] = np.stack([arrays["ig_similarity"], arrays["ig_similarity"]])
    np.savez(tmp_path / "haltrapper.npz", **arrays)
    (verdict,) = verify_folder(tmp_path)
    assert verdict.status == "ok", verdict.problem


@pytest.mark.parametrize(
    ("stem", "array"),
    [("mgap_paper", "logits_cut"), ("mgap_paper", "projector"), ("mgap_paper", "beta"), ("mgap_paper", "h_cut"),
     ("mgap_refcode", "default_logits"), ("mgap_refcode", "no_gate_gate"), ("mgap_refcode", "no_restore_h_final"),
     ("mgap_refcode", "default_logits_with_bias"), ("mgap_refcode", "native_logits_f16"), ("mgap_edges", "entropy_with_eps"),
     ("mgap_edges", "cos"), ("dola", "out"), ("dola", "js"), ("dola", "mature_logits"), ("deco", "out"), ("deco", "max_prob"),
     ("deco", "layer_logits"), ("mod", "image_attention"), ("mod", "masked_idx"), ("mod", "js"), ("mod", "mode"),
     ("mod", "out"), ("mod", "argmax"), ("sid", "image_attention"), ("sid", "kept_idx"), ("sid", "visible"),
     ("sid", "share_count"), ("sid", "attn_probs"), ("sid", "out"), ("sid", "out_uncut"), ("avisc", "layer_share"),
     ("avisc", "layers"), ("avisc", "n_layers"), ("avisc", "token_attention"), ("avisc", "threshold"), ("avisc", "masked"),
     ("avisc", "out"), ("avisc", "argmax"),
     ("ed", "attention_map"), ("ed", "crop_sums"), ("ed", "weights"), ("ed", "ensemble"), ("ed", "out"), ("ed", "fast_crop"),
     ("ed", "out_fast"), ("haltrapper", "ig_similarity"), ("haltrapper", "out_contrastive"),
     ("haltrapper", "out_augmentive"), ("opera", "short_local_scores_f64"), ("opera", "short_penalty"),
     ("opera", "short_rollback_locs"), ("opera", "long_rollback_loc"), ("opera", "long_rollback_score_f64"),
     ("opera", "long_penalty"), ("opera", "long_adjusted"), ("opera", "long_image_attention"),
     ("vaf", "attn_scores_edited"), ("vaf", "attn_probs_after"), ("vaf", "step_probs_after"), ("vaf", "blocks"),
     ("vista", "vsv"), ("vista", "gain"), ("vista", "steered"), ("vista", "steered_no_gain"), ("vista", "mean_logits"),
     ("vista", "out"), ("vista", "out_normed"),
     ("given", "out_contrast"), ("given", "out_agree"), ("given", "out_guide"), ("given", "out_pair"), ("given", "out_gated"),
     ("given", "divergence"), ("given", "pair"), ("given", "js"), ("given", "nested_boxes"),
     ("icd", "out"), ("icd", "argmax"), ("icd", "out_with_vcd"), ("icd", "argmax_with_vcd"),
     ("ritual", "out"), ("ritual", "argmax"), ("ritual", "blur_kernel")],
)  # fmt: skip
def test_an_altered_array_is_noticed(vectors, tmp_path, stem, array, monkeypatch, capsys):
    with np.load(vectors / f"{stem}.npz") as file:
        arrays = dict(file)
    step = 1 if arrays[array].dtype.kind == "i" else 0.05 if "native" in array else 1e-7
    arrays[array] = arrays[array] + np.asarray(step, arrays[array].dtype)
    np.savez(tmp_path / f"{stem}.npz", **arrays)
    (verdict,) = verify_folder(tmp_path)
    assert verdict.status == "failed"
    assert any(d.name.startswith(array) for d in verdict.differences if not d.within)
    monkeypatch.setattr(sys, "argv", ["mgap", "verify", str(tmp_path)])
    with pytest.raises(SystemExit) as leave:
        main()
    assert leave.value.code == 1
    assert array in capsys.readouterr().out


@pytest.mark.parametrize(
    ("alter", "name"),
    [
        (lambda v: v["expansion"]["parsed"]["E"].update(reason="The image features a person, it"), "parsed_E"),
        (lambda v: v["expansion"]["parsed"]["NE"].update(reason=""), "parsed_NE"),
        (lambda v: v["expansion"]["replies"].update(S="Imagination: cup"), "parsed_S"),
        (lambda v: v["expansion"]["ee_scores"].update(bird=-1), "ee_scores"),
        (lambda v: v["selection"][0]["candidates"].remove("tv"), "candidates_0"),
        (lambda v: v["selection"][3].update(random_seed=1), "candidates_3"),
        (lambda v: v["selection"][1].update(number=6), "candidates_1"),
        (lambda v: v["selection"][2]["ig_cos"].update(bus=0.5), "candidates_2"),
    ],
)
def test_an_altered_word_is_noticed(vectors, tmp_path, alter, name):
    content = json.loads((vectors / "haltrapper.json").read_text())
    alter(content)
    (tmp_path / "haltrapper.json").write_text(json.dumps(content))
    (verdict,) = verify_folder(tmp_path)
    assert verdict.status == "failed"
    assert name in [d.name for d in verdict.differences if not d.within]


def test_words_that_are_not_where_they_should_be_fail(tmp_path):
    for content in ("[]", "{}", '{"expansion": 1, "synonyms": {}}', "{"):
        (tmp_path / "haltrapper.json").write_text(content)
        (verdict,) = verify_folder(tmp_path)
        assert verdict.status == "failed"
        assert "cannot be read" in verdict.problem


def test_a_method_that_is_not_here_is_listed_as_such(vectors, tmp_path):
    shutil.copy(vectors / "vcd.npz", tmp_path / "soothsayer.npz")
    (verdict,) = verify_folder(tmp_path)
    assert (verdict.status, verdict.method) == ("absent", "soothsayer")


def test_a_file_of_a_known_method_that_nothing_checks_fails(vectors, tmp_path):
    shutil.copy(vectors / "mgap_edges.npz", tmp_path / "mgap_new.npz")
    (verdict,) = verify_folder(tmp_path)
    assert verdict.status == "failed"


def test_a_damaged_file_fails(tmp_path):
    (tmp_path / "mgap_paper.npz").write_bytes(b"PK\x03\x04 rubbish")
    (verdict,) = verify_folder(tmp_path)
    assert verdict.status == "failed"
    assert "cannot be read" in verdict.problem


def test_infinities_must_stand_in_the_same_places():
    reference = np.array([1.0, -np.inf])
    assert differ("x", torch.tensor([1.0, -torch.inf]), reference).within
    assert not differ("x", torch.tensor([-torch.inf, 1.0]), reference).within
    assert not differ("x", torch.tensor([1.0, 2.0]), reference).within
    assert not differ("x", torch.tensor([torch.nan, -torch.inf]), reference).within
    assert not differ("x", torch.tensor([1.0]), reference).within
