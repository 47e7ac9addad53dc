"""kill -9 of real servers and workers under load: `python -m tests.crash`."""
