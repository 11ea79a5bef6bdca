"""Write a prior as a repository for `model.generate(custom_generate=...)`: the saved prior, code, requirements and a card."""

from __future__ import annotations

import base64
from os import PathLike
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING

from safetensors.torch import save

from mgap.errors import SettingError
from mgap.io.output_folder import write_files
from mgap.priors.custom_generate.card import write_card

if TYPE_CHECKING:
    from mgap.priors.subspace import Subspace

CODE = Path(__file__).with_name("standalone.py")
REQUIREMENTS = "torch>=2.8\ntransformers>=5.16.1\nsafetensors\n"
_WIDTH = 120  # of a line of data


def write_repository(prior: Subspace, folder: str | PathLike[str], repo: str) -> None:
    """Write everything to `folder`; `repo` is the name that the card's example uses."""
    texts = repository_files(prior, repo)  # refuses before anything is written
    prior.save(folder)
    write_files(Path(folder) / "custom_generate", {name: text for name, text in texts.items() if name != "README.md"})
    write_files(folder, {"README.md": texts["README.md"]})


def repository_files(prior: Subspace, repo: str) -> dict[str, str]:
    """The card and the files of `custom_generate/`, by name."""
    model = prior.identity
    if model is None or not model.tensors:
        raise SettingError(
            "a prior that does not describe its model cannot be shared as code, because it could not refuse another one: "
            "fit it again with mgap.Subspace.fit or `mgap fit`"
        )
    encoded = base64.b64encode(save({"basis": prior.basis.float().contiguous()})).decode()
    lines = (encoded[start : start + _WIDTH] for start in range(0, len(encoded), _WIDTH))
    facts = {name: value for name, value in model.to_json().items() if name != "sample"}  # it is among the tensors
    data = (
        '"""What generate.py reads: the model that the prior was fitted on, and its basis, a safetensors file in base64."""\n\n'
        f"MODEL = {pformat(facts, width=_WIDTH, sort_dicts=False)}\n\n"
        'TENSORS = """\n' + "\n".join(lines) + '\n"""\n'
    )
    return {
        "README.md": write_card(prior, model, repo),
        "generate.py": CODE.read_text(encoding="utf-8"),
        "prior_data.py": data,
        "requirements.txt": REQUIREMENTS,
    }
