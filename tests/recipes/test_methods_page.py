"""The page about the methods has a row for each, as the table of settings says."""

from pathlib import Path

from generate import method_table

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_page_about_the_methods_has_the_table_of_the_settings() -> None:
    assert method_table() in PAGE.read_text(encoding="utf-8"), "make docs writes it anew"
