"""Other methods than MGAP in vLLM say what they say in transformers: the predicted prior, and a weight edit."""

import pytest
from engines import CARDS, SECOND, Refused, generate, needs_second
from strengths import tokens, with_alpha
from worlds import TOKENS

import mgap
from mgap.methods.nullu_export import export
from mgap.pocket.fit_map import fit_pocket_map
from mgap.pocket.fit_null_space import fit_null_space
from mgap.serving.checkpoint import servable

RHOS = (2.0, 0.0, 6.0)  # of every third request


@pytest.fixture(scope="module")
def maps(worlds, work):
    """By family, a prior map and the folder that it is saved in."""

    class Fitted(dict):
        def __missing__(self, family):
            folder = work / f"map-{family}"
            self[family] = fit_pocket_map(worlds[family].model), folder
            self[family][0].save(folder)
            return self[family]

    return Fitted()


def answers(world, method):
    """Of transformers, to every question of the world."""
    with world.model.using(method):
        return [list(world.model.answer(world.draw(name), ask, max_new_tokens=TOKENS).token_ids) for name, ask in world.asked]


def serving(folder, **settings):
    return {"additional_config": {"mgap": {"method": "predicted-prior", "prior_map": str(folder), **settings}}}


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_a_predicted_prior(world, maps, served, engines, gated):
    fitted, folder = maps[world.family]
    expected = {rho: answers(world, mgap.PredictedPrior(fitted, rho=rho, gate=gated, protect=gated)) for rho in RHOS}
    own = [RHOS[number % 3] for number in range(len(world.asked))]
    requests = world.requests()
    mixed = [each if rho == RHOS[0] else with_alpha([each], rho)[0] for each, rho in zip(requests, own, strict=True)]
    on = serving(folder, rho=RHOS[0], gate=gated, protect=gated)
    ran = engines.run(served[world.family], generate(requests), generate(mixed), **on)
    assert tokens(ran[0]) == expected[RHOS[0]]
    assert tokens(ran[1]) == [expected[rho][number] for number, rho in enumerate(own)]
    assert expected[0.0] == world.answers()
    assert sum(a != b for a, b in zip(expected[RHOS[0]], expected[0.0], strict=True)) >= 5
    assert sum(a != b for a, b in zip(expected[RHOS[2]], expected[RHOS[0]], strict=True)) >= 5
    assert "MGAP on " in ran.log
    assert "predicted-prior, K=5" in ran.log


@needs_second
def test_a_predicted_prior_under_the_second_model_runner(llava, maps, served, engines):
    fitted, folder = maps["llava"]
    few = range(len(llava.asked)) if CARDS else range(8, 14)
    expected = {rho: answers(llava, mgap.PredictedPrior(fitted, rho=rho)) for rho in RHOS}
    requests = [with_alpha([llava.requests(max_tokens=8)[number]], RHOS[number % 3])[0] for number in few]
    (made,) = engines.run(served["llava"], generate(requests), env=SECOND, **serving(folder))
    assert tokens(made) == [expected[RHOS[number % 3]][number][:8] for number in few]


def test_a_map_of_another_model_is_refused(llava, maps, served, engines):
    with pytest.raises(Refused, match=r"was made with pocket/llava, not with"):
        engines.run(served["qwen3-vl"], **serving(maps["llava"][1]))


def test_settings_that_a_predicted_prior_does_not_have(llava, maps, served, engines):
    with pytest.raises(Refused, match="unknown key 'alpha'; choose from prior_map, rho"):
        engines.run(served["llava"], **serving(maps["llava"][1], alpha=1))
    with pytest.raises(Refused, match="method='vcd': choose from mgap, predicted-prior"):
        engines.run(served["llava"], additional_config={"mgap": {"method": "vcd"}})


def test_a_weight_edit_is_served_as_a_checkpoint_alone_and_under_mgap(family, worlds, served, engines, work):
    """Nullu: its hooks in transformers, and its weights in vLLM; with MGAP, both act."""
    world, folder = worlds[family], work / f"nullu-{family}"
    method = mgap.Nullu(space=fit_null_space(world.model))
    export(world.model, method, folder)
    edited = mgap.load(str(folder), dtype="float32", device="cpu")
    prior = mgap.Subspace.fit(edited, mgap.default_prompts())
    prior.save(work / f"prior-nullu-{family}")
    expected = answers(world, method)
    with edited.using(mgap.MGAP(prior, alpha=5.0)):
        both = [list(edited.answer(world.draw(name), ask, max_new_tokens=TOKENS).token_ids) for name, ask in world.asked]
    on = {"additional_config": {"mgap": {"prior": str(work / f"prior-nullu-{family}"), "alpha": 5.0}}}
    requests = world.requests()
    ran = engines.run(
        servable(str(folder), work / f"served-nullu-{family}"), generate(with_alpha(requests, 0)), generate(requests), **on
    )
    assert tokens(ran[0]) == expected
    assert tokens(ran[1]) == both
    assert sum(a != b for a, b in zip(expected, world.answers(), strict=True)) >= 3
    assert sum(a != b for a, b in zip(both, expected, strict=True)) >= 3
