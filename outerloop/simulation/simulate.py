"""Train any model with N virtual workers in one process, on one device, to compare recipes.

    for recipe in ("ddp", "diloco", "sparseloco"):
        print(outerloop.simulate(make_model, batches, loss, recipe=recipe, run_dir=f"runs/{recipe}"))

Workers are threads that take turns (exchange/inprocess.py), so runs on equal hardware are bit-for-bit reproducible.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import Tensor
from torch.nn import Module

from outerloop import rng
from outerloop.config import budget, build, instantiate, load
from outerloop.config.from_recipe.arguments import check_steps
from outerloop.config.option_mapping import refuse_options, to_overrides
from outerloop.exchange.inprocess import Hub
from outerloop.kernels.threads import set_threads
from outerloop.launcher import cpu_share
from outerloop.launcher.thread_pool import ComputeThread
from outerloop.simulation.arguments import REASONS, check_functions, list_batches, refuse_replaced
from outerloop.simulation.recorder import Recorder, describe_task
from outerloop.simulation.results import Results
from outerloop.simulation.task import MakeOptimizer, Task, refuse_shared
from outerloop.simulation.virtual_worker import VirtualWorker
from outerloop.types import Stopped, UserError


def simulate(
    make_model: Callable[[], Module],
    batches: Callable[[int], Iterable[Any]],
    loss: Callable[[Module, Any], Tensor],
    *overrides: str,
    recipe: str = "sparseloco",
    workers: int = 8,
    steps: int = 1000,
    validation: Iterable[Any] | None = None,
    optimizer: MakeOptimizer | None = None,
    sync_every: int | None = None,
    options: Mapping[str, Any] | DictConfig | None = None,
    seed: int = 0,
    device: str = "auto",
    run_dir: str | Path | None = None,
    progress: bool = True,
) -> Results:
    """Train with virtual workers that take turns on one device, and return loss and traffic curves.

    To keep runs reproducible, draw random numbers with torch, which is seeded per worker, or with your own seeded
    generators.

    Args:
        make_model: function that returns the model. It is called once per worker, with the same seed, so that all
            workers start with equal weights.
        batches: function that takes a worker's index (0 .. workers - 1) and returns that worker's batches. Iteration
            restarts after the last batch. A batch is a tensor, or a tuple, list or dictionary of tensors, whose first
            dimension counts samples.
        loss: function (model, batch) -> mean loss over the batch, a scalar tensor.
        overrides: options as on the command line: "compress=int8", "eval.every=2" (rounds between evaluations).
        recipe: name of a recipe; "ddp" is data parallel training, the baseline.
        workers: number of workers.
        steps: number of inner steps per worker. The run ends with the last round that lands within these steps.
        validation: batches on which the global model is evaluated. None: the first batch of each worker is held out, so
            that no worker trains on it, unless a loader shuffles: then pass `validation`.
        optimizer: function that takes the list of parameters and returns the inner optimizer; its learning rate stays
            constant, and gradients are not clipped. None: the recipe's optimizer, with inner.lr, warm-up, decay and
            gradient clipping.
        sync_every: H, the number of inner steps per round; sets schedule.sync_every.
        options: more options, as a mapping: {"inner.lr": 1e-3, "schedule.sync_every": 30}.
        seed: seed of the initial weights and of all random numbers of the workers and the recipe.
        device: "auto", "cpu", "cuda" or "mps".
        run_dir: new folder for config.yaml, metrics.jsonl and summary.json, which `outerloop report` reads.
        progress: whether to print a line for each evaluation, and notes such as warnings about settings.

    Raises:
        UserError: if an argument or option is invalid, or if the recipe cannot be simulated.
    """
    functions = {"make_model": make_model, "batches": batches, "loss": loss}
    check_functions(functions if optimizer is None else functions | {"optimizer": optimizer})
    check_steps(steps, "the number of inner steps per worker, such as steps=1000")
    task = Task(make_model, batches, loss, None if validation is None else list_batches(validation), optimizer)
    own = {"recipe": recipe, "workers": workers, "seed": seed, "inner.device": device}
    typed = [
        *overrides,
        *to_overrides(options),
        *to_overrides({} if sync_every is None else {"schedule.sync_every": sync_every}),
    ]
    refuse_options(typed, REASONS, "a simulation")
    settings = simulation_settings(to_overrides(own), typed)
    if optimizer is not None:
        refuse_replaced(typed, settings)
    settings.rounds = rounds_within(settings, steps)
    folder = None if run_dir is None else Path(run_dir)
    recorder = Recorder(describe_task(settings, task), folder, progress=progress)
    with closing(recorder), rng.preserved():
        models = run_workers(settings, task, recorder)
        return recorder.results(models[0])


def simulation_settings(own: Sequence[str], typed: Sequence[str]) -> DictConfig:
    """Return the validated settings, with the recipe's exchange between processes replaced by one between threads.

    Raises UserError if the user selected an exchange between processes.
    """
    settings = load.load([*own, *typed])
    if settings.workers_as == "threads":
        return settings
    kind = "inprocess" if build.capabilities(settings).agrees else "inprocess_gossip"
    settings = load.load([*own, f"exchange={kind}", *typed])
    if settings.workers_as != "threads":
        raise UserError(
            f"{settings.exchange._target_} connects processes, but the workers of a simulation are threads: leave out"
            f" exchange=, or set exchange={kind}"
        )
    return settings


def rounds_within(settings: DictConfig, steps: int) -> int:
    """Return how many rounds land (are applied) within `steps` inner steps.

    Raises UserError if no round lands, or if the schedule does not fix the number of steps per round.
    """
    if budget.fixed_h(settings) is None:
        raise UserError("a simulation needs a schedule with a fixed H, to end within steps=: set schedule=every_h")
    schedule = instantiate.make(settings.schedule)
    rounds = bisect_right(range(1, steps + 1), steps, key=schedule.inner_steps)
    if rounds == 0:
        raise UserError(
            f"steps={steps} is less than the {schedule.inner_steps(1)} inner steps until the first round lands: set a"
            " larger steps=, or a smaller sync_every="
        )
    return rounds


def run_workers(settings: DictConfig, task: Task, recorder: Recorder) -> list[Module]:
    """Run all workers as threads, and return their models, sorted by rank.

    Raises the error of the first worker that fails, or UserError if two models share trainable parameters.
    """
    hub, models, errors = Hub(settings.workers), dict[int, Module](), list[BaseException]()

    def work(rank: int) -> None:
        set_threads(1)
        try:
            with closing(instantiate.make(settings.exchange, hub=hub, rank=rank)) as exchange:
                exchange.join()
                worker = VirtualWorker(task, settings, exchange, emit=recorder.record, compute=compute)
                refuse_shared(worker.model, models.values())
                models[rank] = worker.model
                if rank == 0 and worker.own_optimizer is not None:
                    recorder.record_optimizer(worker.own_optimizer)
                worker.run()
        except Stopped:
            pass
        except BaseException as error:
            errors.append(error)
            hub.stop("another worker failed")

    with closing(ComputeThread(settings.threads or cpu_share.threads_per_process(1))) as compute:
        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(settings.workers)]
        try:
            for thread in threads:
                thread.start()
        finally:
            wait_for(threads, hub)
    if errors:
        raise errors[0]
    return [models[rank] for rank in sorted(models)]


def wait_for(threads: Sequence[threading.Thread], hub: Hub) -> None:
    """Wait until all threads have ended. If the wait is interrupted, stop the workers and re-raise the exception."""
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        hub.stop("the simulation was interrupted")
        for thread in threads:
            thread.join()
        raise
