"""The benchmark of scores: its summary, and the payloads of its liars."""

import bench_scores


def record(honest_named, **named):
    outcomes = {lie: rounds and {"rounds": rounds, "why": "..."} for lie, rounds in named.items()}
    return {"named": outcomes, "honest": 6, "honest_named": dict.fromkeys(honest_named), "error": ""}


def test_the_summary_counts_liars_and_honest_peers():
    records = [record([], copy=2, flip=None), record(["001"], copy=5, flip=None), record([], copy=3, flip=9)]
    assert bench_scores.summary(records)[-3:] == [
        "copy     named in 3 of 3 runs after 3 rounds (median), at most 5",
        "flip     named in 1 of 3 runs after 9 rounds (median), at most 9",
        "honest   named in 1 of 18 peer-runs",
    ]


def test_every_lie_has_a_payload():
    lies = {lie for group in bench_scores.GROUPS.values() for lie in group}
    assert lies - {"replay"} == bench_scores.LIES.keys()  # MixedHub.lie repeats the liar's own payload


def test_runs_that_failed_are_counted_separately():
    failed = record(["001"], copy=None) | {"error": "RuntimeError: a worker failed"}
    assert bench_scores.summary([record([], copy=2), failed])[-4:] == [
        "copy     named in 1 of 1 runs after 2 rounds (median), at most 2",
        "flip     named in 0 of 0 runs ",
        "honest   named in 0 of 6 peer-runs",
        "failed   1 of 2 runs",
    ]
    assert bench_scores.summary([failed])[-2:] == ["honest   named in 0 of 0 peer-runs", "failed   1 of 1 runs"]
