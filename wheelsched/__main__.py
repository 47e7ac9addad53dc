"""`python -m wheelsched`: the same as the command `wheelsched`."""

from .cli import main

if __name__ == "__main__":
    main()
