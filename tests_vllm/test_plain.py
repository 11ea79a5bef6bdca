"""vLLM without MGAP answers as transformers does: what every other test of this folder stands on."""

from engines import generate


def test_vllm_answers_as_transformers_does(family, world, served, engines):
    (made,) = engines.run(served[family], generate(world.requests()))
    assert [each["tokens"] for each in made] == world.answers()
    assert len({tuple(each["tokens"]) for each in made}) > len(made) // 3  # not one answer to everything


def test_the_prompt_is_the_one_that_transformers_reads(family, world, served, engines):
    (made,) = engines.run(served[family], generate(world.requests()))
    for each, (name, prompt) in zip(made, world.asked, strict=True):
        read = world.model.backbone.encode([world.draw(name)], [prompt])["input_ids"][0]
        assert each["prompt"] == read.tolist()
