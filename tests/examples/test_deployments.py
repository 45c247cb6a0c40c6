"""The shell parts of examples/: their scripts run, with stand-ins for the programs that they start, and what they would
start is valid and belongs to one run.
"""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from outerloop.config import load
from outerloop.config.options import sweep_check
from outerloop.config.options.search_path import config_dir
from outerloop.config.shared_settings import fingerprint
from outerloop.swarm.p2p.daemon import check_addresses

EXAMPLES = Path(__file__).parents[2] / "examples"
IDS = [f"12D3KooW{'ABC'[i] * 44}" for i in range(3)]
STAND_IN = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
name, log = Path(sys.argv[0]).name, Path(os.environ["CALLS"])
log.open("a").write(json.dumps([name, *sys.argv[1:]]) + "\\n")
if name == "outerloop" and sys.argv[1] == "doctor":
    print("✓ identity  run_dir=x has 1 peer id: if the run has an allow-list, add {IDS[0]} to exchange.allow")
if name == "timeout":
    sys.exit(not any(host in sys.argv[-1] for host in os.environ.get("ANSWERING", "nowhere").split()))
if name == "srun":
    os.execvp(sys.argv[1], sys.argv[1:])
sys.exit(int(os.environ.get("CODE", "0")) if name == "outerloop" else 0)
"""


def called(script, folder, *arguments, programs=("outerloop", "srun", "scontrol", "sleep"), **environment):
    """Run a bash script in `folder`. Return its exit code and the command lines of the stand-ins that it called."""
    for name in programs:
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(STAND_IN)
        (folder / "bin" / name).chmod(0o755)
    calls = folder / "calls"
    calls.unlink(missing_ok=True)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "CALLS": str(calls), "SLURM_JOB_ID": "7"} | environment
    done = subprocess.run(["bash", "-c", script, "x", *arguments], cwd=folder, env=environment)
    return done.returncode, [json.loads(line) for line in calls.read_text().splitlines()]


def trained(calls):
    """The settings of the last `outerloop train` that was called."""
    [*_, command] = [call for call in calls if call[:2] == ["outerloop", "train"]]
    settings = load.load(command[2:])
    check_addresses("initial_peers", settings.exchange.initial_peers, must_name="p2p")
    check_addresses("announce", settings.exchange.announce, must_name="tcp")
    return settings


def meet(settings):
    """Whether peers with these settings form one run that waits for exactly them."""
    prints = {fingerprint(one) for one in settings}
    return len(prints) == 1 and {one.exchange.peers for one in settings} == {len(settings)}


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def sbatch(first_port, second_port):
    """The batch script with both sites on this machine."""
    source = (EXAMPLES / "slurm_two_sites.sbatch").read_text()
    ports = iter((first_port, second_port))
    return re.sub(r"/ip4/[\d.]+/tcp/4242(?=/p2p)", lambda _: f"/ip4/127.0.0.1/tcp/{next(ports)}", source)


def test_site_0_starts_first_and_returns_to_site_1_if_that_answers(tmp_path, port):
    _, calls = called(sbatch(1, 1), tmp_path, "0")
    first = trained(calls)
    _, calls = called(sbatch(1, port), tmp_path, "0")
    again = trained(calls)
    assert first.exchange.initial_peers == []
    assert len(again.exchange.initial_peers) == 1 and again.exchange.initial_peers[0].endswith(first.exchange.allow[1])
    assert first.run_dir == again.run_dir and first.exchange.announce == ["/ip4/127.0.0.1/tcp/1"]


def test_site_1_joins_site_0_as_soon_as_that_answers(tmp_path, port):
    _, calls = called(sbatch(1, 1), tmp_path, "0")
    first = trained(calls)
    _, calls = called(sbatch(port, 1), tmp_path, "1")
    second = trained(calls)
    assert second.exchange.initial_peers[0].endswith(first.exchange.allow[0])
    assert meet([first, second]) and first.exchange.allow == second.exchange.allow


@pytest.mark.parametrize(
    ("code", "requeued", "after_s"),
    [(0, False, 0), (1, False, 0), (1, True, 86_300), (2, False, 86_300), (130, True, 0), (143, True, 0)],
)
def test_the_job_is_requeued_if_a_signal_stopped_it(tmp_path, code, requeued, after_s):
    """torchrun ends with code 1 after any signal, so this code counts if the time limit is near."""
    returned, calls = called(sbatch(1, 1), tmp_path, "0", CODE=str(code), SECONDS=str(after_s))
    assert returned == code and (["scontrol", "requeue", "7"] in calls) == requeued


def test_the_sweep_has_one_budget_and_reports(tmp_path):
    source = (EXAMPLES / "sweep_slurm.sh").read_text()
    _, (train, report) = called(source, tmp_path, "hydra.launcher.partition=gpu")
    overrides = train[3:]
    assert train[:3] == ["outerloop", "train", "-m"] and report == ["outerloop", "report", "runs/sweep"]
    jobs = [load.load(combination) for combination in sweep_check.combinations(overrides)]
    assert len(jobs) == 9
    assert len({(job.rounds * job.schedule.sync_every, job.workers) for job in jobs}) == 1
    hydra_alone = [override for override in overrides if override.startswith("hydra")]
    with initialize_config_dir(version_base="1.3", config_dir=str(config_dir())):
        launcher = compose("train", overrides=hydra_alone, return_hydra_config=True).hydra.launcher
    assert launcher.partition == "gpu" and launcher.gpus_per_node == 1


def test_the_services_of_compose_form_one_run(tmp_path):
    compose_file = yaml.safe_load((EXAMPLES / "docker-compose.yml").read_text())
    peers = {}
    (tmp_path / "id").mkdir()
    for name in ("key", "first", "second", "third"):
        service = compose_file["services"][name]
        assert service["image"] == "outerloop" and service["entrypoint"] == ["bash", "-c"]
        volumes = dict(volume.split(":")[:2] for volume in service["volumes"])
        assert volumes.keys() <= compose_file["volumes"].keys()
        (command,) = service["command"]
        for inside in volumes.values():
            assert inside in command
        script = command.replace("$$", "$").replace("/id/", f"{tmp_path}/id/")
        _, calls = called(script, tmp_path)
        peers[name] = calls
    assert (tmp_path / "id/first").read_text().strip() == IDS[0]
    settings = [trained(peers[name]) for name in ("first", "second", "third")]
    assert meet(settings)
    assert settings[1].exchange.initial_peers == [f"/dns4/first/tcp/{settings[0].exchange.port}/p2p/{IDS[0]}"]
    assert "--run-dir" in peers["key"][0] and settings[0].run_dir in peers["key"][0]


def kubernetes():
    return {item["kind"]: item for item in yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())}


def test_the_names_in_the_statefulset_match():
    service, workload = kubernetes()["Service"], kubernetes()["StatefulSet"]
    spec, pod = workload["spec"], workload["spec"]["template"]["spec"]
    assert spec["serviceName"] == service["metadata"]["name"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == volumes


@pytest.mark.parametrize(
    ("pod", "answering", "joins"),
    [(0, "", []), (0, "outerloop-2", [2]), (1, "", None), (1, "outerloop-0 outerloop-2", [0, 2])],
)
def test_a_pod_joins_those_that_answer_and_pod_0_may_start(tmp_path, pod, answering, joins):
    container = kubernetes()["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    keys = tmp_path / "keys"
    keys.mkdir()
    for index in range(3):
        (keys / str(index)).write_text(f"key {index}")
    script = container["args"][0].replace("/runs/", f"{tmp_path}/runs/").replace("/keys/", f"{keys}/")
    environment = {"HOSTNAME": f"outerloop-{pod}", "IDS": ",".join(IDS), "ANSWERING": answering or "nowhere"}
    code, calls = called(script, tmp_path, programs=("outerloop", "timeout", "sleep"), **environment)
    key = tmp_path / "runs/run/workers/0/identity.key"
    assert key.read_text() == f"key {pod}" and key.stat().st_mode & 0o777 == 0o600
    if joins is None:
        assert code == 1 and not [call for call in calls if call[0] == "outerloop"]
        return
    settings = trained(calls)
    assert settings.exchange.initial_peers == [f"/dns4/outerloop-{i}.outerloop/tcp/4242/p2p/{IDS[i]}" for i in joins]
    assert OmegaConf.to_container(settings.exchange.allow) == IDS and settings.exchange.peers == 3


def test_bash_parses_every_script():
    scripts = [path for path in EXAMPLES.iterdir() if path.suffix in (".sh", ".sbatch")]
    assert len(scripts) == 2
    for path in scripts:
        assert subprocess.run(["bash", "-n", str(path)]).returncode == 0 and os.access(path, os.X_OK)
