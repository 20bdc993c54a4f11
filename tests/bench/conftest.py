from fake_engines import fake_workers  # noqa: F401
