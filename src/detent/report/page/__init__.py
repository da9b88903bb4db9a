"""The report as one page of HTML: nothing is fetched, and no text of a model becomes markup or a script."""

from detent.report.page.page import page_of, write_page

__all__ = ["page_of", "write_page"]
