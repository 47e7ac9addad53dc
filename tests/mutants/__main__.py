"""Single changes that the tests must notice: `python -m tests.mutants`."""

import sys

from tests.mutants.run import main

if __name__ == "__main__":
    sys.exit(main())
