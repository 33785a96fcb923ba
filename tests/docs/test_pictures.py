"""The pictures of docs/images show what the tree has now."""

from docs.images import screenshots


def test_the_picture_of_the_dashboard_has_all_its_titles():
    """`python -m docs.images.screenshots` makes picture and list anew."""
    titles = screenshots.TITLES.read_text("utf-8").splitlines()
    assert titles == [one["title"] for one in screenshots.shown_panels()]
    assert "Nodes that do not reach themselves" in titles
