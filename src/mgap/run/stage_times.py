"""The time of a run by stage: a table, and a file beside the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgap.backbones.clock import STAGES
from mgap.errors import CorruptFile, one_line
from mgap.io.output_folder import write_files
from mgap.io.strict_json import load_json, strict_json
from mgap.io.typed_json import BROKEN, typed
from mgap.run.engine import Spent
from mgap.run.folder import Shard, locked

REST = "the rest"


def stages_table(spent: Mapping[str, Spent]) -> str:
    """Markdown: one row per stage, one column per method; seconds, and their share of the total."""
    columns = {label: {**each.stages, REST: each.seconds - sum(each.stages.values())} for label, each in spent.items()}
    names = [name for name in STAGES if any(name in stages for stages in columns.values())]
    lines = [f"| seconds (share) | {' | '.join(spent)} |", "|---|" + "---:|" * len(spent)]
    for name in (*names, REST):
        cells = [_cell(stages.get(name, 0.0), spent[label].seconds) for label, stages in columns.items()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append(f"| all | {' | '.join(f'{each.seconds:.2f} of {each.samples} questions' for each in spent.values())} |")
    return "\n".join(lines)


def _cell(seconds: float, total: float) -> str:
    return f"{seconds:.2f} ({seconds / total:.0%})" if total else f"{seconds:.2f}"


def save_profile(folder: Path, shard: Shard, spent: Mapping[str, Spent]) -> Path:
    """Save the times of this process, by method. Each shard has its own file."""
    name = "profile.json" if shard.of == 1 else f"profile-{shard.number}-of-{shard.of}.json"
    path = folder / name
    with locked(folder):
        try:
            before = typed(dict[str, Any], load_json(path)) if path.exists() else {}
        except BROKEN as error:
            raise CorruptFile(f"{path}: not the times of a run ({one_line(error)}); remove it to go on") from error
        times = {**before, **{label: asdict(each) for label, each in spent.items()}}
        text = strict_json(times, required=str(path), indent=1, ensure_ascii=False) + "\n"
        (written,) = write_files(folder, {name: text})
    return written
