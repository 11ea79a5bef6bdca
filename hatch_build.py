"""What a package index shows of README.md: links that lead into the repository, or plain words while no address of it is known.

The address is `Repository` of `[project.urls]` in pyproject.toml. Hatch runs this when it builds the wheel and the sdist.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")  # of a file or a folder of the repository


class Readme(MetadataHookInterface):
    """The project's description."""

    PLUGIN_NAME = "readme"

    def update(self, metadata: dict[str, Any]) -> None:
        address = metadata.get("urls", {}).get("Repository", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")

        def lead(link: re.Match[str]) -> str:
            picture, words, path = link.groups()
            if not address:
                return "" if picture else words
            kind = "raw" if picture else "tree" if (Path(self.root) / path).is_dir() else "blob"
            return f"{picture}[{words}]({address}/{kind}/v{metadata['version']}/{path})"

        parts = FENCE.split(text)  # prose at even places, fenced blocks at odd ones
        parts[::2] = [LINK.sub(lead, part) for part in parts[::2]]
        metadata["readme"] = {"content-type": "text/markdown", "text": "".join(parts)}
