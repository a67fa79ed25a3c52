"""`python -m harness.worker --head tcp://… --keys DIR --nodes 0,1 --name w000 --logs DIR`: what a cluster starts."""

import argparse
import sys
from pathlib import Path

from harness.worker.main import run_worker

parser = argparse.ArgumentParser(prog="paceline worker")
parser.add_argument("--head", required=True, help="control endpoint of the head, tcp://HOST:PORT")
parser.add_argument("--keys", required=True, type=Path, help="folder with worker.key")
parser.add_argument("--nodes", required=True, help="node numbers, comma-separated")
parser.add_argument("--name", required=True)
parser.add_argument("--logs", required=True, type=Path)
given = parser.parse_args()
nodes = [int(node) for node in given.nodes.split(",")]
sys.exit(run_worker(head=given.head, keys=given.keys, nodes=nodes, name=given.name, logs=given.logs))
