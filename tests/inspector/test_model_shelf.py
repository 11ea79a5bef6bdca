"""Models of the page: loaded once whoever asks, with the prior and the bank that belong to them, and refused by a sentence."""

import shutil
import threading

import pytest
import torch

import mgap
from mgap.errors import BackboneMismatch, CorruptFile, ModelError, SettingError
from mgap.inspector.model_shelf import BATCH, CAPTION_SCENES_FACTOR, CAPTION_TOKENS, RANK, ModelShelf
from mgap.pocket.benchmark import DEVELOPMENT, TEST, calibration_prompts
from mgap.pocket.language import DESCRIBE, ask_colour
from mgap.pocket.samples import SceneRenderer, scene_of
from mgap.pocket.tiny import build_tiny
from mgap.priors.bank import Bank
from mgap.priors.prior_plan import Prior

POCKET = "pocket/llava"
SCENES = 6


class Asked:
    """A shelf whose pocket model two threads ask for at once: what they got, and what they heard."""

    def __init__(self) -> None:
        self.shelf = ModelShelf([POCKET, "pocket/qwen3-vl"], device="cpu", scenes=SCENES)
        self.got, self.heard, together = [], [[], []], threading.Barrier(2)

        def ask(number):
            together.wait()
            self.got.append(self.shelf.get(POCKET, lambda *step: self.heard[number].append(step)))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> Asked:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MGAP_CACHE", str(tmp_path_factory.mktemp("empty")))  # the prior is fitted here
        return Asked()


@pytest.fixture(scope="module")
def saved(asked, tmp_path_factory):
    """The pocket model's prior, and its bank, in folders."""
    folder = tmp_path_factory.mktemp("saved")
    asked.got[0].prior.save(folder / "prior")
    asked.got[0].bank.save(folder / "bank")
    return folder


def test_two_who_ask_at_once_get_the_same_model_and_only_one_loads_it(asked):
    first, second = asked.got
    assert first is second is asked.shelf.get(POCKET)
    waited, worked = sorted(asked.heard, key=len)
    assert waited in ([], [(f"waiting for {POCKET}, which is being loaded", 0, 1)])
    assert list(dict.fromkeys(label for label, done, total in worked if done == total)) == [
        f"loading {POCKET}",
        "fitting the prior",
        "states of plain answers",
        "members measured for tau",
    ]


def test_the_prior_is_the_one_that_ask_and_run_fit(asked):
    ready = asked.got[0]
    again = mgap.Subspace.fit(ready.model, calibration_prompts(50), RANK)
    torch.testing.assert_close(ready.prior.truncate(5).projector, Prior().fit(ready.model).projector)
    assert ready.prior.origin["prompts"] == "pocket"
    assert ready.prior.rank == RANK
    assert ready.prior.origin["null_image"] == "black336"
    torch.testing.assert_close(ready.prior.projector, again.projector)


def test_a_pocket_bank_holds_every_state_of_plain_answers_about_development_scenes(asked):
    ready = asked.got[0]
    bank, seeds = ready.bank, ready.bank.origin["scenes"]
    assert ready.why_no_bank == ""
    assert len(seeds) == round(CAPTION_SCENES_FACTOR * SCENES)
    assert all(DEVELOPMENT <= seed < TEST for seed in seeds)
    assert bank.rows.unique().tolist() == list(range(len(seeds)))  # a row is a picture
    pictures = [SceneRenderer()(f"pocket_{seed}.png") for seed in seeds[: BATCH // 2]]
    # in the batch that they were collected in: in bfloat16 another one may break a tie otherwise
    batch = [(picture, wording) for picture in pictures for wording in DESCRIBE[:2]]
    described = list(ready.model.answers(*zip(*batch, strict=True), batch_size=BATCH, max_new_tokens=CAPTION_TOKENS))
    colour = ask_colour(scene_of(f"pocket_{seeds[0]}.png").names[0])
    said = bank.tokens[bank.rows == 0].tolist()
    for answer in (*described[:2], ready.model.answer(pictures[0], colour, max_new_tokens=8)):
        plain = list(answer.token_ids)
        assert any(said[start : start + len(plain)] == plain for start in range(len(said))), answer.text
    assert 8 < int(bank.steps.max()) < 40
    assert len(ready.manifold.states) == len(bank)
    assert ready.manifold.tau > 0


def test_a_prior_with_another_null_image_is_fitted_once_and_in_turn(asked):
    ready = asked.got[0]
    assert ready.prior_of("black336") is ready.prior
    with pytest.raises(RuntimeError, match="acquire its lock first"):
        ready.prior_of("no_image")
    with ready.lock:
        other = ready.prior_of("no_image")
    assert ready.prior_of("no_image") is other
    assert other.origin["null_image"] == "no_image"
    assert torch.linalg.matrix_norm(other.projector - ready.prior.projector) > 1
    with ready.lock:
        described = ready.prior_of("black336", "captions")
    assert described.origin["prompts"] == "captions"
    assert ready.prior_of("black336", "captions") is described


def test_a_name_that_is_not_offered_is_refused(asked):
    with pytest.raises(SettingError, match=r"'pocket/other' is not offered here: choose from pocket/llava, pocket/qwen3-vl"):
        asked.shelf.get("pocket/other")


def test_a_given_prior_and_bank_are_used(saved):
    ready = ModelShelf([POCKET], device="cpu", prior=saved / "prior", bank=saved / "bank").get(POCKET)
    assert torch.equal(ready.prior.basis, mgap.Subspace.load(saved / "prior").basis)
    assert len(ready.bank) == len(Bank.load(saved / "bank"))
    assert ready.manifold is not None


def test_another_models_prior_is_refused_before_weights_are_loaded(saved):
    with pytest.raises(BackboneMismatch, match="the prior was made with pocket/llava"):
        ModelShelf(["pocket/qwen3-vl"], device="cpu", prior=saved / "prior")


def test_a_prior_or_a_bank_of_other_weights_is_refused(checkpoints, tmp_path):
    model = mgap.load(str(checkpoints["llava"]), device="cpu")
    mgap.Subspace.fit(model, mgap.default_prompts()).save(tmp_path / "prior")
    states = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    Bank.of(states, steps=torch.arange(20), identity=model.backbone.identity).save(tmp_path / "bank")
    build_tiny("llava", tmp_path / "other", seed=1)
    other = str(tmp_path / "other")
    for given in ({"prior": tmp_path / "prior"}, {"bank": tmp_path / "bank"}):
        shelf = ModelShelf([other], device="cpu", **given)  # by their configurations they could be the same
        with pytest.raises(BackboneMismatch, match="the weights differ"):
            shelf.get(other)
    assert ModelShelf([str(checkpoints["llava"])], device="cpu", bank=tmp_path / "bank").get(str(checkpoints["llava"])).manifold


def test_one_bank_for_two_models_is_refused_whatever_is_in_it():
    with pytest.raises(SettingError, match=r"--bank b belongs to one model, and 2 are given .*: give one --model with it"):
        ModelShelf([POCKET, "pocket/qwen3-vl"], bank="b")
    with pytest.raises(SettingError, match="--prior p belongs to one model"):
        ModelShelf([POCKET, "pocket/qwen3-vl"], prior="p")


@pytest.mark.filterwarnings("ignore:.* names no model")
def test_a_folder_without_a_bank_and_a_bank_of_first_tokens_are_refused(asked, saved, tmp_path):
    with pytest.raises(CorruptFile, match="no bank"):
        ModelShelf([POCKET], bank=tmp_path)
    Bank.of(asked.got[0].bank.states[:20]).save(tmp_path / "first")
    with pytest.raises(SettingError, match=r"a bank of first tokens only.*mgap run departure-captions --model pocket/llava"):
        ModelShelf([POCKET], bank=tmp_path / "first")


def test_a_model_without_a_bank_says_how_to_get_one(checkpoints):
    name = str(checkpoints["qwen3-vl"])
    ready = ModelShelf([name], device="cpu").get(name)
    assert ready.bank is ready.manifold is None
    assert f"`mgap run departure-captions --model {name} --images FOLDER --out runs/departure`" in ready.why_no_bank
    assert "--bank runs/departure/bank" in ready.why_no_bank


def test_the_command_that_it_names_writes_a_bank_that_it_takes(run, checkpoints, tmp_path):
    name = str(checkpoints["llava"])
    words = ("--dataset", "pocket", "--method", "vanilla", "--scenes", 12, "--decoding", "max_new_tokens=4")
    status, _, err = run("run", "departure-captions", "--model", name, "--out", tmp_path / "departure", *words)
    assert status == 0, err
    ready = ModelShelf([name], device="cpu", bank=tmp_path / "departure" / "bank").get(name)
    assert len(ready.bank) == 48


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        ([], SettingError, "no model to inspect"),
        (["pocket/lava"], ModelError, "no embedded model 'pocket/lava'"),
        ([POCKET, "/nowhere/at/all"], ModelError, "no model '/nowhere/at/all'"),
    ],
)
def test_a_name_without_a_model_is_refused_when_the_shelf_is_made(names, error, words):
    with pytest.raises(error, match=words):
        ModelShelf(names)


def test_a_load_that_failed_can_be_tried_again(checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints["llava"], tmp_path / "model")
    shelf, weights = ModelShelf([str(folder)], device="cpu"), folder / "model.safetensors"
    weights.rename(folder / "away")
    with pytest.raises(ModelError, match="cannot be loaded"):
        shelf.get(str(folder))
    (folder / "away").rename(weights)
    assert shelf.get(str(folder)).name == str(folder)
