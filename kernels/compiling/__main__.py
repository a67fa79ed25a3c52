"""A compiling child: jobs as lines of JSON on stdin, one answer a line on stdout, until stdin ends.

The first line says that triton is loaded and which. What a compiler finds wrong with a job is an answer ("error"), and so is what
the machine lacks ("machine"), which is not held against the job; only a crash of the process itself is none. Nothing else may
stand on stdout, so what compilers print there goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO

from kernels.compiling.job import Job


def main() -> int:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Not the default's change in triton 3.10 decides which code is judged here.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    os.environ.pop("TRITON_INTERPRET", None)
    try:
        import triton

        from kernels.compiling.recipe import compile_job
    except Exception as error:
        _say(answers, {"ready": False, "error": f"{type(error).__name__}: {error}"})
        return 1
    _say(answers, {"ready": True, "triton": triton.__version__})
    for line in sys.stdin:
        answer: dict[str, object]
        try:
            answer = {"resources": compile_job(Job.of(json.loads(line))).json()}
        except OSError as error:  # a full disk, a compiler's program that cannot be run: true of no job in particular
            answer = {"machine": f"{type(error).__name__}: {error}".strip()[:2000]}
        except Exception as error:  # whatever a compiler raises is the answer to this job
            answer = {"error": f"{type(error).__name__}: {error}".strip()[:2000]}
        _say(answers, answer)
    return 0


def _say(answers: TextIO, line: dict[str, object]) -> None:
    answers.write(json.dumps(line) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
