"""A fake Kubernetes API server for the tests: real HTTP on loopback, the behaviour of a real one as far as a run meets it.

server.py is the server in somebody's loop, cluster.py the same in a thread; store.py is what lies under both. Where the
fake and a real server differ, the server is right and the fake is changed: ../test_api_contract.py runs against both.
"""

from .access import EVERYTHING, Rule
from .clock import ManualClock, RealClock
from .cluster import FakeCluster
from .errors import ApiError
from .server import ApiServer, Call, Fault
from .store import Store

__all__ = ["EVERYTHING", "ApiError", "ApiServer", "Call", "FakeCluster", "Fault", "ManualClock", "RealClock", "Rule", "Store"]
