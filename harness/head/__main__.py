"""`python -m harness.head RUN_FOLDER`."""

import sys
from pathlib import Path

from harness.head.main import run_head

sys.exit(run_head(Path(sys.argv[1])))
