"""Reports of result files as one HTML page."""

from benchmarks.page.html import write_page

__all__ = ["write_page"]
