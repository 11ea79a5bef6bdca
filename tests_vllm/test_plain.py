"""vLLM without MGAP answers as transformers does: what every other test of this folder stands on."""

import base64
import io

import pytest
from engines import Refused, call, generate
from worker import picture
from worlds import TOKENS

import mgap
from mgap.registry import EMBEDDED


def test_vllm_answers_as_transformers_does(family, world, served, engines):
    want = world.answers()  # while the engine's process imports vLLM
    (made,) = engines.run(served[family], generate(world.requests()))
    assert [each["tokens"] for each in made] == want
    assert len({tuple(each["tokens"]) for each in made}) > len(made) // 3  # not one answer to everything


def test_a_prompt_is_read_as_transformers_reads_it_and_so_is_a_chat(family, world, served, engines):
    chats = [{"name": name, "prompt": prompt} for name, prompt in world.asked[::5]]
    read = [world.model.backbone.encode([world.draw(name)], [prompt])["input_ids"][0] for name, prompt in world.asked]
    made, chatted = engines.run(served[family], generate(world.requests()), call("test_plain:chat", chats=chats))
    assert [each["prompt"] for each in made] == [row.tolist() for row in read]
    assert [each["prompt"] for each in chatted] == [row.tolist() for row in read[::5]]
    assert [each["tokens"] for each in chatted] == world.answers()[::5]


def chat(llm, chats):
    """In the engine's process: what the chat endpoint does with messages, by the checkpoint's own template."""
    from vllm import SamplingParams

    messages = []
    for asked in chats:
        parts = [{"type": "image_url", "image_url": {"url": data_url(picture(asked["name"]))}}]
        messages.append([{"role": "user", "content": [*parts, {"type": "text", "text": asked["prompt"]}]}])
    made = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=TOKENS), use_tqdm=False)
    return [{"prompt": list(each.prompt_token_ids), "tokens": list(each.outputs[0].token_ids)} for each in made]


def data_url(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def test_random_weights_are_answered_with_alike(family, tiny, world, engines):
    """Answers of random weights go through many more tokens than the pocket models'."""
    model = mgap.load(str(tiny[family]), dtype="float32", device="cpu")
    asked = world.asked[:8]
    want = [list(model.answer(world.draw(name), prompt, max_new_tokens=16).token_ids) for name, prompt in asked]
    tokens = [model.backbone.tokenize(model.backbone.render(prompt)) for _, prompt in asked]
    options = {"max_tokens": 16}
    requests = [{"tokens": t, "picture": n, "sampling": options} for t, (n, _) in zip(tokens, asked, strict=True)]
    (made,) = engines.run(tiny[family], generate(requests))
    assert [each["tokens"] for each in made] == want


def test_what_the_package_holds_cannot_be_served_without_a_copy(family, served, engines):
    """If this fails, vLLM has learnt to read it, and `servable` can do less."""
    with pytest.raises(Refused):
        engines.run(EMBEDDED[f"pocket/{family}"], generate([]))
