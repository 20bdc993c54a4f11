"""docs/results.md, generated from the files of results/ by `python -m benchmarks.published`."""
