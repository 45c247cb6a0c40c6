"""The protocols of the axes: compress, feedback, method, aggregate, schedule, exchange.

An implementation needs only the methods and attributes of its protocol. It needs no import and no base class.

Any implementation may also have an attribute `requires`, a sequence of `Requirement`: properties that implementations
of other axes must have. They are checked when an outer loop is constructed (core/compatibility).
"""

from __future__ import annotations

from outerloop.protocols.aggregate import Aggregate
from outerloop.protocols.compress import Announcing, Compressor, CostAware, Stateful, Transforming
from outerloop.protocols.exchange import Exchange, Pending, ReportsArrival
from outerloop.protocols.feedback import Feedback
from outerloop.protocols.method import OuterMethod
from outerloop.protocols.schedule import AdaptiveSchedule, Schedule

__all__ = [
    "AdaptiveSchedule",
    "Aggregate",
    "Announcing",
    "Compressor",
    "CostAware",
    "Exchange",
    "Feedback",
    "OuterMethod",
    "Pending",
    "ReportsArrival",
    "Schedule",
    "Stateful",
    "Transforming",
]
