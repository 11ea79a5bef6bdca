"""Nullu in a checkpoint: it says what the hooks say, in transformers alone, or is refused and leaves nothing."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModelForImageTextToText
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeTextConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeTextSparseMoeBlock
from transformers.pytorch_utils import Conv1D

import mgap
from mgap.backbones.base import Backbone
from mgap.backbones.block_mlp import block_mlps, output_weights
from mgap.errors import BackboneMismatch, ModelError, SettingError
from mgap.methods.nullu import project_out
from mgap.methods.nullu_export import export, projected_weights

WIDTH = 8


@pytest.fixture
def exact(family, checkpoints):
    return mgap.load(str(checkpoints[family]), dtype=torch.float32)


def drawn_space(blocks=3, width=64, rank=24):
    drawn = torch.randn(2, 60, blocks, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return mgap.NullSpace.from_states(*drawn, rank=rank)


def logits_of(own, inputs):
    with torch.no_grad():
        return own(**inputs).logits


@pytest.mark.both_families
def test_the_checkpoint_loads_in_transformers_and_says_what_the_hooks_say(exact, picture, tmp_path):
    method, backbone = mgap.Nullu(space=drawn_space(), strength=0.75), exact.backbone
    inputs, folder = backbone.encode([picture], ["What?"]), tmp_path / "made"
    plain = logits_of(backbone.model, inputs)
    export(exact, method, folder)
    assert torch.equal(logits_of(backbone.model, inputs), plain), "the model itself stays"
    with exact.using(method):
        hooked, said = logits_of(backbone.model, inputs), exact.answer(picture, "What?", max_new_tokens=6).token_ids
    assert not torch.allclose(hooked, plain, atol=1e-2)
    torch.testing.assert_close(
        logits_of(AutoModelForImageTextToText.from_pretrained(folder), inputs), hooked, atol=1e-5, rtol=1e-5
    )
    again = mgap.load(str(folder))
    assert {key: value.tolist() for key, value in again.backbone.encode([picture], ["What?"]).items()} == {
        key: value.tolist() for key, value in inputs.items()
    }
    assert again.answer(picture, "What?", max_new_tokens=6).token_ids == said
    assert [path.name for path in tmp_path.iterdir()] == ["made"], "nothing unfinished is left"


def test_the_card_says_what_was_done_to_which_model(exact, tmp_path):
    export(exact, mgap.Nullu(space=drawn_space(), start=2), tmp_path / "made")
    record = json.loads((tmp_path / "made" / "nullu.json").read_text())
    told = {key: record[key] for key in ("rank", "blocks", "depth", "pairs", "dropped", "strength")}
    assert told == {"rank": 24, "blocks": [2], "depth": 3, "pairs": 60, "dropped": 0, "strength": 1.0}
    assert record["model"] == json.loads(json.dumps(exact.backbone.identity.to_json()))
    inside, outside = record["singular_values"]["2"]
    assert inside > outside > 0
    card = (tmp_path / "made" / "README.md").read_text()
    for words in ("(K) | 24 |", "2 to 2 of 3", "| 60, and 0", exact.backbone.name, f"| 2 | {inside:.4g} | {outside:.4g} |"):
        assert words in card


def test_the_command_writes_it(run, exact, tmp_path):
    space = drawn_space()
    mgap.NullSpace(**{**vars(space), "identity": exact.backbone.identity}).save(tmp_path / "space")
    words = ["export", "nullu", "-m", exact.backbone.name, "--space", tmp_path / "space", "-o", tmp_path / "made"]
    status, out, err = run(*words, "--strength", 0.5)
    assert status == 0, err
    assert out == f"{tmp_path / 'made'}: rank 24 out of blocks 1 to 2 of 3, from 60 pairs\n"
    assert json.loads((tmp_path / "made" / "nullu.json").read_text())["strength"] == 0.5
    for more, said in (([], "is there already"), (["-o", tmp_path / "new", "--strength", 0], "changes no weight"),
                       (["-o", tmp_path / "new", "--space", tmp_path], "no saved null_space"),
                       (["-o", tmp_path / "new", "--end", 9], "blocks 1 to 2")):  # fmt: skip
        status, _, err = run(*words, *more)
        assert status == 2
        assert said in err
        assert "loading" not in err


def test_an_existing_folder_is_refused_and_left_alone(exact, tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path, tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingError, match=r"already|no folder"):
            export(exact, mgap.Nullu(space=drawn_space()), folder)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_edited_is_refused_and_nothing_changes(exact, picture, tmp_path, monkeypatch):
    method, backbone = mgap.Nullu(space=drawn_space()), exact.backbone
    inputs, layers = backbone.encode([picture], ["What?"]), backbone.layers
    plain = logits_of(backbone.model, inputs)

    def refused(kind, said):
        with pytest.raises(kind, match=said):
            export(exact, method, tmp_path / "made")
        assert not list(tmp_path.iterdir())

    with exact.using(method):
        refused(SettingError, "remove them first")
    with monkeypatch.context() as patch:
        patch.setattr(backbone.config, "quantization_config", {"bits": 4}, raising=False)
        refused(ModelError, "quantised")
    with monkeypatch.context() as patch:
        patch.setattr(backbone.model, "_hf_peft_config_loaded", True, raising=False)
        refused(ModelError, "adapter")
    own, other = layers[2].mlp.down_proj, layers[1].mlp.down_proj
    layers[2].mlp.down_proj = nn.Sequential(own)
    refused(ModelError, "down_proj is a Sequential")
    layers[2].mlp.down_proj = other
    refused(ModelError, "shared with another part")
    layers[2].mlp.down_proj = own
    mlp, layers[2].mlp = layers[2].mlp, layers[1].mlp
    refused(ModelError, "share one MLP")
    layers[2].mlp = mlp
    monkeypatch.setattr(backbone.model, "save_pretrained", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    refused(ModelError, "disk full")
    assert torch.equal(logits_of(backbone.model, inputs), plain)
    drawn = drawn_space(width=32)
    with pytest.raises(BackboneMismatch, match="fit one"):
        export(exact, mgap.Nullu(space=drawn), tmp_path / "made")


# --- other kinds of MLPs ----------------------------------------------------------------------------------------------


class OneBlock(nn.Module):
    """A decoder of one block, with nothing but an MLP."""

    def __init__(self, mlp):
        super().__init__()
        self.embedding = nn.Embedding(4, WIDTH)
        self.layers = nn.ModuleList([nn.ModuleDict({"mlp": mlp})])
        self.layers[0].mlp = mlp
        text = SimpleNamespace(hidden_size=WIDTH)
        self.config = SimpleNamespace(model_type="none", get_text_config=lambda: text, _name_or_path="made")

    def get_decoder(self):
        return self

    def get_input_embeddings(self):
        return self.embedding


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(12, WIDTH), Conv1D(WIDTH, 12)
        nn.init.normal_(self.c_proj.bias)

    def forward(self, x):
        return self.c_proj(self.c_fc(x).relu())


class Mixture(nn.Module):
    """Experts stored as [experts, inner, d], with a bias; all are used."""

    def __init__(self, inner=12):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, WIDTH, inner))
        self.down_proj = nn.Parameter(torch.randn(3, inner, WIDTH))
        self.down_proj_bias = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, x):
        y = x.reshape(-1, WIDTH)
        out = (y @ self.up).relu() @ self.down_proj + self.down_proj_bias[:, None]
        return out.sum(0).reshape(x.shape), "router"


class WithSharedExpert(nn.Module):
    """Writes through a projection that has another name, too."""

    def __init__(self, name):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        setattr(self, name, nn.Linear(12, WIDTH))
        self.shared = name

    def forward(self, x):
        inner = self.fc1(x).relu()
        return self.fc2(inner) + getattr(self, self.shared)(inner)


def of_experts():
    config = Qwen3VLMoeTextConfig(
        hidden_size=WIDTH, moe_intermediate_size=6, num_experts=4, num_experts_per_tok=2, num_hidden_layers=1
    )
    mlp = Qwen3VLMoeTextSparseMoeBlock(config)
    for parameter in mlp.parameters():
        nn.init.normal_(parameter)
    return mlp


def written(mlp, x):
    out = mlp(x)
    return (out[0] if isinstance(out, tuple) else out).detach()


MADE = {
    "experts": of_experts,
    "transposed": Transposed,
    "mixture with a bias": Mixture,
    "both known": lambda: WithSharedExpert("w2"),
}


@pytest.mark.parametrize("kind", MADE)
def test_every_kind_of_mlp_is_projected_on_its_output_side(kind):
    torch.manual_seed(0)
    mlp = MADE[kind]()
    backbone, x = Backbone(OneBlock(mlp)), torch.randn(2, 5, WIDTH)
    space = drawn_space(1, WIDTH, 3)
    method, plain = mgap.Nullu(space=space, strength=0.5), written(mlp, x)
    with projected_weights(backbone, method):
        edited = written(mlp, x)
    torch.testing.assert_close(edited, project_out(plain, space.bases[0].float(), 0.5), atol=1e-5, rtol=1e-5)
    assert torch.equal(written(mlp, x), plain)


def test_an_mlp_with_another_way_out_is_refused_and_restored():
    torch.manual_seed(0)
    mlp = WithSharedExpert("gate_down")
    plain = {name: values.clone() for name, values in mlp.state_dict().items()}
    with (
        pytest.raises(ModelError, match="still writes"),
        projected_weights(Backbone(OneBlock(mlp)), mgap.Nullu(space=drawn_space(1, WIDTH, 3))),
    ):
        pass
    assert all(torch.equal(values, plain[name]) for name, values in mlp.state_dict().items())


def test_mlps_that_are_not_found_are_refused():
    with pytest.raises(ModelError, match="no down projection"):
        output_weights(Backbone(OneBlock(nn.Sequential(nn.Linear(WIDTH, WIDTH)))), [0])
    with pytest.raises(ModelError, match="cannot be told"):
        output_weights(Backbone(OneBlock(Mixture(inner=WIDTH))), [0])
    bare = OneBlock(Transposed())
    bare.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
    with pytest.raises(ModelError, match="block 0 has no MLP"):
        block_mlps(Backbone(bare))
    meta = OneBlock(Transposed().to("meta"))
    with pytest.raises(ModelError, match="not in memory"):
        output_weights(Backbone(meta), [0])
