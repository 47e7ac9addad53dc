"""A seeded world around the real engine, and its judge: `python -m tests.sim`."""
