"""Virtual workers on any model: equal to workers elsewhere, with every kind of recipe, reproducible, with a report."""

import json

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

import outerloop
from outerloop.report import runs
from outerloop.report.groups import Comparison
from tests.support import toy

WORKERS = 3


class Drawn:
    """Endless batches (x, y) of one worker: those of `toy`."""

    def __init__(self, worker):
        self.worker = worker

    def __iter__(self):
        return (toy.batch(self.worker, step) for step in range(10**9))


def squared_error(model, batch):
    x, y = batch
    return ((model(x) - y) ** 2).mean()


def sgd(params):
    return torch.optim.SGD(params, lr=0.1)


VALIDATION = [toy.batch(99, step) for step in range(4)]


def simulate(*overrides, **arguments):
    defaults = {"recipe": "diloco", "workers": WORKERS, "steps": 12, "validation": VALIDATION, "progress": False}
    return outerloop.simulate(toy.model, Drawn, squared_error, *overrides, **defaults | arguments)


@pytest.mark.parametrize("recipe", ["diloco", "sparseloco", "streaming_diloco", "noloco", "outerloop"])
def test_virtual_workers_train_as_workers_with_loops_of_their_own(recipe):
    """The weights of the first worker, against threads with `from_recipe`, `attach` and the same optimizer."""
    fragments = {"options": {"schedule.fragments": 3}} if recipe == "streaming_diloco" else {}
    h = 6 if fragments else 3
    results = simulate("eval.every=1", recipe=recipe, steps=20, sync_every=h, optimizer=sgd, **fragments)

    def live(exchange):
        model, batches = toy.model(), iter(Drawn(exchange.rank))
        outer = outerloop.from_recipe(recipe, model, sync_every=h, exchange=exchange, **fragments)
        optimizer = sgd(model.parameters())
        with outerloop.attach(optimizer, outer):
            while outer.inner_step < outer.schedule.inner_steps(results.summary["rounds"]):
                optimizer.zero_grad()
                squared_error(model, next(batches)).backward()
                optimizer.step()
        return outer.slow

    gossip = recipe == "noloco"
    make = toy.gossip if gossip else toy.InProcess
    slow = toy.run_workers(WORKERS, live, make)
    expected = {name: torch.stack([one[name].double() for one in slow]).mean(0).float() for name in slow[0]}
    for name, p in results.model.named_parameters():
        if gossip:
            torch.testing.assert_close(p.detach(), expected[name])
        else:
            assert torch.equal(p, slow[0][name])
    assert (
        results.steps[0] == 0 and results.steps == sorted(results.steps) and len(results.losses) == len(results.steps)
    )
    assert results.bytes_sent[0] == 0 < results.bytes_sent[-1] == results.summary["bytes_sent_per_worker"]
    assert results.val_loss < results.losses[0]


def test_ddp_is_one_worker_with_the_batches_of_all():
    results = simulate(recipe="ddp", optimizer=sgd)
    model = toy.model()
    optimizer = sgd(model.parameters())
    for step in range(12):
        xs, ys = zip(*(toy.batch(worker, step) for worker in range(WORKERS)), strict=True)
        optimizer.zero_grad()
        squared_error(model, (torch.cat(xs), torch.cat(ys))).backward()
        optimizer.step()
    for ours, theirs in zip(results.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    expected = sum(squared_error(model, batch).item() for batch in VALIDATION) / len(VALIDATION)
    assert results.val_loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("recipe", ["ddp", "demo", "sparta", "muloco"])
def test_the_optimizer_of_the_recipe_is_the_default(recipe):
    results = simulate(recipe=recipe, sync_every=None if recipe != "muloco" else 4)
    assert results.summary["rounds"] == (12 if recipe != "muloco" else 3)
    assert results.losses[0] != results.val_loss and ("spread" in results.summary) == (recipe == "sparta")


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 36, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.head(self.drop(self.norm(self.conv(x)).relu()).flatten(1))


def images(worker):
    """Finite batches as dictionaries, shuffled by torch's own generator."""
    draw = torch.Generator().manual_seed(worker)
    data = [{"x": torch.randn(1, 8, 8, generator=draw), "y": torch.tensor(i % 3)} for i in range(12)]
    return torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def test_equal_seeds_give_equal_runs_with_dropout_and_shuffled_data():
    def run(seed):
        return outerloop.simulate(
            Conv, images, cross_entropy, workers=2, steps=8, sync_every=4, seed=seed, progress=False
        )

    one, other, different = run(0), run(0), run(1)
    assert one.losses == other.losses != different.losses
    assert toy.same_weights(one.model, other.model)
    assert not one.model.training or one.model.norm.running_mean.isfinite().all()


def test_a_report_reads_its_folder(tmp_path, capsys):
    for recipe in ("diloco", "sparseloco"):
        outerloop.simulate(
            toy.model,
            Drawn,
            squared_error,
            recipe=recipe,
            workers=2,
            steps=6,
            sync_every=3,
            run_dir=tmp_path / recipe,
        )
    comparison = Comparison([runs.read(path) for path in runs.find([tmp_path])], baseline="diloco")
    assert len(comparison.finished) == 2 and all(comparison.find_baseline(group) for group in comparison.groups)
    summary = json.loads((tmp_path / "diloco/summary.json").read_text())
    assert summary["val_loss"] == comparison.find_baseline(comparison.groups[0]).loss
    assert capsys.readouterr().out.count("validation loss") == 5, "both at the start and at the end"
    with pytest.raises(outerloop.UserError, match="exists and is not empty"):
        simulate(sync_every=3, run_dir=tmp_path / "diloco")


def test_warnings_about_settings_are_printed_once_per_simulation(capsys):
    for overrides, notes in ((), 1), (("method.optimizer.momentum=0.6",), 0):
        simulate(*overrides, sync_every=3, steps=3, progress=True)
        out = capsys.readouterr().out
        assert out.count("diloco  note: outer momentum of 0.9 or more is high for H = 3") == notes, out
    simulate(sync_every=3, steps=3, progress=False)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("recipe", ["diloco", "ddp"])
def test_a_report_separates_runs_with_different_optimizers(recipe, tmp_path):
    def adam(params):
        first, *others = params
        return torch.optim.Adam([{"params": [first], "lr": torch.tensor(0.5)}, {"params": others}], lr=0.25)

    optimizers = {"sgd": sgd, "slow": lambda params: torch.optim.SGD(params, lr=0.125), "adam": adam}
    h = 1 if recipe == "ddp" else 3
    for name, seed in (("sgd", 0), ("sgd", 1), ("slow", 0), ("adam", 0)):
        run_dir = tmp_path / f"{name}{seed}"
        simulate(recipe=recipe, steps=3, sync_every=h, optimizer=optimizers[name], seed=seed, run_dir=run_dir)
    comparison = Comparison([runs.read(path) for path in runs.find([tmp_path])], baseline=recipe)
    assert sorted(len(group.finished) for group in comparison.groups) == [1, 1, 2]
    settings = OmegaConf.load(tmp_path / "slow0/config.yaml")
    assert settings.inner.keys() == {"device", "optimizer"}
    assert settings.inner.optimizer._target_.endswith("SGD") and settings.inner.optimizer.lr == 0.125
    assert [group.lr for group in OmegaConf.load(tmp_path / "adam0/config.yaml").inner.optimizer.groups] == [0.5, 0.25]
    if recipe == "ddp":
        assert settings.method.optimizer == settings.inner.optimizer
        assert settings.method.clip_norm is None and settings.method.lr_factor is None


def test_an_error_of_the_users_functions_is_raised_as_it_is():
    def broken(model, batch):
        raise ZeroDivisionError("no loss today")

    with pytest.raises(ZeroDivisionError, match="no loss today"):
        outerloop.simulate(toy.model, Drawn, broken, workers=2, steps=30, progress=False)


def test_a_simulation_that_fails_before_its_first_round_leaves_no_files(tmp_path):
    """The corrected call takes the same folder."""
    wrong = {"schedule.delay": 3, "schedule.sync_every": 3}  # needs eager=true
    for options, error in (({}, ZeroDivisionError), (wrong, outerloop.UserError)):
        with pytest.raises(error):
            outerloop.simulate(
                toy.model,
                Drawn,
                lambda model, batch: 1 / 0,
                recipe="diloco",
                workers=1,
                steps=6,
                options={"schedule.sync_every": 3} | options,
                run_dir=tmp_path,
                progress=False,
            )
        assert not list(tmp_path.iterdir())
    simulate(workers=1, steps=3, sync_every=3, run_dir=tmp_path)
    events = [json.loads(line)["event"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert "ready" in events and events[-1] == "done" and (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"steps": 2, "sync_every": 3}, "steps=2 is less than the 3 inner steps"),
        ({"options": {"schedule": "adaptive"}}, "needs a schedule with a fixed H.* set schedule=every_h"),
        ({"options": {"schedule": "every_seconds"}}, "needs a schedule with a fixed H.* set schedule=every_h"),
        ({"options": {"eval.sequences": 8}}, r"eval\.sequences does not apply to a simulation: pass validation="),
        ({"options": {"assignment": "by_round"}}, "assignment does not apply to a simulation: batches returns"),
        ({"options": {"round_timeout_s": 9}}, "round_timeout_s does not apply to a simulation: rounds between"),
        ({"options": {"corpus.max_gb": 9}}, r"corpus\.max_gb does not apply to a simulation: batches returns"),
        ({"options": {"model": "nano"}}, "model does not apply to a simulation: make_model creates the model"),
        ({"options": {"init_from": "runs/a"}}, "init_from does not apply to a simulation: load the weights"),
        ({"options": {"samples.every": 3}}, r"samples\.every does not apply to a simulation"),
        ({"options": {"inner.batch": 3}}, r"inner\.batch does not apply to a simulation"),
        (
            {"optimizer": sgd, "options": {"inner.lr": 1e-3}},
            r"inner\.lr does not apply to a simulation with optimizer=: ",
        ),
        (
            {"optimizer": sgd, "options": {"inner.clip_norm": 9}},
            r"inner\.clip_norm does not apply to .* optimizer=: your",
        ),
        (
            {"optimizer": sgd, "options": {"inner.optimizer.weight_decay": 0}},
            r"inner\.optimizer\.weight_decay does not",
        ),
        ({"optimizer": sgd, "options": {"inner": "muon"}}, "inner does not apply to .* or leave out optimizer="),
        (
            {"recipe": "demo", "optimizer": sgd, "options": {"method": "sgd", "method.optimizer.lr": 1.0}},
            r"method\.optimizer\.lr does not apply to a simulation with optimizer=",
        ),
        ({"recipe": "ddp", "optimizer": sgd, "options": {"method.clip_norm": 1}}, r"method\.clip_norm does not apply"),
        (
            {"optimizer": lambda params: None, "sync_every": 3},
            "optimizer returned an object of type NoneType, not a torch",
        ),
        ({"recipe": "ddp", "optimizer": lambda params: 3}, "optimizer returned an object of type int, not a torch"),
        ({"recipe": "demo", "optimizer": sgd}, "recipe=demo updates the weights itself"),
        ({"recipe": "dilico"}, "recipe must be one of"),
        (
            {"options": {"exchange": "swarm_gather"}},
            "connects processes, but the workers of a simulation are threads",
        ),
        ({"sync_every": 0}, r"schedule\.sync_every=0 must be at least 1"),
        ({"workers": 0}, "workers=0 must be greater than or equal to 1"),
        ({"steps": 1e1}, r"steps=10\.0 must be a whole number of inner steps, 1 or more: pass the number"),
        ({"steps": "8"}, "steps='8' must be a whole number"),
        ({"steps": None}, "steps=None must be a whole number"),
        ({"optimizer": 3}, "optimizer must be a function, but is of type int"),
        ({"validation": 3}, r"validation= must be a list of batches, but is of type int: pass validation=\[batch, "),
        ({"validation": VALIDATION[0]}, "validation= must be a list of batches, but is one batch, a tuple: pass"),
        ({"validation": VALIDATION[0][0]}, "must be a list of batches, but is one batch, a Tensor"),
        ({"validation": {"x": VALIDATION[0][0]}}, "must be a list of batches, but is one batch, a dict"),
        (
            {"validation": [(torch.ones(0, 7), torch.ones(0, 3))], "sync_every": 3},
            "a batch of type tuple has 0 samples",
        ),
        ({"validation": []}, "validation= has no batches: pass at least one, or omit it"),
        ({"validation": [3], "sync_every": 3}, "a batch of type int has no tensor"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(arguments, said):
    with pytest.raises(outerloop.UserError, match=said) as error:
        simulate(**arguments)
    assert "\n" not in str(error.value)


class OnFrozen(nn.Module):
    """A trainable layer of its own on a frozen backbone that all workers share."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.head = backbone.requires_grad_(False), nn.Linear(7, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def test_workers_share_no_trainable_parameter():
    model, layer = toy.model(), nn.Linear(7, 7)
    weight = torch.randn(3, 7)

    def same_memory():
        linear = nn.Linear(7, 3)
        linear.weight = nn.Parameter(weight)
        return linear

    shared = {
        "0.weight": lambda: model,
        "1.weight": lambda: nn.Sequential(nn.Linear(7, 7), layer, nn.Linear(7, 3)),
        "weight": same_memory,
    }
    for name, make_model in shared.items():
        with pytest.raises(outerloop.UserError, match=f"a model that shares {name} with another worker: create a new"):
            outerloop.simulate(make_model, Drawn, squared_error, workers=2, steps=30, progress=False)
    outerloop.simulate(lambda: OnFrozen(layer), Drawn, squared_error, workers=2, steps=3, sync_every=3, progress=False)


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ({"make_model": nn.Linear(7, 3)}, "make_model must be a function, but is of type Linear"),
        ({"make_model": lambda: None}, "make_model returned an object of type NoneType, not a torch.nn.Module: return"),
        ({"batches": VALIDATION}, "batches must be a function, but is of type list"),
        ({"loss": lambda model, batch: 0.5}, "loss returned a value of type float, but must return a scalar tensor"),
        ({"loss": lambda model, batch: model(batch[0]).mean(1)}, r"loss returned a value of shape \(4,\), but must"),
    ],
)
def test_functions_that_return_other_objects_are_refused_in_one_line(functions, said):
    functions = {"make_model": toy.model, "batches": Drawn, "loss": squared_error} | functions
    with pytest.raises(outerloop.UserError, match=said) as error:
        outerloop.simulate(**functions, workers=2, steps=30, progress=False)
    assert "\n" not in str(error.value)


def test_the_options_of_the_outer_step_and_the_device_apply_with_an_own_optimizer():
    options = {"method.optimizer.lr": 1.0, "inner.device": "cpu"}
    assert simulate(workers=1, steps=3, sync_every=3, optimizer=sgd, options=options).summary["rounds"] == 1


def test_the_random_state_of_the_caller_is_restored():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    simulate(workers=1, steps=3, sync_every=3)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(7)
    with pytest.raises(outerloop.UserError, match="make_model returned an object"):
        outerloop.simulate(lambda: None, Drawn, squared_error, workers=1, steps=30, progress=False)
    assert torch.equal(torch.rand(3), expected)


def test_a_generator_that_ends_is_named():
    def two(worker):
        yield from (toy.batch(worker, step) for step in range(2))

    with pytest.raises(outerloop.UserError, match=r"batches\(\d\) has no more batches: return a list"):
        outerloop.simulate(toy.model, two, squared_error, workers=2, steps=30, progress=False)


def test_the_first_batch_is_held_out_in_every_epoch():
    trained, evaluated = [], []

    def three(worker):
        return [toy.batch(worker, step) for step in range(3)]

    def recorded(model, batch):
        (trained if model.training else evaluated).append(batch)
        return squared_error(model, batch)

    outerloop.simulate(toy.model, three, recorded, workers=1, steps=4, sync_every=4, progress=False)
    first, *others = (x for x, _ in three(0))
    assert all(torch.equal(x, first) for x, _ in evaluated)
    for (x, _), expected in zip(trained, [*others, *others], strict=True):
        assert torch.equal(x, expected)


def test_a_worker_needs_a_batch_besides_the_held_out_one():
    with pytest.raises(outerloop.UserError, match="without validation=, return at least two batches"):
        outerloop.simulate(
            toy.model, lambda worker: [toy.batch(0, 0)], squared_error, workers=2, steps=30, progress=False
        )
