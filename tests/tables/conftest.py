"""What the tests of the tables share."""

import pytest

from tests.rigs.tables import new_tables


@pytest.fixture
def tables():
    return new_tables()
