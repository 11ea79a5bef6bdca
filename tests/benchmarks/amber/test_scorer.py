"""AMBER's scorer against the figures of the published one, and its rules by hand."""

import json
from functools import lru_cache

import pytest

from mgap.benchmarks.amber.captions import AmberVocabulary
from mgap.benchmarks.amber.official import amber_score, kind_of, official, per_response
from mgap.benchmarks.amber.questions import read_amber
from mgap.benchmarks.amber.scorer import AmberScorer
from mgap.benchmarks.amber.yesno import NORMALISERS, find_normaliser
from mgap.errors import BenchmarkError, SettingError
from mgap.types import Sample

CAPTIONS = ("real_llava15_7b_generative_1_83", "made_up_generative_exact", "made_up_generative_with_table")
LEXICON = {"relation": {"dog": ["puppy"], "cat": [], "tree": ["plant"], "plant": ["tree"]}, "safe_words": ["line"]}


@lru_cache
def benchmark(data):
    return read_amber(data / "amber")


@pytest.fixture(scope="session")
def amber(shared):
    return benchmark(shared / "data")


@pytest.fixture(scope="session")
def published(shared):
    """What the published scorer gives for named responses, and these."""

    def read(name):
        folder = shared / "fixtures" / "benchmarks" / "amber"
        expected = json.loads((folder / f"{name}.expected.json").read_text())
        responses = json.loads((folder / f"{name}.responses.json").read_text())
        pairs = [(r["id"], r["response"]) if isinstance(r, dict) else r for r in responses]
        return expected, {str(number): text for number, text in pairs}

    return read


def asked(amber, texts):
    return [sample for sample in amber.samples if sample.id in texts]


def close(found, expected):
    """Equal keys, and numbers to 1e-9."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
    return found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", CAPTIONS)
def test_captions_get_the_published_figures_counters_and_words(shared, amber, published, tmp_path, name):
    expected, texts = published(name)
    table = tmp_path / "table.json"
    table.write_text(json.dumps(expected["similarity_table"]))
    samples = asked(amber, texts)
    scorer = AmberScorer.of(amber.lexicon, language="nltk", language_data=shared / "data", similarity=table)
    judged = scorer.judge(samples, texts)
    found = official(samples, judged)
    assert found.keys() == {"printed", "unrounded", "counters"}
    assert found["printed"] == expected["printed"]
    assert found["counters"] == expected["counters"]
    assert close(found["unrounded"], expected["unrounded"])
    rows = per_response(samples, judged)
    forms = json.loads((shared / "data" / "amber" / "noun_lemmas.json").read_text())
    for row, wanted in zip(rows, expected["per_response"], strict=True):
        for noun, other in zip(row.pop("nouns"), wanted.pop("nouns"), strict=True):
            assert noun == other or noun not in forms  # the table of lemmas knows AMBER's words only
        assert row == wanted


@pytest.mark.long
def test_with_nltks_own_data_the_other_nouns_are_the_published_ones_too(amber, published, nltk_data):
    for name in CAPTIONS[:2]:
        expected, texts = published(name)
        samples = asked(amber, texts)
        rows = per_response(samples, AmberScorer.of(amber.lexicon, language="nltk").judge(samples, texts))
        assert rows == expected["per_response"]


def test_yes_and_no_get_the_published_figures_and_counters(amber, published):
    expected, texts = published("made_up_discriminative_yes_no")
    samples = asked(amber, texts)
    found = official(samples, AmberScorer.of(amber.lexicon, normaliser="original").judge(samples, texts))
    assert found["printed"] == expected["printed"]
    assert found["counters"] == expected["counters"]
    assert close(found["unrounded"], expected["unrounded"])
    assert list(found["printed"]) == list(expected["printed"])


@pytest.mark.parametrize("name", ["strict", "haltrapper", "mod", "lmms_eval"])
def test_free_texts_get_every_projects_verdicts_and_figures(amber, published, name):
    expected, texts = published("made_up_discriminative_free_text")
    normalise = find_normaliser(name)
    assert {text: normalise(text) for text in expected["verdicts"]} == {t: v[name] for t, v in expected["verdicts"].items()}
    samples = asked(amber, texts)
    found = official(samples, AmberScorer.of(amber.lexicon, normaliser=name).judge(samples, texts))
    assert found["printed"] == expected["expected"][name]["printed"]
    assert close(found["unrounded"], expected["expected"][name]["unrounded"])


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("Yes, there are no clouds.", ("Yes", None, "No", "No", "Yes")),
        ("There isn't any.", ("No", None, "Yes", "No", None)),
        ("It cannot be seen.", (None, None, "Yes", "Yes", "No")),
        ("There are 0 of them.", (None, None, "No", "Yes", None)),
        ("No", ("No", "No", "No", "No", "No")),
        ("", (None, None, "Yes", "Yes", None)),
    ],
)
def test_where_the_normalisers_part_ways(text, verdicts):
    names = ("first-sentence", "original", "haltrapper", "mod", "lmms_eval")
    assert [find_normaliser(name)(text) for name in names] == [text if verdict is None else verdict for verdict in verdicts]


def test_tallies_are_the_published_figures_before_rounding(shared, amber, published):
    expected, texts = published(CAPTIONS[0])
    samples = asked(amber, texts)
    scorer = AmberScorer.of(amber.lexicon, language="nltk", language_data=shared / "data")
    (group, tally), *more = scorer.tally(samples, texts).items()
    assert (group, more) == ("generative", [])
    rates = tally.rates()
    for name, value in expected["unrounded"].items():
        assert 100 * rates[name.lower()].value == pytest.approx(value, abs=1e-9)
        assert rates[name.lower()].low < rates[name.lower()].value < rates[name.lower()].high
    assert rates["words"].value == pytest.approx(sum(len(text.split()) for text in texts.values()) / len(texts))
    assert (rates["chair"].of, rates["cover"].of, rates["hal"].of, rates["cog"].of) == (637, 482, 83, 406)
    assert sum(tally.right.values()) == expected["counters"]["non_hallu_score"]


def test_tallies_pool_questions_as_the_published_scorer_does(amber, published):
    expected, texts = published("made_up_discriminative_yes_no")
    samples = asked(amber, texts)
    tallies = AmberScorer.of(amber.lexicon).tally(samples, texts)
    names = {"discriminative": "all", "attribute": "attribute", "existence": "existence", "relation": "relation"}
    names |= {f"attribute-{part}": part for part in ("state", "number", "action")}
    assert tallies.keys() == names.keys()
    for group, short in names.items():
        rates = tallies[group].rates()
        for name, value in expected["unrounded"][short].items():
            if (group, name) == ("existence", "precision"):
                assert (value, rates[name].value) == (pytest.approx(100, abs=1e-3), 1.0)  # exact where a share is 1
            else:
                assert 100 * rates[name].value == pytest.approx(value, abs=1e-9), (group, name)
    for group, title in (("discriminative", "Descriminative Task"), ("existence", "Exsitence"), ("relation", "Relation")):
        printed = expected["printed"][title]["F1"]
        assert 100 * tallies[group].rates()["f1"].value == pytest.approx(printed, abs=0.1)  # that one is of rounded shares


def test_answers_that_say_neither_are_wrong_and_counted(amber, published):
    expected, texts = published("made_up_discriminative_free_text")
    samples = asked(amber, texts)
    tally = AmberScorer.of(amber.lexicon, normaliser="strict").tally(samples, texts)["discriminative"]
    assert tally.unparsed == sum(text not in ("Yes", "No") for text in texts.values()) > 0
    assert 100 * tally.rates()["accuracy"].value == pytest.approx(
        expected["expected"]["strict"]["unrounded"]["all"]["accuracy"]
    )


def test_both_tasks_together_give_the_amber_score(shared, amber, published):
    (one, captions), (other, answers) = published(CAPTIONS[0]), published("made_up_discriminative_yes_no")
    texts = {**captions, **answers}
    samples = asked(amber, texts)
    scorer = AmberScorer.of(amber.lexicon, language="nltk", language_data=shared / "data")
    found = official(samples, scorer.judge(samples, texts))
    assert found["printed"] == {**one["printed"], **other["printed"]}
    assert found["counters"] == {**one["counters"], **other["counters"]}
    assert found["amber_score"] == amber_score(7.1, 77.3) == pytest.approx(85.1)
    rate = scorer.tally(samples, texts)["amber"].rates()["score"]
    assert 100 * rate.value == pytest.approx(found["amber_score"], abs=0.1)
    assert rate.low < rate.value < rate.high


def test_the_amber_score_of_the_authors_table():
    assert amber_score(7.8, 74.7) == pytest.approx(83.45)  # printed as 83.5
    assert round(amber_score(5.5, 84.9), 1) == 89.7


def test_the_builtin_pipeline_is_near_the_published_one_on_real_captions(amber, published):
    expected, texts = published(CAPTIONS[0])
    samples = asked(amber, texts)
    judged = AmberScorer.of(amber.lexicon).judge(samples, texts)
    found = official(samples, judged)["printed"]["Generative Task"]
    for name, value in expected["printed"]["Generative Task"].items():
        assert found[name] == pytest.approx(value, abs=1.5), name  # docs/benchmarks/amber.md has how near
    rows = per_response(samples, judged)
    same = sum(row["kept"] == wanted["kept"] for row, wanted in zip(rows, expected["per_response"], strict=True))
    assert same >= 0.9 * len(rows)


def judge(nouns, truth, hallu, similar=None):
    words = AmberVocabulary(LEXICON["relation"], LEXICON["safe_words"], **({"similar": similar} if similar else {}))
    return words.judge(nouns.split(), truth, hallu, 0)


def test_words_outside_the_vocabulary_are_no_mentions():
    found = judge("dog house Dog line cat", ["dog"], ["cat"])
    assert (found.kept, found.hallucinated) == (("dog", "cat"), ("cat",))  # "line" is safe, but no word of this vocabulary
    assert (found.covered, found.truth, found.marked, found.hallu) == (1, 1, 1, 1)


def test_a_safe_word_is_accepted_and_covers_nothing():
    words = AmberVocabulary({"line": [], "dog": []}, ["line"])
    found = words.judge(["line"], ["line"], ["dog"], 1)
    assert (found.kept, found.hallucinated, found.covered) == (("line",), (), 0)


def test_an_associated_word_is_credited_before_the_object_itself():
    found = judge("plant", ["plant", "tree"], [])
    assert found.covered == 1
    both = judge("plant tree", ["plant", "tree"], [])
    assert both.covered == 2  # plant stands for tree, tree for plant


def test_an_object_that_is_listed_twice_counts_twice_and_is_covered_once():
    found = judge("dog puppy", ["dog", "dog"], ["cat", "cat"])
    assert (found.covered, found.truth, found.hallu) == (1, 2, 2)


def test_what_is_in_both_lists_is_true():
    assert judge("dog", ["dog"], ["dog"]).official() | {"nouns": 0} == {
        "nouns": 0, "kept": ["dog"], "chair_score": 0, "chair_num": 1, "cover_score": 1, "cover_num": 1, "cog_score": 0,
        "cog_num": 1, "clean": 1, "hallucinated": [],
    }  # fmt: skip


def test_a_tempting_word_that_is_near_to_a_true_one_is_marked_and_accepted():
    found = judge("cat", ["dog"], ["cat", "tree"], lambda one, other: one == other or {one, other} == {"cat", "puppy"})
    assert (found.marked, found.covered, found.hallucinated) == (1, 1, ())
    marks_both = judge("cat", ["dog"], ["dog", "cat"], lambda one, other: {one, other} <= {"cat", "dog"})
    assert marks_both.marked == 2  # the exact hit, and the first one that is near


def test_a_text_without_mentions_is_clean():
    found = judge("", ["dog"], ["cat"])
    assert (found.is_right, found.kept, found.truth, found.hallu) == (True, (), 1, 1)


def test_an_object_without_associations_is_refused():
    with pytest.raises(BenchmarkError, match="'bird'"):
        judge("dog", ["bird"], [])


def sample(number, group, truth):
    return Sample(str(number), f"AMBER_{number}.jpg", "?", group, truth)


@pytest.mark.parametrize(
    ("groups", "kind", "titles"),
    [
        (["existence"], "de", ["Exsitence"]),
        (["relation"], "dr", ["Relation"]),
        (["attribute-state"], "da", ["Attribute", "State", "Number", "Action"]),
        (["existence", "relation"], "d",
         ["Descriminative Task", "Exsitence", "Attribute", "State", "Number", "Action", "Relation"]),
        (["generative"], "g", ["Generative Task"]),
    ],
)  # fmt: skip
def test_only_what_was_asked_is_printed(groups, kind, titles):
    samples = [
        sample(n, group, {"truth": ["dog"], "hallu": ["cat"]} if group == "generative" else "no")
        for n, group in enumerate(groups)
    ]
    scorer = AmberScorer.of(LEXICON)
    found = official(samples, scorer.judge(samples, {one.id: "No" for one in samples}))
    assert (kind_of(samples), list(found["printed"])) == (kind, titles)


def test_two_kinds_of_questions_are_pooled_and_one_is_not():
    samples = [sample(0, "existence", "no"), sample(1, "relation", "yes")]
    scorer, texts = AmberScorer.of(LEXICON), {"0": "No", "1": "No"}
    assert list(scorer.tally(samples, texts)) == ["existence", "relation", "discriminative"]
    assert list(scorer.tally(samples[:1], texts)) == ["existence"]


def test_perfect_and_hopeless_answers_get_wilsons_interval():
    samples = [sample(n, "generative", {"truth": ["dog"], "hallu": ["cat"]}) for n in range(4)]
    scorer = AmberScorer.of(LEXICON)
    clean = scorer.tally(samples, dict.fromkeys("0123", "a dog"))["generative"].rates()
    assert (clean["hal"].value, clean["hal"].low) == (0.0, 0.0)
    assert 0.3 < clean["hal"].high < 0.6
    assert clean["chair"].value == 0.0
    flawed = scorer.tally(samples, dict.fromkeys("0123", "a cat"))["generative"].rates()
    assert (flawed["hal"].value, flawed["chair"].value, flawed["cog"].value, flawed["cover"].value) == (1, 1, 1, 0)
    right = scorer.tally([sample(1, "relation", "no")], {"1": "No."})["relation"].rates()
    assert {name: rate.value for name, rate in right.items()} == dict.fromkeys(("accuracy", "precision", "recall", "f1"), 1.0)
    never = scorer.tally([sample(1, "relation", "yes")], {"1": "Yes"})["relation"].rates()
    assert (never["precision"].of, never["recall"].of, never["f1"].value) == (0, 0, 0.0)


def test_settings_make_the_same_scorer_again(tmp_path):
    table = tmp_path / "table.json"
    table.write_text('[["dog", "cat", 0.9]]')
    scorer = AmberScorer.of(LEXICON, language="builtin", normaliser="mod", similarity=table)
    settings = json.loads(json.dumps(scorer.settings()))
    assert AmberScorer.of(LEXICON, **settings).settings() == settings
    assert settings["similarity"]["file"] == str(table)
    table.write_text('[["dog", "cat", 0.7]]')
    with pytest.raises(BenchmarkError, match="not what the score was made with"):
        AmberScorer.of(LEXICON, **settings)
    assert AmberScorer.of(LEXICON).settings() == {
        "language": "builtin", "normaliser": "first-sentence", "similarity": "identical", "unfinished": "keep",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parser": "mod"}, "unknown setting 'parser'.*language.*normaliser.*similarity"),
        ({"normaliser": "vcd"}, f"unknown normaliser 'vcd'.*{'.*'.join(NORMALISERS)}"),
        ({"language": "french"}, "unknown language 'french'.*builtin.*nltk"),
        ({"similarity": "near"}, "similarity='near'"),
        ({"language_data": "."}, "language builtin needs no data"),
        ({"unfinished": "cut"}, "unfinished='cut': choose from keep, drop"),
    ],
)
def test_unknown_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        AmberScorer.of(LEXICON, **settings)


def test_what_does_not_fit_is_refused():
    with pytest.raises(BenchmarkError, match="no safe_words"):
        AmberScorer.of({"relation": {}})
    scorer = AmberScorer.of(LEXICON)
    with pytest.raises(BenchmarkError, match="1 samples have no answer, '3' first"):
        scorer.tally([sample(3, "relation", "no")], {})
    for group, truth in (("weather", "no"), ("relation", "maybe")):
        with pytest.raises(BenchmarkError, match="not of AMBER"):
            scorer.tally([sample(3, group, truth)], {"3": "No"})
