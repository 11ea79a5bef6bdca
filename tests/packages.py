"""Packages of other people, as `pip install` leaves them behind: modules, and metadata that names their entry points."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest


@contextmanager
def installed(place: Path, modules: Mapping[str, str], points: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """Inside the block the modules can be imported from `place`; `points` are targets by group and name."""
    info = place / "other_package-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{name} = {to}\n" for name, to in named.items()) for group, named in points.items())
    )
    for name, text in modules.items():
        (place / f"{name}.py").write_text(dedent(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        yield
    for name in modules:
        sys.modules.pop(name, None)
