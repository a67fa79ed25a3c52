"""`python -m console.cli …`: how processes of a run are started, whatever `paceline` on the PATH may be."""

import sys

from console.cli import process

if __name__ == "__main__":
    sys.exit(process())
