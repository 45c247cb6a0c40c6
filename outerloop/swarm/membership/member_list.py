"""Send and receive the member list of a run, in as many frames as needed.

    first page     <- {pages, ..., members: [[name, join time], ...], late: [name, ...]}
    other pages    <- {members, late}

A frame holds up to 64 KiB, which is too small for 1,024 members. A received list is untrusted: its names must have the
same form as in roster records, because they appear in messages and logs, and each peer id may occur only once.
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
"""[name, join time] of each member, sorted by name."""
PAGE_NAMES = 192
"""Maximum number of members, and of late joiners, in one frame. With the longest names, both together take 54 KB."""
MAX_PAGES = math.ceil(MAX_PEERS / PAGE_NAMES)


def session_of(run: str, members: Members) -> str:
    """Return the unique id of the session of `run` with these members."""
    alike = [[name, joined + 0.0] for name, joined in members]  # -0.0 equals 0.0 but would hash differently
    return f"{run}/{hashlib.sha256(msgpack.packb([run, alike])).hexdigest()}"


async def send_pages(stream: Stream, answer: Request, members: Members, late: Sequence[str]) -> None:
    """Send `answer` in pages, together with the members and late joiners, each at most MAX_PEERS."""
    count = max(1, math.ceil(max(len(members), len(late)) / PAGE_NAMES))
    parts = [slice(page * PAGE_NAMES, (page + 1) * PAGE_NAMES) for page in range(count)]
    pages = [{"members": members[part], "late": late[part]} for part in parts]
    for page in ({**answer, "pages": count, **pages[0]}, *pages[1:]):
        await stream.send_object(page)


async def receive_pages(stream: Stream) -> Request:
    """Receive all pages of an answer. Return the answer with the concatenated lists, whose entries are unchecked.

    Raises BrokenStream if a page is missing or malformed.
    """
    answer = await stream.receive_object()
    count = answer.get("pages", 1)
    if type(count) is not int or not 1 <= count <= MAX_PAGES:
        raise Unreadable(f"a member list must have 1 to {MAX_PAGES} pages; received {quote(count)}")
    pages = [answer, *[await stream.receive_object() for _ in range(count - 1)]]
    return answer | {key: _joined([page.get(key) for page in pages], key) for key in ("members", "late")}


def objection(members: Any, allow: AllowList) -> str:
    """Return why `members` is not a valid member list, or "" if it is valid."""
    if not isinstance(members, list) or not 1 <= len(members) <= MAX_PEERS:
        return f"members must be a list of 1 to {MAX_PEERS} entries; received {quote(members)}"
    for member in members:
        if not isinstance(member, list) or list(map(type, member)) != [str, float]:
            return f"a member must have a name and a join time; received {quote(member)}"
        if not NAME.fullmatch(member[0]) or not math.isfinite(member[1]):
            return f"invalid name or join time: {quote(member[0])}, {member[1]}"
    names = [name for name, _ in members]
    if any(left >= right for left, right in pairwise(names)) or len(set(map(id_of, names))) < len(names):
        return "members must be sorted by name, with each peer id only once"
    outside = [name for name in names if not allow.may_ever_be_member(id_of(name))]
    return f"{outside[0]} is not in exchange.allow" if outside else ""


def names_in(late: Any, allow: AllowList) -> dict[str, str]:
    """Return a map from id to name of the reported late joiners that are allowed to take part."""
    names = [name for name in late if is_name(name)][:MAX_PEERS] if isinstance(late, list) else []
    return {id_of(name): name for name in names if id_of(name) in allow}


def is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def _joined(lists: Sequence[Any], key: str) -> list[Any]:
    if not all(isinstance(page, list) for page in lists):
        raise Unreadable(f"{key} must be a list")
    return [entry for page in lists for entry in page]
