"""What peers have contributed, as seen from outside: real daemons on loopback, and an observer."""

from pathlib import Path

import pytest

from outerloop.commands.observe import RunObservation, observe_run
from outerloop.config.run_directory import identity_file
from outerloop.core.contributor_rows import ContributorTable
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.exchange_protocols import public_names, report_contributors
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.accountability import contributors
from outerloop.swarm.validation import id_of
from outerloop.types import Contributor, Round, UserError
from tests.support.swarm.loopback import Make, eventually, together


def counts_of(*peers: SwarmGather) -> list[Contributor]:
    return [Contributor(peer, 1, 8, 0, 0) for peer in sorted(id_of(one.peer) for one in peers)]


def observed(observation: RunObservation) -> ContributorTable | None:
    observation.seen()
    return observation.contributions(wait_s=60)


def test_an_observer_sees_who_has_contributed_with_names_and_how_many_peers_agree(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contributors, "ROSTER_REFRESH_S", 1.0)
    trio = [make(peers=3, public_name=name) for name in ("Ada's laptop", "[red]<b>", "")]
    together(trio, SwarmGather.join)
    for peer in trio[:2]:
        report_contributors(peer, Round(0), counts_of(*trio))
    report_contributors(trio[2], Round(0), counts_of(trio[2]))
    with observe_run(trio[0].address[0], run="r", run_dir=None) as observation:
        found = observed(observation)
    assert found is not None and (found.round, found.asked, found.equal) == (1, 2, 1)
    names = {id_of(peer.peer): name for peer, name in zip(trio, ("Ada's laptop", "[red]<b>", ""), strict=True)}
    assert {row.peer: row.name for row in found.rows} == names
    assert eventually(lambda: len(public_names(trio[0])) == 2, limit_s=60)


def test_with_a_list_the_observer_of_a_worker_may_see_it_too(make: Make, tmp_path: Path) -> None:
    keys = [identity_file(tmp_path / f"run{index}", 0) for index in range(2)]
    allow = [Signatures.of(ensure_identity(key)).peer_id for key in keys]
    pair = [make(peers=2, allow=allow, identity_path=str(key), public_name="Ada") for key in keys]
    together(pair, SwarmGather.join)
    for peer in pair:
        report_contributors(peer, Round(0), counts_of(*pair))
    with observe_run(pair[0].address[0], run="r", run_dir=tmp_path / "run0") as observation:
        found = observed(observation)
    assert found is not None and [row.name for row in found.rows] == ["Ada", "Ada"] and found.asked == 0


def test_a_name_that_cannot_be_shown_safely_is_refused_at_the_start(make: Make) -> None:
    with pytest.raises(UserError, match=r"public_name=.*not printable: set a short, plain name"):
        make(peers=1, public_name="\x1b[2J")
