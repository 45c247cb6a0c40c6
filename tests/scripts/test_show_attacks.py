"""The tables of attacks: relative losses of runs with the same seed, by hand."""

import math

import show_attacks


def row(rule, attack, liars, seed, nats, backdoor=0.0):
    return {
        "recipe": "sparseloco",
        "rule": rule,
        "attack": attack,
        "liars": liars,
        "seed": seed,
        "val_nats": nats,
        "backdoor": backdoor,
    }


ROWS = [
    row("plain", "calm", 0, 0, 2.0),
    row("plain+clip", "calm", 0, 0, 2.02),
    row("plain+clip", "calm", 0, 1, 4.0),
    row("plain+clip", "flip1", 2, 0, 2.222),
    row("plain+clip", "flip1", 2, 1, 4.8),
    row("plain+clip", "backdoor", 2, 0, 2.02, backdoor=0.25),
    row("plain", "flip1", 2, 0, None, backdoor=None),
]


def test_losses_are_relative_to_the_run_of_the_same_seed(capsys):
    records = show_attacks.Records(ROWS)
    assert records.pairs == [("sparseloco", "plain"), ("sparseloco", "plain+clip")]
    show_attacks.print_all(records)
    lines = capsys.readouterr().out.splitlines()
    assert "| sparseloco plain+clip | 3.010 | +1.0 % | flip1 +15.0 %, of 2 |" in lines
    assert "| sparseloco plain | 2.000 | +0.0 % | flip1 failed, of 1 |" in lines
    assert "| flip1 | failed | +15.0 % (2) |" in lines and "| backdoor | – | +0.0 % |" in lines
    assert "| f = 2 | – | 25 % |" in lines


def printed(rows, capsys):
    """Return the lines of the tables of these runs."""
    show_attacks.print_all(show_attacks.Records(rows))
    return capsys.readouterr().out.splitlines()


def test_the_number_of_seeds_is_that_of_the_compared_pairs(capsys):
    attacked = [row("plain+clip", "flip1", 2, seed, 2.222) for seed in range(3)]
    assert "| flip1 | +10.0 % |" in printed([row("plain+clip", "calm", 0, 0, 2.02), *attacked], capsys)
    calm = [row("plain+clip", "calm", 0, seed, loss) for seed, loss in enumerate((2.02, None, 2.02))]
    assert "| flip1 | +10.0 % (2) |" in printed([*calm, *attacked], capsys)


def test_a_calm_run_that_failed_is_not_one_that_was_not_run(capsys):
    lines = printed([row("plain", "calm", 0, 0, None), row("plain", "flip1", 2, 0, 2.0)], capsys)
    assert "| sparseloco plain | failed | failed | flip1 failed, of 1 |" in lines
    assert "| flip1 | failed |" in lines
    assert "| sparseloco plain | – | – | – |" in printed([row("plain", "flip1", 2, 0, 2.0)], capsys)


def test_a_loss_that_is_not_finite_is_the_worst(capsys):
    attacked = [row("plain", "flip1", 2, 0, math.nan), row("plain", "alie", 2, 0, 3.0)]
    lines = printed([row("plain", "calm", 0, 0, 2.0), row("plain", "calm", 0, 1, math.inf), *attacked], capsys)
    assert "| sparseloco plain | 2.000 | +0.0 % | flip1 failed, of 2 |" in lines
    assert "| flip1 | failed |" in lines and "| alie | +50.0 % |" in lines
