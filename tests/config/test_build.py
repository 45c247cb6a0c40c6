"""What is built from the settings: parts, the fingerprint, and the largest payload."""

import pytest

from outerloop.config import load, part_checks, shared_settings
from outerloop.config.options import resumed_settings
from outerloop.types import UserError


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("schedule.sync_every=0", "sync_every=0 must be at least 1"),
        ("compress.large.k=5000", "k=5000 must be 1 .. chunk=4096"),
        ("feedback.beta=2", "beta=2.* must be 0 .. 1"),
        ("inner.device=tpu", "is not available here"),
        ("inner.precision=fp8", "must be 'auto', 'float32' or 'bfloat16': set inner.precision=auto"),
        ("inner.seq_len=5000", "longer than model.max_seq_len"),
        ("model.vocab_size=100", "smaller than the data's 256"),
        ("model.vocab_size=abc", "model.vocab_size=abc must be a whole number, or null for the data's"),
        ("model.max_seq_len=null", "model.max_seq_len=null must be a whole number"),
        ("model.heads=5", "heads must divide"),
        ("inner.lr=-1", "inner.lr=-1 must be greater than or equal to 0"),
        ("inner.optimizer.betas=[2,0.9]", "Invalid beta"),
    ],
)
def test_bad_parts_are_answered_before_anything_starts(override, said):
    with pytest.raises(UserError, match=said) as error:
        part_checks.check_parts(load.load([override]))
    assert "\n" not in str(error.value)


def test_more_fragments_than_layers_are_answered_before_anything_starts():
    streaming = load.load(["recipe=streaming_diloco", "model=nano", "schedule.fragments=7"])
    with pytest.raises(UserError, match=r"more than the model's 4 layers: set schedule\.fragments=4"):
        part_checks.check_parts(streaming)


def test_all_machines_must_close_rounds_by_the_same_rules_but_a_run_may_go_on_with_others():
    ours, theirs = load.load([]), load.load(["exchange.min_peers=3", "exchange.grace_s=9"])
    assert shared_settings.fingerprint(ours) != shared_settings.fingerprint(theirs)
    assert shared_settings.fingerprint(ours) == shared_settings.fingerprint(load.load(["exchange.grace_s=9"]))
    assert resumed_settings.comparable(ours) == resumed_settings.comparable(theirs)


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        (["inner.batch=3", "inner.accumulate=2", "schedule.sync_every=5"], 30),
        (["inner.batch=3", "schedule=streaming", "schedule.sync_every=30"], 90),
        (["aggregate=weighted"], None),
        (["schedule=every_seconds"], None),
        (["schedule=adaptive"], None),
    ],
)
def test_a_round_has_so_many_samples_where_the_settings_say_it_for_all_machines(options, samples):
    assert shared_settings.samples_per_round(load.load(options)) == samples


def test_the_name_of_a_machine_is_its_own():
    named = load.load(["exchange.public_name='Ada'"])
    assert shared_settings.fingerprint(named) == shared_settings.fingerprint(load.load([]))
    assert resumed_settings.comparable(named) == resumed_settings.comparable(load.load([]))


def test_fingerprint_is_of_what_all_machines_share():
    plain = shared_settings.fingerprint(load.load([]))
    for local in ("workers=4", "run_dir=x", "exchange.port=7", "data.non_iid=true", "log=wandb", "eval.every=1"):
        assert shared_settings.fingerprint(load.load([local])) == plain, local
    for local in ("inner.micro_batch=2", "inner.precision=float32", "inner.compile=true"):
        assert shared_settings.fingerprint(load.load([local])) == plain, local
    assert shared_settings.fingerprint(load.load(["workers=1", "exchange.peers=4"])) == plain
    weighted = shared_settings.fingerprint(load.load(["aggregate=weighted"]))
    for work in ("inner.batch=2", "inner.accumulate=3", "schedule.sync_every=7"):
        assert shared_settings.fingerprint(load.load(["aggregate=weighted", work])) == weighted, work
        assert shared_settings.fingerprint(load.load([work])) != plain, work
    clipped = ["aggregate=median_clip", "aggregate.of._target_=outerloop.aggregate.weighted.Weighted"]
    assert shared_settings.fingerprint(load.load([*clipped, "inner.batch=2"])) == shared_settings.fingerprint(
        load.load(clipped)
    )
    for shared in (
        "seed=1",
        "assignment=by_round",
        "compress.large.k=64",
        "schedule.sync_every=16",
        "model=nano",
        "aggregate=mean",
    ):
        assert shared_settings.fingerprint(load.load([shared])) != plain, shared


def test_a_clip_that_cannot_be_is_refused_before_anything_starts():
    with pytest.raises(UserError, match="clip=median needs peers that take the same outer step"):
        part_checks.check_parts(load.load(["recipe=noloco", "clip=median"]))
    with pytest.raises(UserError, match="clip=often must be 'auto', 'median' or 'none': set clip=auto"):
        part_checks.check_parts(load.load(["clip=often"]))


@pytest.mark.parametrize("recipe", ["recipe=sparseloco", "recipe=noloco"])
def test_the_largest_payload_follows_from_the_model_and_an_option_may_only_say_less(recipe):
    """Before: 1 GiB a peer and a round, whatever the model. `nano` has some 100,000 parameters."""
    kind = "gossip" if "noloco" in recipe else "gather"

    def limited(*options):
        settings = load.load([recipe, f"exchange=swarm_{kind}", *options])
        model = part_checks.check_parts(settings)
        part_checks.limit_payloads(settings, model)
        return settings.exchange.max_blob_bytes, sum(p.numel() for p in model.parameters())

    most, values = limited()
    assert 2 * 8 * values < most < 1 << 28, "both weights of NoLoCo in float32 fit, 1 GiB does not"
    assert limited("exchange.max_blob_bytes=1000")[0] == 1000
    assert limited(f"exchange.max_blob_bytes={1 << 40}")[0] == most
    threads = load.load(["recipe=diloco", "exchange=inprocess"])
    part_checks.limit_payloads(threads, part_checks.check_parts(threads))
    assert "max_blob_bytes" not in threads.exchange
