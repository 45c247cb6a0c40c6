"""summary.json and the figure of a run, from rows with numbers that can be checked by hand."""

from __future__ import annotations

from matplotlib import pyplot as plt

from outerloop.report.run_figure import draw_bytes, title
from outerloop.report.summary import summarize

PARAMS, PAYLOAD = 1000, 125
"""A payload of 125 bytes has 1 bit per parameter."""
DONE = {
    **{"event": "done", "worker": 0, "wall_s": 30.0, "slow_hash": "x", "bytes_sent": 0, "bytes_received": 0},
    **{"wait_s": 0.0, "rounds_failed": 0, "compute_s": 1.0, "communication_s": 0.0, "others_s": 0.0},
}


def landed(number, *, fragment=0, size=PAYLOAD):
    return {"event": "round", "worker": 0, "round": number, "fragment": fragment, "payload_bytes": size}


def summary_of(rounds):
    """The summary of a run of 100 rounds, in which the worker of this machine has these rows."""
    sent = sum(row["payload_bytes"] for row in rounds)
    rows = [
        *rounds,
        {"event": "eval", "worker": 0, "tokens": 9},
        {"event": "validation", "val_loss": 2.0},
        {**DONE, "payload_bytes": sent},
    ]
    return summarize(rows, recipe="sparseloco", workers=4, rounds=100, params=PARAMS)


def ratio_of(rounds):
    summary = summary_of(rounds)
    return summary["bits_per_param_per_round"], summary["ratio_to_fp32"]


def test_a_worker_that_joined_late_sends_the_same_bits_per_round():
    assert ratio_of([landed(number) for number in range(91, 101)]) == (1.0, 32.0)


def test_rounds_in_which_a_worker_sent_nothing_do_not_count():
    assert ratio_of([landed(1), landed(2, size=0), landed(3)]) == (1.0, 32.0)


def test_a_round_is_one_payload_per_fragment():
    assert ratio_of([landed(number, fragment=p) for number in (99, 100) for p in range(3)]) == (3.0, 32 / 3)


def test_a_worker_that_sent_no_payload_has_a_summary():
    assert ratio_of([landed(100, size=0)]) == (0.0, 0.0)


def test_the_state_that_newcomers_got_is_a_part_of_the_bytes_sent():
    done = [
        DONE | {"worker": w, "payload_bytes": PAYLOAD, "bytes_sent": 900 * w, "state_bytes_sent": 600.0 * w}
        for w in (0, 1)
    ]
    rows = [{"event": "eval", "worker": w, "tokens": 9} for w in (0, 1)] + [{"event": "validation", "val_loss": 2.0}]
    summary = summarize([*rows, *done], recipe="sparseloco", workers=2, rounds=1, params=PARAMS)
    assert (summary["bytes_sent_per_worker"], summary["state_bytes_sent_per_worker"]) == (450.0, 300.0)
    assert "state_bytes_sent_per_worker" not in summary_of([landed(1)]), "another exchange"


def test_the_title_of_the_figure_of_a_run_that_sent_nothing_names_no_ratio():
    assert title(summary_of([landed(1)])).endswith("2.000 nats per token, 32x fewer bytes than float32")
    assert title(summary_of([landed(1, size=0)])).endswith("2.000 nats per token")


def test_the_float32_line_of_the_figure_begins_with_the_worker():
    """float32 has 32 times the bits of each payload, in rounds 91 to 93 as in the first ones."""
    rounds = [landed(91, size=0), *(landed(number) for number in (92, 93))]
    figure, axes = plt.subplots()
    draw_bytes(axes, rounds, summary_of(rounds))
    float32, sent = axes.get_lines()
    assert list(float32.get_xdata()) == list(sent.get_xdata()) == [92, 93]
    assert [y * 1e6 for y in float32.get_ydata()] == [32 * y * 1e6 for y in sent.get_ydata()] == [4000.0, 8000.0]
    plt.close(figure)
