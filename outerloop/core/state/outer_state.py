"""Save and restore all state of an outer loop that changes during the run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from outerloop.core.loop import RoundLoop
from outerloop.core.round_scheduler import first_round
from outerloop.exchange_protocols import joined_round
from outerloop.state.part_states import check_fragments, check_state, load_part, on_device, unwrap_parts
from outerloop.types import Round, UserError


class OuterState:
    """The state of one outer loop: slow weights, parts, position in the run, and rounds in flight.

    Args:
        loop: the loop, which holds the slow weights, the position and the rounds in flight.
        parts: the parts that have state, by the name under which it is saved; None for a part without state.
    """

    def __init__(self, loop: RoundLoop, parts: Mapping[str, Any]) -> None:
        self.loop, self.parts = loop, parts

    def evolved(self) -> dict[str, Any]:
        """Return the state, by part. The tensors are those that training changes, not copies."""
        launcher = self.loop.launcher
        launcher.wait()
        assumptions = {"landing_assumptions": launcher.pipeline.landing_assumptions()}
        return {
            "slow": dict(launcher.replica.slow),
            **{name: part.state_dict() if part else {} for name, part in self.parts.items()},
            "inner_step": self.loop.inner_step,
            "samples": list(launcher.waiting),
            "in_flight": [flight.state_dict() | assumptions for flight in launcher.in_flight.values()],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `evolved`, with copies of its tensors, and restart the rounds in flight.

        Raises UserError if `state` is not the state of an outer loop, if the run that saved it splits the model into
        another number of fragments, if a part of another class saved the state of a part, if it contains a round in
        flight that the options of this run would land differently, or if this peer has joined a run at another round
        than that of the state.
        """
        launcher = self.loop.launcher
        check_state(state)
        check_fragments(state, launcher.schedule.fragments)
        state = unwrap_parts(state)
        check_landing(state, launcher.pipeline.landing_assumptions())
        self.check_position(state)
        launcher.wait()
        self.loop.early.end()
        launcher.replica.load_slow(state.pop("slow"))  # copies
        state = on_device(state, launcher.replica.device, copy=True)
        for name, part in self.parts.items():
            if part:
                load_part(name, part, state.get(name, {}))  # missing in checkpoints of older runs
        self.loop.inner_step = state["inner_step"]
        launcher.resume(state["samples"], state["in_flight"])

    def check_position(self, state: Mapping[str, Any]) -> None:
        """Raise UserError if this peer has joined a run in which it cannot continue from `state`.

        No peer has the rounds before the one at which it joined, and none can skip rounds that are not decided yet.
        """
        joined = joined_round(self.loop.exchange)
        if joined is None:
            return
        first, reached = self.first_round(state), self.loop.scheduler.next_round(self.loop.inner_step)
        if not joined <= first <= max(joined, reached):
            raise UserError(
                f"this peer has joined the run at {joined}, and cannot load a state that continues at {first}:"
                ' pass the state to from_recipe, as state=saved["outer"] or, for a folder of'
                " resharding.save, as state=resharding.load_state(folder, optimizer, model)"
            )

    def first_round(self, state: Mapping[str, Any]) -> Round:
        """Return the first round that is exchanged after `state` is loaded: one in flight, or else the next launch."""
        schedule = self.loop.launcher.schedule
        if self.parts.get("schedule"):
            schedule = copy.copy(schedule)
            load_part("schedule", schedule, state.get("schedule", {}))
        return first_round(schedule, state["in_flight"], state["inner_step"])


def check_landing(state: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UserError if a round in flight was launched under other assumptions about its landing than `now`.

    Rounds that earlier versions saved do not contain these assumptions, and are not checked.
    """
    for saved in (flight.get("landing_assumptions", now) for flight in state["in_flight"]):
        if saved["carry"] != now["carry"]:
            was = "merge_local=carry" if saved["carry"] else "another merge_local than carry"
            raise UserError(
                f"the state contains a round in flight, launched with {was}: resume with that merge_local and"
                " schedule.delay"
            )
        if saved["fused"] != now["fused"]:
            raise UserError(
                "the state contains a round in flight, which the options of this run would land differently: resume"
                " with the method, compress, feedback, aggregate and schedule options of the run that saved it"
            )
