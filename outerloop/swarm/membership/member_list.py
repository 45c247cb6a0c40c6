"""The members of a run as peers tell them to each other, in as many frames as it takes.

    <- {pages, ..., members: [[name, time of joining], ...], late: [name, ...]}    then the other pages: {members, late}

A frame holds 64 KiB, and 1,024 members do not fit one. What a peer tells is a stranger's word: names are of the form
that a roster record has, since they end in messages and logs, and every peer id is there once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeGuard

import msgpack

from outerloop.swarm.access.access_control import AllowList
from outerloop.swarm.membership.roster import NAME, id_of
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.validation import MAX_PEERS, quote

Members = list[list[Any]]
"""[name, time of joining] of each, in the order of names."""
PAGE_NAMES = 192
"""Members, and as many latecomers, in a frame: 54 KB with the longest names."""
MAX_PAGES = math.ceil(MAX_PEERS / PAGE_NAMES)


def sitting_of(run: str, members: Members) -> str:
    """Return the name that this sitting of the run alone has."""
    alike = [[name, joined + 0.0] for name, joined in members]  # -0.0 equals 0.0, and would have another hash
    return f"{run}/{hashlib.sha256(msgpack.packb([run, alike])).hexdigest()}"


async def send_pages(stream: Stream, answer: Request, members: Members, late: Sequence[str]) -> None:
    """Send an answer with both lists, of up to MAX_PEERS each."""
    count = max(1, math.ceil(max(len(members), len(late)) / PAGE_NAMES))
    parts = [slice(page * PAGE_NAMES, (page + 1) * PAGE_NAMES) for page in range(count)]
    pages = [{"members": members[part], "late": late[part]} for part in parts]
    for page in ({**answer, "pages": count, **pages[0]}, *pages[1:]):
        await stream.send_object(page)


async def receive_pages(stream: Stream) -> Request:
    """Return an answer with both lists put together, not looked at yet. Raises BrokenStream."""
    answer = await stream.receive_object()
    count = answer.get("pages", 1)
    if type(count) is not int or not 1 <= count <= MAX_PAGES:
        raise Unreadable(f"a list of members has 1 to {MAX_PAGES} pages; came {quote(count)}")
    pages = [answer, *[await stream.receive_object() for _ in range(count - 1)]]
    return answer | {key: _joined([page.get(key) for page in pages], key) for key in ("members", "late")}


def objection(members: Any, allow: AllowList) -> str:
    """Return why this cannot be the members of a run; empty when it can."""
    if not isinstance(members, list) or not 1 <= len(members) <= MAX_PEERS:
        return f"members are a list of 1 to {MAX_PEERS}; came {quote(members)}"
    for one in members:
        if not isinstance(one, list) or list(map(type, one)) != [str, float]:
            return f"a member is told by name and time of joining; came {quote(one)}"
        if not NAME.fullmatch(one[0]) or not math.isfinite(one[1]):
            return f"no name or no time: {quote(one[0])}, {one[1]}"
    names = [name for name, _ in members]
    if any(left >= right for left, right in pairwise(names)) or len(set(map(id_of, names))) < len(names):
        return "members come in the order of names, each peer id once"
    outside = [name for name in names if not allow.lists(id_of(name))]
    return f"{outside[0]} is not in exchange.allow" if outside else ""


def names_in(late: Any, allow: AllowList) -> dict[str, str]:
    """Return peer id -> name of the latecomers that a peer told, of those that may take part; one name an id."""
    names = [one for one in late if is_name(one)][:MAX_PEERS] if isinstance(late, list) else []
    return {id_of(name): name for name in names if id_of(name) in allow}


def is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def _joined(lists: Sequence[Any], key: str) -> list[Any]:
    if not all(isinstance(one, list) for one in lists):
        raise Unreadable(f"{key} are a list")
    return [entry for one in lists for entry in one]
