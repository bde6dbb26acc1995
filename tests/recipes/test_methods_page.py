"""The page about the methods has a row for each, as the table of settings says."""

from pathlib import Path

from gpaco.recipes.listing import methods_markdown

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_page_about_the_methods_has_the_table_of_the_settings() -> None:
    assert methods_markdown() in PAGE.read_text(encoding="utf-8"), "paste gpaco.recipes.listing.methods_markdown()"
