"""A peer's status in its roster record: a few values for human observers. Peers do not act on them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from outerloop.swarm.validation import MAX_AMOUNT, MAX_NUMBER, MAX_PEERS, MalformedMessage, checked_int, fields, quote

COMMIT = re.compile(r"[0-9a-f]{0,64}")


@dataclass(frozen=True, kw_only=True)
class Status:
    """The published status of one peer.

    round                        the last round that landed or failed on this peer, counted from 1; 0: no round yet
    peers                        number of peers that took part in that round; 0: the round failed on this peer
    loss, tokens_per_s           values from the last logged inner step; None: no step yet
    bytes_sent, bytes_received   bytes of payloads and of the state of the run since this peer started
    commit                       hash of the last commit, in hex; "" if there is none
    loading                      received part of the state of the run, 0 to 1; None: this peer is not downloading it
    counted                      whether this peer's payload was one of those of that round; True: no round yet
    """

    round: int = 0
    peers: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    commit: str = ""
    loading: float | None = None
    counted: bool = True

    @staticmethod
    def from_map(value: Any) -> Status:
        """Parse the status that another peer published. Raises MalformedMessage if it is invalid.

        Earlier versions publish neither `loading` nor `counted`.
        """
        value = {"loading": None, "counted": True, **value} if isinstance(value, dict) else value
        found = fields(value, "a status", Status.__dataclass_fields__)
        if type(found["commit"]) is not str or not COMMIT.fullmatch(found["commit"]):
            raise MalformedMessage(f"a commit must be a hash in hex; received {quote(found['commit'])}")
        return Status(
            round=checked_int(found["round"], "the round", maximum=MAX_NUMBER),
            peers=checked_int(found["peers"], "the number of peers of a round", maximum=MAX_PEERS),
            loss=_number(found["loss"], "the loss"),
            tokens_per_s=_number(found["tokens_per_s"], "tokens/s"),
            bytes_sent=checked_int(found["bytes_sent"], "bytes sent", maximum=MAX_AMOUNT),
            bytes_received=checked_int(found["bytes_received"], "bytes received", maximum=MAX_AMOUNT),
            commit=found["commit"],
            loading=_part(found["loading"]),
            counted=_flag(found["counted"]),
        )


def _part(value: Any) -> float | None:
    """Check that `value` is a float from 0 to 1 or None, and return it."""
    if value is not None and (type(value) is not float or not 0.0 <= value <= 1.0):
        raise MalformedMessage(f"the received part of the state must be 0.0 to 1.0; received {quote(value)}")
    return value


def _flag(value: Any) -> bool:
    """Check that `value` is True or False, and return it."""
    if type(value) is not bool:
        raise MalformedMessage(f"whether a round counted the peer must be true or false; received {quote(value)}")
    return value


def _number(value: Any, what: str) -> float | None:
    """Check that `value` is a float or None, and return it.

    NaN and infinity are allowed, so that other peers can see that a run diverges.
    """
    if value is not None and (type(value) is not float or (math.isfinite(value) and abs(value) > MAX_AMOUNT)):
        raise MalformedMessage(f"{what} must be a number; received {quote(value)}")
    return value
