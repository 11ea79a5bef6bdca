"""Flags that the tests add to commands, by the shell function that a command then calls: its own text is run as it stands.

A later flag replaces an earlier one, for mgap as for argparse. Every entry says why.
Nothing is added to a block whose output the page shows.
"""

from __future__ import annotations

import re

from reading import Command

ADDED = (  # what a simple command matches, the flags, and why
    (r"mgap inspect\b", "--port 0", "7860 may be another program's here"),
    (
        r"mgap run \S*captions .*--images coco/val2014",
        "--data CHAIR --limit 6 --decoding max_new_tokens=5 --set haltrapper.length=8 --set code.length=8",
        "COCO's annotations are 250 MB; a bank needs more states than neighbours, and two methods describe the picture first",
    ),
    (r"mgap run .*--images coco/val2014", "--limit 1 --split adversarial", "POPE asks 3000 questions a split"),
    (r"mgap run \S*departure", "--scenes 12", "500 scenes; a bank needs more states than neighbours"),
    (r"mgap run (\S*/)?(pope|sensitivity|vcd|efficiency)", "--scenes 2 --split adversarial", "500 scenes in three splits"),
    (r"mgap run hallusionbench", "--limit 2 --decoding max_new_tokens=8", "1129 questions"),
    (r"mgap run (\S*/)?(chair|amber|ablation)", "--scenes 2", "500 scenes"),
    (r"mgap diagnose .*--images coco/val2014", "--limit 6 --split adversarial", "500 pictures"),
    (r"mgap diagnose .*--questions", "--limit 6", "12 pictures; a bank needs more states than neighbours"),
    (r"mgap diagnose ", "--scenes 3", "100 scenes, or 500"),
    (r"mgap tune (?!.*--questions)", "--scenes 12 --grid alpha=0,1 --grid rank=5", "hundreds of settings on 300 scenes"),
    (r"mgap tune ", "--grid alpha=0,1 --grid rank=5", "hundreds of settings"),
    (r"mgap demo", "--questions 12 --captions 2", "900 questions"),
    (r"mgap ask .*--method opera", "--max-new-tokens 8", "its search goes back and forth"),
    (r"python bench/capacity.py", "--questions 20000", "a million questions"),
    (r"python examples/numbers/pocket_answers.py", "--scenes 2", "600 answers a split"),
    (r"python examples/tuning/pocket.py", "--scenes 12 --test-scenes 3 --null-image black336", "600 scenes"),
)


def added(command: Command) -> dict[str, str]:
    """By program, the flags that its command of this text is given."""
    found: dict[str, str] = {}
    for words in command.simple if not command.is_shown else ():
        line = f"{' '.join(words)} "
        flags = next((flags for pattern, flags, _ in ADDED if re.match(pattern, line)), None)
        if flags is not None:
            found[words[0]] = flags
    return found
