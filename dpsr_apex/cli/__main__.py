"""`python -m dpsr_apex.cli`: the command without its installed script."""

import sys

from dpsr_apex.cli import main

if __name__ == "__main__":
    sys.exit(main())
