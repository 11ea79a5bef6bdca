import pytest
import yaml

from mgap.errors import MgapError, SettingError
from mgap.run.config import Config

GOOD = {"benchmark": "pope", "model": "pocket/llava", "methods": ["vanilla", {"method": "mgap", "alpha": 1}]}


def test_yaml_and_python_take_the_same_keys(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    assert Config.read(str(path)) == Config.of(GOOD)


def test_keys_that_are_given_replace_those_of_the_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    assert Config.read(str(path), scenes=7).scenes == 7


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"metods": ["vanilla"]}, "unknown key 'metods'.*did you mean 'methods'"),
        ({"benchmark": "poppe"}, "unknown benchmark 'poppe'.*did you mean 'pope'"),
        ({"methods": ["mgapp"]}, "unknown method 'mgapp'.*did you mean 'mgap'"),
        ({"methods": []}, "name at least one"),
        ({"methods": ["vanilla", "pai"], "decoding": {"compile": True}}, "pai does not work with compile, static decoding"),
        ({"methods": "vanilla"}, "methods must be a list"),
        ({"methods": [3]}, "3 names no method"),
        ({"methods": [{"method": "mgap", "alfa": 1}]}, "mgap has no setting 'alfa'"),
        ({"methods": [{"method": "vcd", "alpha": "much"}]}, "alpha"),
        ({"methods": [{"method": "vanilla", "alpha": 1}]}, "vanilla takes no settings"),
        ({"methods": [{"method": "vcd", "prior": "x"}]}, "vcd uses no prior"),
        ({"methods": [{"method": "mgap", "prior": {"rang": 3}}]}, "a prior has no key 'rang'"),
        ({"methods": [{"method": "mgap", "prior": {"folder": "x", "rank": 3}}]}, "from a folder or is fitted"),
        ({"methods": ["vanilla", "vanilla"]}, "the same name"),
        ({"decoding": {"max_tokens": 3}}, "unknown decoding option"),
        ({"decoding": 3}, "decoding must hold keys"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"scenes": "many"}, "scenes='many'"),
        ({"prefill": "none"}, "unknown prefill"),
        ({"dataset": "coco"}, "give images"),
        ({"images": "coco", "dataset": "pocket"}, "draws its own pictures"),
        ({"benchmark": "own", "images": "."}, "give questions"),
        ({"benchmark": "chair", "splits": ["random"]}, "splits is a key of pope and repope and departure, not of chair"),
        ({"kinds": "g"}, "kinds is a key of amber"),
        ({"data": "files"}, "draws its own pictures: leave out data"),
        ({"images": ".", "held_out": True}, "held_out is of the pocket world"),
        ({"images": ".", "difficulty": {"noise": 0.1}}, "difficulty is of the pocket world"),
        ({"difficulty": 0.1}, "difficulty must hold keys and values"),
        ({"difficulty": {"noise": float("nan")}}, "difficulty"),
    ],
)
def test_mistakes_are_told_in_a_sentence(change, told):
    with pytest.raises(MgapError, match=told):
        Config.of({**GOOD, **change})


def test_a_missing_key_is_named():
    with pytest.raises(SettingError, match="model is missing"):
        Config.of({"benchmark": "pope", "methods": ["vanilla"]})


def test_a_real_model_without_pictures_is_told_what_to_give():
    with pytest.raises(SettingError, match="give images, the folder of pictures"):
        Config.of({**GOOD, "model": "llava-hf/llava-1.5-7b-hf"})


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\x00"])
def test_a_file_that_is_no_set_of_keys_is_refused(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(SettingError, match=r"run\.yaml"):
        Config.read(str(path))


def test_a_file_that_does_not_exist_is_refused():
    with pytest.raises(SettingError, match="no such file"):
        Config.read("nothing.yaml")


def test_settings_reach_the_methods_of_a_name_or_label():
    config = Config.of({**GOOD, "methods": ["mgap", {"method": "mgap", "label": "strong", "alpha": 2}]})
    changed = config.with_settings({"mgap": {"lam": 0.25}, "strong": {"alpha": 6}})
    assert [dict(plan.settings) for plan in changed.methods] == [{"lam": 0.25}, {"alpha": 6, "lam": 0.25}]
    with pytest.raises(SettingError, match="settings for 'vcd', which is no method of this run"):
        config.with_settings({"vcd": {"alpha": 1}})


def test_a_method_is_checked_with_the_settings_that_are_given_beside_it():
    keys = {**GOOD, "methods": ["bias", {"method": "haltrapper", "label": "trap"}], "pocket": {"haltrapper": {"length": 96}}}
    config = Config.of(keys, settings={"bias": {"shift": 1.5}, "haltrapper": {"length": 8}})  # bias needs a shift
    assert [dict(plan.settings) for plan in config.methods] == [{"shift": 1.5}, {"length": 8}]
    with pytest.raises(SettingError, match="needs a setting"):
        Config.of(keys)
    with pytest.raises(SettingError, match="settings for 'vcd', which is no method of this run: bias, trap"):
        Config.of(keys, settings={"bias": {"shift": 1.5}, "vcd": {"alpha": 1}})


def test_a_prior_may_be_a_folder():
    config = Config.of(GOOD).with_settings({"mgap": {"prior": "priors/llava"}})
    assert config.methods[1].prior.folder == "priors/llava"


def test_settings_for_the_pocket_world_hold_there_only():
    keys = {**GOOD, "methods": ["mod", "haltrapper"], "pocket": {"haltrapper": {"length": 96}}}
    assert dict(Config.of(keys).methods[1].settings) == {"length": 96}
    assert dict(Config.of({**keys, "images": "coco"}).methods[1].settings) == {}
    assert len(Config.of({**keys, "methods": ["mod"]}).methods) == 1
