"""VLMEvalKit's run.py with models of ours beside its own; copy this file and change what it registers.

python examples/vlmevalkit/run.py --model llava-vanilla llava-mgap --data POPE --judge exact_matching
"""

from mgap.integrations.vlmevalkit import register, run

SHORT = {"max_new_tokens": 32}
register("llava-vanilla", "llava-hf/llava-1.5-7b-hf", method="vanilla", decoding=SHORT)
register("llava-mgap", "llava-hf/llava-1.5-7b-hf", method="mgap", alpha=0.75, decoding=SHORT)
register("qwen3-vl-mgap", "Qwen/Qwen3-VL-8B-Instruct", method="mgap", decoding=SHORT)

register("pocket-vanilla", "pocket/llava", method="vanilla", decoding=SHORT)
register("pocket-mgap", "pocket/llava", method="mgap", decoding=SHORT)
register("pocket-mgap-6", "pocket/llava", method="mgap", alpha=6, decoding=SHORT)
register("pocket-bias", "pocket/llava", method="bias", shift=-1.5, decoding=SHORT)
register("pocket-qwen", "pocket/qwen3-vl", method="vanilla", decoding=SHORT)

if __name__ == "__main__":
    run()
