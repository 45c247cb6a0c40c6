"""Options that audits do not support are refused with one line, and the options are shared by all machines."""

from __future__ import annotations

import pytest

from outerloop.config import load, part_checks, shared_settings
from outerloop.config.options import resumed_settings
from outerloop.exchange.gather_options import GatherOptions
from outerloop.types import UserError
from tests.support.small_trainer import README

RUN = ["model=nano", "data=text", f"data.files=[{README}]", "inner.seq_len=16", "exchange.audit=0.05"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "assignment=by_worker: set assignment=by_round"),
        (["assignment=by_round", "schedule.delay=1"], r"this schedule: set schedule=every_h, schedule\.delay=0"),
        (["assignment=by_round", "merge_local=0.5"], r"merge_local=0\.5: set merge_local=0"),
        (["assignment=by_round", "inner.compile=true"], r"inner\.compile=true: set inner\.compile=false"),
        (["assignment=by_round", "island=replicated"], r"island\.kind=replicated: set island=single"),
    ],
)
def test_what_audits_do_not_support_is_refused(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=rf"exchange\.audit does not support {message}, or exchange\.audit=0"):
        part_checks.check_parts(load.load([*RUN, *options]))


def test_supported_settings_are_accepted() -> None:
    part_checks.check_parts(load.load([*RUN, "assignment=by_round"]))
    part_checks.check_parts(load.load([*RUN, "assignment=by_round", "inner=muon", "exchange.audit=1"]))


@pytest.mark.parametrize(("steps", "every", "least"), [(4095, 1, None), (4096, 1, 2), (8190, 2, None), (8191, 2, 3)])
def test_a_round_has_no_more_leaves_than_an_auditor_accepts(steps: int, every: int, least: int | None) -> None:
    config = load.load([*RUN, "assignment=by_round", f"schedule.sync_every={steps}", f"exchange.audit_every={every}"])
    if least is None:
        part_checks.check_parts(config)
        return
    with pytest.raises(UserError, match=rf"4095 windows: set exchange\.audit_every={least} or higher"):
        part_checks.check_parts(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"audit": 1.5}, r"exchange\.audit=1\.5 must be 0 \.\. 1: set exchange\.audit=0\.05"),
        ({"audit": -0.1}, r"exchange\.audit=-0\.1 must be 0 \.\. 1"),
        ({"audit_every": 0}, r"exchange\.audit_every=0 must be at least 1: set exchange\.audit_every=5"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        GatherOptions(run="r", identity_path="k", peers=2, **options)  # type: ignore[arg-type]


def test_all_machines_have_the_same_audits_and_older_runs_have_none() -> None:
    settings = shared_settings.shared_settings(load.load([*RUN, "assignment=by_round"]))
    assert settings["exchange.audit"] == 0.05 and settings["exchange.audit_every"] == 5
    assert resumed_settings.OLD_DEFAULTS["exchange.audit"] == 0.0
