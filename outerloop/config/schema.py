"""Define types and limits of the options in train.yaml and in the groups inner and exchange/shared/node.

The yaml files contain the defaults and describe each option; these models state which values are valid. The options of
all other groups are arguments of the classes that `_target_` names, and options/argument_types.py checks them. Options
that a user's recipe or yaml file adds to a group are not checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outerloop.config.options.argument_types import as_typed, hint
from outerloop.types import UserError

Natural = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Options(BaseModel):
    """Base class. Values are not converted (the text "3" is not a number), and unlisted options are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True)


class Inner(Options):
    """Options of every choice in the group inner."""

    batch: Count
    micro_batch: Count | Literal["auto"] | None = None
    seq_len: Count
    accumulate: Count
    lr: Annotated[float, Field(ge=0)]
    lr_schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    warmup_steps: Natural
    lr_floor: Fraction
    clip_norm: Positive | None
    precision: Literal["auto", "float32", "bfloat16"]
    compile: bool
    device: str
    optimizer: dict[str, Any] | None


class Evaluation(Options):
    """Options of the section eval."""

    every: Natural
    sequences: Count


class Checkpoints(Options):
    """Options of the section checkpoint."""

    every: Natural
    keep: Count
    hf_every: Natural


class Samples(Options):
    """Options of the section samples."""

    every: Natural
    prompt: str
    tokens: Count


class Scores(Options):
    """Options of the section scores."""

    payloads: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    windows: Annotated[int, Field(ge=4)]


class SharedData(Options):
    """Options of the section corpus."""

    share: str | None
    folder: str | None
    max_gb: Positive


class Network(Options):
    """Options of exchange/shared/node, which exchange=swarm_gather and exchange=swarm_gossip share."""

    run: str | int | None = None
    peers: Count = 1
    initial_peers: list[str] | None = []
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    announce: list[str] | None = []
    open_internet: bool = False
    allow: list[str] | None = []
    invites: bool = False
    newcomer: bool = False
    join_timeout_s: Positive = 120.0
    max_blob_bytes: Count | None = None
    max_mbit: Positive | None = None


class Training(Options):
    """Options of train.yaml that are checked for every run."""

    recipe: str
    workers: Count
    rounds: Count
    steps: Count | None
    tokens: Count | None
    seed: Natural
    assignment: Literal["by_worker", "by_round"]
    run_dir: str | None
    init_from: str | None
    threads: Count | None
    merge_local: Fraction | Literal["carry"]
    buffers: Literal["local", "averaged"]
    clip: Literal["auto", "median", "none"]
    exclude_accused: bool
    eager: bool
    state_dtype: Literal["float32", "float64"]
    state_device: Literal["model", "cpu"]
    round_timeout_s: Positive
    max_failed_rounds: Count
    watch: Annotated[int, Field(ge=1, le=65535)] | None = None
    log_every: Count
    keep_payload_rounds: Natural
    inner: Inner
    eval: Evaluation
    checkpoint: Checkpoints
    samples: Samples
    scores: Scores
    corpus: SharedData


class SwarmTraining(Training):
    """Options of a run whose exchange includes exchange/shared/node."""

    exchange: Network


def check(config: DictConfig, defaults: Callable[[], DictConfig]) -> None:
    """Check the values of a composed configuration. Raises UserError for the first option whose value is invalid.

    `defaults` returns the configuration with the same choices but no other overrides. The error message suggests the
    option's value in that configuration.
    """
    values: Any = OmegaConf.to_container(config, resolve=True)
    try:
        (SwarmTraining if "initial_peers" in values["exchange"] else Training).model_validate(values)
    except ValidationError as error:
        if error.errors()[0]["type"] == "missing":
            missing = ".".join(map(str, error.errors()[0]["loc"]))
            raise UserError(f"the configuration lacks {missing}: set +{missing}=...") from None
        key, value = invalid_option(values, error.errors()[0]["loc"])
        messages = [each["msg"] for each in error.errors() if invalid_option(values, each["loc"])[0] == key]
        allowed = " or ".join(dict.fromkeys(text.removeprefix("Input should be ") for text in messages))
        default = OmegaConf.select(defaults(), key)
        what_to_do = hint(key, OmegaConf.to_object(default) if OmegaConf.is_list(default) else default, value)
        raise UserError(f"{key}={as_typed(value)} must be {allowed}: {what_to_do}") from None


def invalid_option(values: Any, location: tuple[int | str, ...]) -> tuple[str, Any]:
    """Return the dotted key and the value of the invalid option at `location`.

    `location` comes from a pydantic error: the keys from the root to the option, then possibly an index in a list, or
    the member of a union.
    """
    path = []
    for name in location:
        if not isinstance(values, dict) or name not in values:
            break
        path.append(str(name))
        values = values[name]
    return ".".join(path), values
