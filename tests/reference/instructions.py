"""ICD's branch as a person would write it: the whole prompt as text, then the processor."""

from tests.reference.contrast import cut


def disturbed(backbone, picture, question, instruction, placement):
    """One row: picture, question and instruction to model inputs."""
    if placement == "prefix_after_image":
        return backbone.encode([picture], [f"{instruction} {question}"])
    text = backbone.render(question)
    opening = "<|vision_start|>" if "<|vision_start|>" in text else "<image>"
    if placement == "prefix_before_image":
        text = text.replace(opening, f"{instruction} {opening}")
    elif opening == "<image>":
        text = f"{instruction} {text}"
    else:
        text = f"<|im_start|>system\n{instruction}<|im_end|>\n{text}"
    return backbone.encode_rendered([picture], [text])


def with_noise(alpha, beta):
    """The sum with VCD: the main logits count twice, and each branch is taken away."""

    def step(main, told, noised, _t):
        scores = []
        for a, b, c in zip(main, told, noised, strict=True):
            scores.append((1 + alpha) * a - alpha * b + (1 + alpha) * a - alpha * c)
        return cut(scores, main, beta)

    return step


def subtracting(lam, beta):
    def step(main, branch, _t):
        return cut([a - lam * b for a, b in zip(main, branch, strict=True)], main, beta)

    return step
