"""NLTK's own data, of this machine or put together from the packages that have it."""

import shutil
from pathlib import Path

import pytest

from mgap.benchmarks.language import find_language
from mgap.errors import BenchmarkError

WORDNET = Path("/usr/share/wordnet")  # version 3.0, as Debian has it
PACKAGES = "wordnet-base wordnet-sense-index"
LEXNAMES = """
adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition
noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object noun.person
noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape noun.state noun.substance
noun.time verb.body verb.change verb.cognition verb.communication verb.competition verb.consumption verb.contact
verb.creation verb.emotion verb.motion verb.perception verb.possession verb.social verb.stative verb.weather adj.ppl
"""  # WordNet's lexicographer files, lexnames(5WN); the packages leave their list out
CATEGORIES = {"noun": 1, "verb": 2, "adj": 3, "adv": 4}
TAGGER = "averaged_perceptron_tagger_eng"
PUNKT = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")


@pytest.fixture(scope="session")
def nltk_data(shared, tmp_path_factory):
    """Where NLTK finds no data of its own: WordNet from Debian's packages, and the tagger from the published files.

    Punkt's learnt abbreviations are in neither. Without them it splits sentences by its rules alone, which is the same for
    texts that have no abbreviations.
    """
    import nltk

    try:
        find_language("nltk")
        yield
        return
    except BenchmarkError:
        if not all((WORDNET / name).is_file() for name in ("data.noun", "index.noun", "index.sense")):
            pytest.skip(f"neither NLTK's data nor WordNet is on this machine: apt-get install {PACKAGES}")
    root = tmp_path_factory.mktemp("nltk_data")
    wordnet, tagger = root / "corpora" / "wordnet", root / "taggers" / TAGGER
    punkt = root / "tokenizers" / "punkt_tab" / "english"
    for folder in (wordnet, tagger, punkt):
        folder.mkdir(parents=True)
    for path in WORDNET.iterdir():  # copies: NLTK follows no link out of its folder
        if path.is_file():
            shutil.copyfile(path, wordnet / path.name)
    rows = (f"{number:02}\t{name}\t{CATEGORIES[name.partition('.')[0]]}\n" for number, name in enumerate(LEXNAMES.split()))
    (wordnet / "lexnames").write_text("".join(rows))
    for part in ("weights", "tagdict", "classes"):
        shutil.copyfile(shared / "data" / "chair" / "tagger" / f"{part}.json", tagger / f"{TAGGER}.{part}.json")
    for name in PUNKT:
        (punkt / name).touch()
    nltk.data.path.insert(0, str(root))
    yield
    nltk.data.path.remove(str(root))
