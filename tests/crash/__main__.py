"""kill -9 under load, judged from outside: `python -m tests.crash`."""

import sys

from tests.crash.server_kills import main

if __name__ == "__main__":
    sys.exit(main())
