"""Define the outer loop as users see it: its parts, options and state, and the methods that a training loop calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, Self

from torch.nn import Module

from outerloop.core.all_gathers import AllGathers
from outerloop.core.build_loop import build_parts
from outerloop.core.land import Observer
from outerloop.core.round import InFlight, RoundReport
from outerloop.protocols import Aggregate, Compressor, Exchange, Feedback, OuterMethod, Schedule
from outerloop.replica.island import Island
from outerloop.state.part_states import wrap_parts
from outerloop.types import Round, Tensors, UserError


class OuterLoop:
    """Low-communication training of a model with one combination of parts: one part for each axis.

    Args:
        model: the model, updated in place; its trainable parameters are the fast weights.
        method, compress, feedback, aggregate, exchange, schedule: the parts, one for each axis (protocols/).
        merge_local: weight, 0 .. 1, of the LOCAL value when a landed fragment is written to the model; "carry" writes
            the landed value plus the progress of the inner steps since the launch.
        buffers: "local", or "averaged" to replace BatchNorm statistics with their mean over peers when a round lands.
        eager: at landing, replace this peer's contribution to the round with its newest one (arXiv 2502.12996);
            requires a schedule that lands each round just after the same fragment's next round launches.
        clip: "median", "none" or "auto"; determines which contributions are rejected or scaled down (norm_screen.py).
        exclude_accused: whether the payload of a peer that most other peers of a round accuse does not count
            (exclusion_votes.py); equal on all peers.
        state_dtype: "float32", or "float64" for slow weights that keep every bit of φ − θ (twice the memory).
        timeout_s: maximum time that a landing waits for its round's messages.
        seed: seed for all random choices of the compressor, equal on all peers.
        rounds: number of rounds in the run; None for no limit. A peer that was absent never skips past the last one.
        steps: number of inner steps in the run; None for no limit. A peer that was absent never skips past the last
            one. Not used if the schedule counts time-based steps (every_seconds.py).
        samples_per_round: number of training samples that one peer processes in a round, equal on all peers; None if
            the settings do not determine it. Limits the samples that are credited to a peer (ledger.py).
        island: gives access to the model; by default `Island(model)`.

    Attributes:
        slow: the slow weights by parameter name.
        all_gather: exchanges bytes with all peers outside of rounds.
        shared: whether the slow weights are equal on all peers.
        trial_state: how many bytes the feedback and the method will store, measured in a trial step.
        warnings: one line for each setting that is allowed but probably unintended.
        recipe: name of the recipe from which the parts were built, or "" without a recipe.
        inner_optimizer: dotted path of the recipe's inner optimizer, or "" without a recipe.

    At the end of a `with` block, the peer leaves the run: through `close`, or immediately if the block raises.

    Raises:
        UserError: if the parts cannot work together.
    """

    recipe = inner_optimizer = ""
    closed = False

    def __init__(
        self,
        model: Module,
        *,
        method: OuterMethod,
        compress: Compressor,
        feedback: Feedback,
        aggregate: Aggregate,
        exchange: Exchange,
        schedule: Schedule,
        merge_local: float | Literal["carry"] = 0.0,
        buffers: str = "local",
        eager: bool = False,
        clip: str = "auto",
        exclude_accused: bool = False,
        state_dtype: str = "float32",
        timeout_s: float = 600.0,
        seed: int = 0,
        rounds: int | None = None,
        steps: int | None = None,
        samples_per_round: int | None = None,
        island: Island | None = None,
    ) -> None:
        parts = build_parts(
            model,
            method=method,
            compress=compress,
            feedback=feedback,
            aggregate=aggregate,
            exchange=exchange,
            schedule=schedule,
            merge_local=merge_local,
            buffers=buffers,
            eager=eager,
            clip=clip,
            exclude_accused=exclude_accused,
            state_dtype=state_dtype,
            timeout_s=timeout_s,
            seed=seed,
            rounds=rounds,
            steps=steps,
            samples_per_round=samples_per_round,
            island=island,
        )
        self.is_attached = False
        self.model, self.method, self.feedback = model, method, feedback
        self.exchange, self.schedule, self.timeout_s = exchange, schedule, timeout_s
        self.replica, self.island, self.slow = parts.replica, parts.replica.island, parts.replica.slow
        self.shared, self.warnings, self.trial_state = parts.shared, parts.warnings, parts.trial_state
        self.buffers, self.codec, self.screen, self.votes = parts.buffers, parts.codec, parts.screen, parts.votes
        self.ledger, self.shared_state, self.state = parts.ledger, parts.shared_state, parts.state
        self.loop, self.launcher, self.verifier = parts.loop, parts.launcher, parts.verifier
        self.pipeline = parts.pipeline
        self.all_gather = AllGathers(exchange, before=self.launcher.wait, timeout_s=timeout_s)

    def __repr__(self) -> str:
        place = f"round={self.next_round.number}, inner_step={self.inner_step}"
        peer = f"peer={self.exchange.peer!r}, size={self.exchange.size}"
        return f"{type(self).__name__}(recipe={self.recipe!r}, {place}, {peer})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *details: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def close(self) -> None:
        """Send the data that other peers still need, then leave the run. No steps can be counted afterwards.

        Logs a warning if a round was launched that has not landed. If this fails, e.g. because a round could not be
        launched in the background, leave immediately and raise the error.
        """
        self.closed = True
        try:
            self.launcher.wait()
            self.launcher.warn_of_lost_rounds(self.inner_step)
            self.exchange.close()
        except BaseException:
            self.exchange.abort()
            raise

    def abort(self) -> None:
        """Leave the run immediately, even if other peers still need data. No steps can be counted afterwards."""
        self.closed = True
        self.exchange.abort()

    @property
    def inner_step(self) -> int:
        """The position in the run: the number of inner steps completed or skipped so far."""
        return self.loop.inner_step

    @property
    def in_flight(self) -> dict[Round, InFlight]:
        """The launched rounds that have not landed yet."""
        return self.launcher.in_flight

    @property
    def next_round(self) -> Round:
        """The next round to launch after the current inner step."""
        return self.loop.scheduler.next_round(self.inner_step)

    @property
    def last_landed(self) -> Round | None:
        """The last round that landed in this process, or None before the first one."""
        return self.loop.lander.last_landed

    @property
    def samples(self) -> int:
        """Number of this peer's training samples that no landed message includes yet; the maximum over fragments."""
        return max(self.launcher.waiting)

    @property
    def slow_hash(self) -> int:
        """64-bit hash of all slow weights."""
        return self.replica.joint_hash(self.slow)

    @property
    def spare_bytes(self) -> int:
        """Bytes of the tensors that launches and landings keep between rounds, excluding residual and momentum."""
        return self.pipeline.spare_bytes

    @property
    def notifies_updates(self) -> bool:
        """True if the caller calls `before_update` before every change to the weights. Set by the caller."""
        return self.launcher.notifies_updates

    @notifies_updates.setter
    def notifies_updates(self, notifies: bool) -> None:
        self.launcher.notifies_updates = notifies

    def before_update(self) -> float:
        """Wait until the model's weights may be changed. Return the seconds waited."""
        return self.launcher.before_update()

    def after_inner_step(self, samples: int) -> list[RoundReport]:
        """Count one inner step with this many training samples, then launch and land the rounds that are due.

        Returns the reports of the rounds that landed or failed. If this peer was absent for too long, it loads the
        other peers' state. Raises ReplicasDiverged if replicas that must be equal differ, RoundFailed if a round failed
        and the run uses eager updates, or UserError if this peer has left the run.
        """
        if self.closed:
            raise UserError(
                "this outer loop is closed and cannot count steps: finish training inside its `with` block, or call"
                " remove() on the object that attach returned"
            )
        return self.loop.after_inner_step(samples)

    @contextmanager
    def slow_weights(self) -> Iterator[None]:
        """Put the slow weights into the model inside the block, to evaluate or export them. Then restore the fast ones.

        With buffers="averaged", the model also gets the last means of its buffers.

        All processes that hold the model must enter the block, and take no inner steps in it. It may also be entered
        after this peer has left the run.
        """
        self.before_update()
        fast = ExitStack()
        with self.island.followers_serving():
            fast.enter_context(self.temporary_weights(self.slow))
        try:
            yield
        finally:
            with self.island.followers_serving():
                fast.close()

    @contextmanager
    def temporary_weights(self, weights: Tensors) -> Iterator[None]:
        """Replace the model's weights inside the block, and its buffers by their last means if they are averaged."""
        with self.island.temporary_weights(weights), self.buffers.temporary_means():
            yield

    def limit_steps(self, may_extend: Callable[[int], bool]) -> None:
        """Set the function that decides whether a step that already counts as an inner step may count as another one.

        It gets the number of inner steps counted so far. If it returns False, the remaining counts move to the next
        step. Only schedules that count time call it.
        """
        self.loop.may_extend = may_extend

    def observe_landings(self, observer: Observer) -> None:
        """Call `observer` with each verified round and its messages, before the slow weights change."""
        self.loop.lander.observers.append(observer)

    def state_dict(self) -> dict[str, Any]:
        """Return the result of `evolved`, in a form that torch.save and torch.distributed.checkpoint store in full.

        Its tensors change as training continues: copy.deepcopy it to keep it in memory.
        """
        return wrap_parts(self.evolved())

    def evolved(self) -> dict[str, Any]:
        """Return all state that changes during the run, by part, including the rounds in flight."""
        return self.state.evolved()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a copy of a state that `state_dict` or `evolved` returned, and restart the rounds in flight.

        Raises UserError if `state` is not the state of an outer loop, if the run that saved it splits the model into
        another number of fragments, if a part of another class saved the state of a part, if it contains a round in
        flight that the options of this run would land differently, or if this peer has joined a run at another round
        than that of the state.
        """
        self.state.load(state)
