"""The tables of attacks: relative losses of runs with the same seed, by hand."""

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
