"""`mgap verify`: green on the published vectors, red on anything altered."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch

from mgap.cli.main import main
from mgap.verify.compare import CHECKS, differ, verify_folder


@pytest.fixture
def vectors(shared):
    return shared / "fixtures" / "methods"


def test_every_mgap_file_is_within_tolerance(vectors):
    verdicts = {v.file: v for v in verify_folder(vectors)}
    for stem in CHECKS:
        verdict = verdicts[stem if "." in stem else f"{stem}.npz"]
        assert verdict.status == "ok", [d for d in verdict.differences if not d.within]
        assert all(d.largest < 1e-12 for d in verdict.differences if d.tolerance < 1e-6)
    assert verdicts["vcd.npz"].status in ("ok", "absent")


@pytest.mark.parametrize(
    ("stem", "array"),
    [("mgap_paper", "logits_cut"), ("mgap_paper", "projector"), ("mgap_paper", "beta"), ("mgap_paper", "h_cut"),
     ("mgap_refcode", "default_logits"), ("mgap_refcode", "no_gate_gate"), ("mgap_refcode", "no_restore_h_final"),
     ("mgap_refcode", "default_logits_with_bias"), ("mgap_refcode", "native_logits_f16"), ("mgap_edges", "entropy_with_eps"),
     ("mgap_edges", "cos"), ("dola", "out"), ("dola", "js"), ("dola", "mature_logits"), ("deco", "out"), ("deco", "max_prob"),
     ("deco", "layer_logits"), ("mod", "image_attention"), ("mod", "masked_idx"), ("mod", "js"), ("mod", "mode"),
     ("mod", "out"), ("mod", "argmax"), ("haltrapper", "ig_similarity"), ("haltrapper", "out_contrastive"),
     ("haltrapper", "out_augmentive"), ("opera", "short_local_scores_f64"), ("opera", "short_penalty"),
     ("opera", "short_rollback_locs"), ("opera", "long_rollback_loc"), ("opera", "long_rollback_score_f64"),
     ("opera", "long_penalty"), ("opera", "long_adjusted"), ("opera", "long_image_attention"),
     ("icd", "out"), ("icd", "argmax"), ("icd", "out_with_vcd"), ("icd", "argmax_with_vcd")],
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
