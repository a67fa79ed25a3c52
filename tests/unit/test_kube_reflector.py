"""The reflector keeps a live copy through all that a watch can meet: 410, cuts, silence, refusals, restarts, broken lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kube_server import PODS, TinyServer, WatchedPods, kubeconfig, pod, serving, until

from harness.cluster.kube.access import access
from harness.cluster.kube.api import Api
from harness.cluster.kube.reflector import Pace, Reflector
from harness.cluster.kube.views import PodView, reduce_pod

#: Short pauses; a server that is silent is waited for, since this machine may be the one that stalls.
FAST = Pace(
    watch_s=60.0,
    reply_s=60.0,
    silence_s=60.0,
    first_pause_s=0.02,
    longest_pause_s=0.1,
    forbidden_pause_s=0.15,
    initial_s=60.0,
)
Told = list[tuple[str, str, str]]


class Rig:
    def __init__(self, tiny: TinyServer, pods: WatchedPods, seen: Reflector[PodView], told: Told) -> None:
        self.tiny, self.pods, self.seen, self.told = tiny, pods, seen, told

    def names(self) -> set[str]:
        return {view.name for view in self.seen.items.values()}

    async def shows(self, *names: str) -> None:
        await until(f"the copy has {names}", lambda: self.names() == set(names))


@asynccontextmanager
async def watching(
    folder: Path, *names: str, before: Callable[[WatchedPods], None] | None = None, pace: Pace = FAST, **pods: Any
) -> AsyncIterator[Rig]:
    told: Told = []

    def on_change(kind: str, old: PodView | None, new: PodView | None) -> None:
        told.append((kind, old.phase if old else "", new.name if new else ""))

    async with serving(TinyServer()) as tiny, Api(access(kubeconfig=kubeconfig(folder, tiny.url)), timeout_s=60.0) as api:
        served = WatchedPods(tiny, **pods)
        for name in names:
            served.put(pod(name))
        if before:
            before(served)
        seen = Reflector(api, "Pod", reduce_pod, selector="app=x", on_change=on_change, pace=pace, seed=1)
        seen.start()
        try:
            yield Rig(tiny, served, seen, told)
        finally:
            served.cut.set()
            await seen.stop()


def after(*faults: str) -> Callable[[WatchedPods], None]:
    return lambda pods: pods.faults.extend(faults)


async def test_list_and_watch_come_in_one_stream(tmp_path: Path) -> None:
    async with watching(tmp_path, "a", "b") as rig:
        await asyncio.wait_for(rig.seen.synced.wait(), 60.0)
        assert rig.names() == {"a", "b"}
        rig.pods.put(pod("a", phase="Running"))
        rig.pods.put(pod("c"))
        rig.pods.remove("b")
        await rig.shows("a", "c")
        assert rig.told[2:] == [("MODIFIED", "Pending", "a"), ("ADDED", "", "c"), ("DELETED", "Pending", "b")]
        assert rig.seen.problem == ""
        assert rig.seen.age_s() < 60.0
        assert rig.pods.lists == 0
        query = rig.tiny.asked[0].query
        assert query["labelSelector"] == "app=x"
        assert query["timeoutSeconds"] == "60"
        assert query["allowWatchBookmarks"] == "true"


async def test_a_server_without_watchlist_is_listed_first(tmp_path: Path) -> None:
    async with watching(tmp_path, *[f"p{n}" for n in range(3)], watch_list=False) as rig:
        await asyncio.wait_for(rig.seen.synced.wait(), 60.0)
        rig.pods.put(pod("late"))
        await rig.shows("p0", "p1", "p2", "late")
        assert rig.pods.lists == 1
        assert rig.seen.problem == ""


async def test_a_server_that_never_ends_its_list_is_listed_first(tmp_path: Path) -> None:
    async with watching(tmp_path, "a", before=after("endless list"), pace=replace(FAST, initial_s=0.2)) as rig:
        await asyncio.wait_for(rig.seen.synced.wait(), 60.0)
        assert rig.pods.lists == 1


async def test_a_change_that_is_no_change_of_the_view_is_not_told(tmp_path: Path) -> None:
    async with watching(tmp_path, "a") as rig:
        await rig.shows("a")
        same = pod("a")
        same["metadata"]["managedFields"] = [{"manager": "kubelet"}]
        rig.pods.put(same)
        rig.pods.put(pod("b"))
        await rig.shows("a", "b")
        assert [kind for kind, _, _ in rig.told] == ["ADDED", "ADDED"]


async def test_410_inside_the_stream_lists_again_and_tells_only_the_difference(tmp_path: Path) -> None:
    async with watching(tmp_path, "a", "b", "c") as rig:
        await asyncio.wait_for(rig.seen.synced.wait(), 60.0)
        rig.pods.cut.set()
        await until("the watch has been cut", lambda: rig.pods.watches >= 2)
        rig.pods.remove("b")
        rig.pods.put(pod("c", phase="Running"))
        rig.pods.put(pod("d"))
        rig.pods.compact()
        rig.told.clear()
        rig.pods.cut.clear()
        await rig.shows("a", "c", "d")
        assert sorted(rig.told) == [("ADDED", "", "d"), ("DELETED", "Pending", "b"), ("MODIFIED", "Pending", "c")]
        await until("it is well again", lambda: rig.seen.problem == "")


async def test_a_cut_stream_goes_on_from_where_it_was(tmp_path: Path) -> None:
    async with watching(tmp_path, "a", before=after("cut")) as rig:
        await rig.shows("a")
        rig.pods.put(pod("b"))
        await rig.shows("a", "b")
        resumed = rig.tiny.asked[-1].query
        assert resumed["resourceVersion"].isdigit()
        assert "sendInitialEvents" not in resumed


async def test_a_watch_that_hangs_is_given_up_and_listed_anew(tmp_path: Path) -> None:
    async with watching(tmp_path, "a", before=after("hang", "hang"), pace=replace(FAST, silence_s=0.4)) as rig:
        await rig.shows("a")
        assert rig.pods.watches >= 3


async def test_lines_broken_into_chunks_inside_of_characters_are_whole_again(tmp_path: Path) -> None:
    def broken(pods: WatchedPods) -> None:
        pods.put(pod("a", message="größer als erlaubt — 限制"))
        pods.faults.append("chunks")

    async with watching(tmp_path, before=broken) as rig:
        await rig.shows("a")
        assert rig.seen.items["uid-a"].message == "größer als erlaubt — 限制"


async def test_a_forbidden_watch_says_who_may_not_do_what_and_goes_on_slowly(tmp_path: Path) -> None:
    async with watching(tmp_path, "a", before=after("forbidden", "forbidden")) as rig:
        await until("it says so", lambda: rig.seen.problem != "")
        assert "user eve may not watch pods in namespace ns" in rig.seen.problem
        assert rig.seen.last_problem is not None
        assert rig.seen.last_problem.forbidden
        assert rig.seen.problem_unix > 0
        await rig.shows("a")
        await until("the problem is over", lambda: rig.seen.problem == "")
        assert rig.seen.last_problem is None


@pytest.mark.parametrize("fault", ["500", "503", "429", "error", "junk"])
async def test_refusals_and_junk_are_survived(tmp_path: Path, fault: str) -> None:
    async with watching(tmp_path, "a", before=after(fault, fault)) as rig:
        await until("it says so", lambda: rig.seen.problem != "")
        assert rig.seen.problem.startswith("pods cannot be watched: ")
        await rig.shows("a")
        await until("it is well again", lambda: rig.seen.problem == "")


async def test_a_server_that_hangs_up_at_once_is_not_hammered(tmp_path: Path) -> None:
    pace = replace(FAST, first_pause_s=0.2, longest_pause_s=0.4)
    async with watching(tmp_path, "a", before=after(*["close"] * 1000), pace=pace) as rig:
        await until("it has asked", lambda: rig.pods.watches >= 1)
        began_s = time.monotonic()
        await until("it has asked again and again", lambda: rig.pods.watches >= 6)
        assert time.monotonic() - began_s > 0.4  # five pauses of 0.1 s or more, but for the delay with which the first was seen


async def test_a_restarted_server_is_found_again(tmp_path: Path) -> None:
    tiny = TinyServer()
    pods = WatchedPods(tiny)
    pods.put(pod("a"))
    async with serving(tiny):
        port = urlsplit(tiny.url).port
        assert port is not None
        api = Api(access(kubeconfig=kubeconfig(tmp_path, tiny.url)), timeout_s=60.0)
        seen = Reflector(api, "Pod", reduce_pod, pace=FAST, seed=1)
        seen.start()
        await asyncio.wait_for(seen.synced.wait(), 60.0)
        pods.cut.set()
    await until("it says that the server is gone", lambda: "does not answer: connection refused" in seen.problem)
    since_unix = seen.problem_unix
    await asyncio.sleep(0.1)
    assert seen.problem_unix == since_unix
    assert set(seen.items) == {"uid-a"}  # what was known stays
    pods.cut.clear()
    pods.put(pod("b"))
    async with serving(tiny, port=port):
        await until("it has the new pod", lambda: set(seen.items) == {"uid-a", "uid-b"})
        assert seen.problem == ""
        pods.cut.set()
        await seen.stop()
        await api.close()


async def test_an_error_in_a_callback_is_told_and_does_not_end_the_watch(tmp_path: Path) -> None:
    async with serving(TinyServer()) as tiny, Api(access(kubeconfig=kubeconfig(tmp_path, tiny.url))) as api:
        pods = WatchedPods(tiny)
        pods.put(pod("a"))
        calls: list[str] = []

        def reduce(raw: Mapping[str, Any]) -> PodView:
            calls.append("")
            if len(calls) == 1:
                raise RuntimeError("boom")
            return reduce_pod(raw)

        seen = Reflector(api, "Pod", reduce, pace=FAST)
        seen.start()
        await until("it tried again", lambda: set(seen.items) == {"uid-a"})
        pods.cut.set()
        await seen.stop()


async def test_a_value_that_is_reduced_to_none_is_left_out(tmp_path: Path) -> None:
    async with serving(TinyServer()) as tiny, Api(access(kubeconfig=kubeconfig(tmp_path, tiny.url))) as api:
        pods = WatchedPods(tiny)
        pods.put(pod("a"))
        pods.put(pod("b"))

        def only_b(raw: Mapping[str, Any]) -> PodView | None:
            view = reduce_pod(raw)
            return view if view.name == "b" else None

        seen = Reflector(api, "Pod", only_b, pace=FAST)
        seen.start()
        await asyncio.wait_for(seen.synced.wait(), 60.0)
        assert set(seen.items) == {"uid-b"}
        pods.cut.set()
        await seen.stop()


async def test_a_long_list_comes_in_pages(tmp_path: Path) -> None:
    async with watching(tmp_path, *[f"p{n}" for n in range(1100)], watch_list=False, bookmark_s=0.2) as rig:
        await asyncio.wait_for(rig.seen.synced.wait(), 60.0)
        assert len(rig.seen.items) == 1100
        pages = [asked for asked in rig.tiny.asked if asked.path == PODS and "watch" not in asked.query]
        assert [asked.query.get("continue", "") for asked in pages] == ["", "500", "1000"]
