"""Readers of answers: every text has a verdict of the declared set, whatever it is made of, and none takes forever."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from mgap.benchmarks.amber.yesno import NORMALISERS, Answered
from mgap.benchmarks.answer_texts import KEEP, UNFINISHED, AnswerTexts, mean_words
from mgap.benchmarks.caption_cuts import CaptionCuts
from mgap.benchmarks.chair.lexicon import Lexicon
from mgap.benchmarks.chair.mentions import Finder
from mgap.benchmarks.chair.scorer import ChairScorer
from mgap.benchmarks.language import find_language
from mgap.benchmarks.language.nltk_pipeline import Nltk
from mgap.benchmarks.language.tokens import sentences, tokens
from mgap.benchmarks.yesno_parsers import PARSERS
from mgap.priors.object_words import Vocabulary, plural
from mgap.tuning.choice import VERDICTS, verdict_indices
from mgap.types import Sample
from tests.fuzz.damage import Refused, json_files, outcome

WORDS = ("yes", "No", "not", "isn't", "there", "a", "dog", "toilet", "seat", "hot dog", "men", "can", "1,000", "U.S.", "n't")
MARKS = (
    ".",
    ",",
    "!",
    "?",
    "\n",
    " ",
    "  ",
    "'",
    '"',
    "''",
    "``",
    "...",
    "--",
    "-",
    ":",
    ";",
    "/",
    "\u2019",
    "\u201c",
    "(",
    "]",
)
ANSWERS = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(WORDS + MARKS), max_size=25).map("".join),
    st.lists(st.sampled_from(WORDS + MARKS), max_size=25).map(" ".join),
    st.text("ISKis.,'- \u0130\u0131\u017f\u212a\u00df\u03a3\u03c2", max_size=12),
)
LABELS = st.sampled_from(("yes", "no"))
KINDS_OF_CASE = st.sampled_from((str.lower, str.upper, str.title))
BLANKS = st.text(" \t\n\r", max_size=3)
FINDER = Finder(Lexicon.coco(), find_language("builtin", words=Lexicon.coco().meanings()))
LONG = 5_000  # times that a piece is repeated
LEMMAS = {"dogs": ["dog", "dogs", "dogs", "dogs"], "seated": "seat"}


@given(name=st.sampled_from(sorted(PARSERS)), text=ANSWERS, label=LABELS)
def test_every_text_has_a_verdict(name, text, label):
    assert PARSERS[name](text, label) in VERDICTS


@given(name=st.sampled_from(sorted(PARSERS)), text=ANSWERS, label=LABELS)
def test_a_parser_that_reads_the_answer_alone_does_not_see_the_label(name, text, label):
    other = {"yes": "no", "no": "yes"}[label]
    assert PARSERS[name].needs_label or PARSERS[name](text, label) == PARSERS[name](text, other)


@given(
    name=st.sampled_from(sorted(PARSERS)),
    word=LABELS,
    change=st.sampled_from((str.lower, str.title)),
    mark=st.sampled_from(("", ".")),
)
def test_all_agree_on_bare_words(name, word, change, mark):
    wanted = None if name == "lmms_eval" and mark else word
    assert PARSERS[name](change(word) + mark, word) == wanted


@given(
    name=st.sampled_from(["first-sentence", "code", "vcd", "mgap", "lmms_eval", "vlmevalkit"]),
    text=st.lists(st.sampled_from(WORDS + MARKS), max_size=15).map(" ".join),
    label=LABELS,
    change=KINDS_OF_CASE,
)
def test_upper_and_lower_case_are_read_alike_by_those_that_say_so(name, text, label, change):
    assert PARSERS[name](change(text), label) == PARSERS[name](text.lower(), label)


@given(
    name=st.sampled_from(["first-sentence", "vcd", "mgap", "lmms_eval", "vlmevalkit"]),
    text=st.lists(st.sampled_from(WORDS + MARKS), max_size=15).map(" ".join),
    label=LABELS,
    before=BLANKS,
    after=BLANKS,
)
def test_blanks_around_an_answer_change_nothing_for_those_that_drop_them(name, text, label, before, after):
    text = text.strip()
    if name == "vlmevalkit" and text[:1] + text[-1:] != (text[:1] + text[-1:]).strip(';/[]"{}()=+\\_-><@`,?!'):
        return  # there a mark beside a blank is read otherwise
    assert PARSERS[name](before + text + after, label) == PARSERS[name](text, label)


@given(name=st.sampled_from(sorted(NORMALISERS)), text=ANSWERS, truth=LABELS)
def test_ambers_rules_say_yes_or_no_or_leave_the_text(name, text, truth):
    said = NORMALISERS[name](text)
    assert said in ("Yes", "No", text)
    assert len(Answered(truth, said).row()) == 5


@given(st.lists(ANSWERS, max_size=5))
def test_words_of_a_vocabulary_are_of_three_kinds(words):
    assert len(verdict_indices(words)) == len(words)
    assert set(verdict_indices(words)) <= {0, 1, 2}


@given(ANSWERS)
@example("a. " * LONG)
@example("." * LONG)
@example("1-" * LONG + ".")
@example("a." * LONG)
@example("'" * LONG)
@example('" ' * LONG)
@example(").\u201d " * LONG)
@example(" " * LONG + "a.")
@example("(" * LONG + "a" * LONG)
@example("can't " * LONG)
def test_tokens_are_pieces_of_the_text(text):
    found = outcome(tokens, text)
    assert all(token and not token.isspace() for token in found)
    quoted = {"``", "''"}
    assert all(token in text or token in quoted for token in found)
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


@given(ANSWERS)
@example("yes" * LONG)
@example("1,1" * LONG)
@example("." * LONG)
@example("n't" * LONG)
def test_a_long_answer_is_read_as_well(text):
    for parser in PARSERS.values():
        outcome(parser, text, "yes")


@given(ANSWERS)
def test_captions_mention_classes_of_the_list(text):
    found = outcome(FINDER.find, text)
    assert set(found.nodes) <= set(Lexicon.coco().synonyms)
    assert len(found.words) == len(found.nodes) == len(found.positions) == len(found.starts)
    assert all(0 <= place < found.tokens for place in found.positions)
    assert json.loads(json.dumps(found.to_json(["dog"])))["tokens"] == found.tokens


@given(st.dictionaries(st.text(max_size=6), st.lists(st.text(max_size=6), max_size=2), min_size=1, max_size=3), ANSWERS)
@example({"bus": []}, "A bu\u017f.")
@example({"kite": []}, "A K\u0130TE, a k\u0131te, a \u212aite.")
def test_a_vocabulary_finds_its_own_names_and_no_others(things, text):
    found = outcome(Vocabulary.of, things)
    if isinstance(found, Refused):
        return
    mentions = outcome(found.mentions, text)
    assert all(mention.name in found.names and 0 <= mention.start < len(text) for mention in mentions)
    assert list(found.first_mentions(text)) == list(dict.fromkeys(mention.name for mention in mentions))
    for name in found.names:
        assert isinstance(plural(name), str)


@given(st.lists(ANSWERS, min_size=1, max_size=4), st.lists(ANSWERS, min_size=1, max_size=2), st.sampled_from(UNFINISHED))
def test_captions_are_cut_after_words(texts, others, unfinished):
    captions, other = (AnswerTexts(dict(zip(map(str, range(4)), each, strict=False))) for each in (texts, others))
    samples = [Sample(name, f"{name}.png", "", "captions", []) for name in captions.texts]
    words = outcome(CaptionCuts(ChairScorer(unfinished=unfinished), samples, captions).to_length, other)
    cut = captions.cut(words)
    assert [text.split() for text in cut.texts.values()] == [text.split()[:words] for text in texts]
    assert mean_words(cut.scored(unfinished).values()) <= mean_words(captions.scored(KEEP).values())


@given(
    json_files({"DT": {"a": 1.0}}), json_files({"the": "DT"}), json_files(["DT", "NN"]), json_files(LEMMAS), st.integers(0, 4)
)
def test_tables_of_the_published_pipeline(place, weights, tags, classes, lemmas, whole):
    files = {
        "chair/tagger/weights.json": (weights, {"bias": {"NN": 1.0}}),
        "chair/tagger/tagdict.json": (tags, {"the": "DT"}),
        "chair/tagger/classes.json": (classes, ["DT", "NN"]),
        "chair/lemma_table.json": (lemmas, LEMMAS),
        "amber/noun_lemmas.json": (lemmas, {"dogs": "dog"}),
    }
    for number, (name, (damaged, value)) in enumerate(files.items()):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(damaged if number == whole else json.dumps(value).encode())
    language = outcome(Nltk.from_tables, place)
    if isinstance(language, Refused):
        return
    for read in (language.lemmas, language.nouns):
        found = outcome(read, "The dogs seated there.")
        assert isinstance(found, Refused) or all(isinstance(word, str) for word in found)
