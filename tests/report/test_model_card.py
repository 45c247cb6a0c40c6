"""The model card: its settings are YAML that can be read back."""

import yaml

from outerloop.report.model_card import write_model_card

SETTINGS = {
    "seed": 0,
    "rounds": 20,
    "model": {"vocab_size": None, "name": "a: b"},
    "compress": {"large": {"k": 32, "values": {"dtype": "int8"}}},
    "inner": {"betas": [0.9, 0.95], "compile": False, "note": "no"},
}


def test_the_settings_are_yaml(tmp_path):
    fields = ("recipe", "rounds", "workers", "params", "tokens", "val_loss")
    numbers = dict.fromkeys((*fields, "bytes_sent_per_worker", "bits_per_param_per_round"), 1)
    write_model_card(tmp_path, numbers, SETTINGS, title="run")
    block = (tmp_path / "README.md").read_text().split("```yaml\n")[1].split("```")[0]
    shown = yaml.safe_load(block)
    assert shown["model.vocab_size"] is None and shown["model.name"] == "a: b" and shown["inner.note"] == "no"
    assert shown["inner.betas"] == [0.9, 0.95] and shown["compress.large.values.dtype"] == "int8"
    assert next(iter(shown)) == "seed" and "rounds" not in shown
