"""The parts of the page begin where they were told to."""

from mgap.inspector.page_parts import Parts


def test_the_knobs_begin_at_the_settings_that_were_given(in_a_tab):
    settings = {"mgap": {"alpha": 2.0, "gate": False, "protect": False, "rank": 3}}
    _, parts = in_a_tab(Parts, ["pocket/llava"], settings)
    assert [knob.value for knob in parts.knobs] == [2.0, 0.5, 3, False, False]


def test_a_prior_that_was_given_is_named_in_place_of_the_usual_null_image(in_a_tab):
    _, given = in_a_tab(Parts, ["pocket/llava"], {}, "priors/mine")
    _, fitted = in_a_tab(Parts, ["pocket/llava"], {})
    assert given.null.choices[0][0] == "as in priors/mine"
    assert fitted.null.choices[0][0] == fitted.null.value
    assert given.null.choices[1:] == fitted.null.choices[1:]
