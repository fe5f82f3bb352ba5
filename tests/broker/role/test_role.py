"""The promise of broker.role: a broker becomes what the Controllers say, soon, whatever messages are lost."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from broker.membership import controllers as controllers_of_broker
from broker.membership.controllers import view_of
from model.codes import Request, Response
from model.errors import ConfigError, MqError, PeerError, Unknown
from model.ids import BrokerId
from remoting.codec import Command
from tests.fakes.broker.role import GROUP, FakeControllers, Life
from tests.plain import broker_ids
from tests.waiting import until


async def test_a_fresh_broker_gets_an_id_and_leads_a_fresh_group(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        assert life.host.calls == [("lead", 1, 1)]
        assert life.changes == [("master", 1)]
        assert life.role.registration_id == 0
        assert (tmp_path / "brokerIdentity").read_text() == f"DefaultCluster#{GROUP}#1"
        assert not (tmp_path / "brokerIdentity-temp").exists()
        assert controllers.group.replicas[1].ha_address == life.config.ha_address


async def test_the_second_broker_follows_the_first_and_takes_over_when_it_dies(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path / "1", controllers) as first:
        await first.becomes("master", 1)
        async with Life(tmp_path / "2", controllers) as second:
            await second.becomes("slave", 1)
            address, ha_address = first.config.address, first.config.ha_address
            assert second.host.calls == [("follow", 1, address, ha_address)]
            assert second.role.registration_id == 2
            assert not second.current.in_sync
            assert first.host.propose is not None
            answer = await first.host.propose(broker_ids({1, 2}), controllers.group.members_epoch)
            assert answer == (frozenset({1, 2}), 2)
            await until(lambda: second.current.in_sync, "it is told that it is in the set")
            await first.role.stop()
            await first.client.close()
            await until(lambda: 1 not in controllers.alive, "the Controller sees the connection end")
            controllers.elect()
            await second.becomes("master", 2)


async def test_what_can_wait_gives_way_to_a_change_of_role(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        ways: list[int] = []
        life.store.throttle.postpone = lambda: ways.append(len(life.host.calls))  # type: ignore[method-assign]
        await life.becomes("master", 1)
        assert ways == [0]
        await controllers.notify()
        await life.role._look()
        assert ways == [0]


async def test_an_id_is_for_ever(tmp_path: Path) -> None:
    async with FakeControllers() as controllers:
        for _ in range(3):
            async with Life(tmp_path, controllers) as life:
                await life.becomes("master")
                assert life.role.broker_id == 1
        assert controllers.count(Request.CONTROLLER_APPLY_BROKER_ID) == 1


async def test_a_crash_between_applying_and_noting_the_id_costs_no_second_id(tmp_path: Path) -> None:
    async with FakeControllers() as controllers:

        def applied_but_not_answered(request: Command) -> None:
            controllers._apply(request)

        controllers.answers[Request.CONTROLLER_APPLY_BROKER_ID] = applied_but_not_answered
        life = Life(tmp_path, controllers)
        await life.role.start()
        await until(lambda: controllers.count(Request.CONTROLLER_APPLY_BROKER_ID) == 1)
        await life.role.stop()
        await life.client.close()
        controllers.answers.clear()
        async with Life(tmp_path, controllers) as again:
            await again.becomes("master")
            assert again.role.broker_id == 1
            assert controllers.group.next_id == 2


async def test_an_id_taken_by_another_broker_is_given_up_for_the_next(tmp_path: Path) -> None:
    async with FakeControllers() as controllers:
        (tmp_path / "brokerIdentity-temp").write_text(f"DefaultCluster#{GROUP}#1#10.0.0.1:1;5")
        async with Life(tmp_path / "other", controllers) as other:
            await other.becomes("master")
            async with Life(tmp_path, controllers) as life:
                await life.becomes("slave")
                assert life.role.broker_id == 2


async def test_a_store_of_another_group_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity").write_text("DefaultCluster#broker-x#1")
    async with FakeControllers() as controllers:
        life = Life(tmp_path, controllers)
        with pytest.raises(ConfigError, match="broker-x"):
            await life.role.start()
        await life.role.stop()
        await life.client.close()


async def test_heartbeats_go_to_every_controller_and_say_how_far_the_log_is(tmp_path: Path) -> None:
    async with FakeControllers(3) as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        life.store.grow(b"0123456789")
        await until(lambda: {index for index, _ in controllers.beats} == {0, 1, 2})
        await until(lambda: controllers.beats[-1][1]["maxOffset"] == "10")
        beat = controllers.beats[-1][1]
        assert beat["brokerId"] == "1"
        assert beat["epoch"] == "1"
        assert beat["confirmOffset"] == str(life.store.confirmed)
        assert beat["heartbeatTimeoutMills"] == str(life.config.controller_heartbeat_timeout_ms)


async def test_heartbeats_reach_a_leader_that_is_not_among_the_configured_addresses(tmp_path: Path) -> None:
    async with FakeControllers(3) as controllers:
        controllers.leader = 2
        known = ";".join(controllers.addresses.split(";")[:2])
        async with Life(tmp_path, controllers, controller_addr=known) as life:
            await life.becomes("master", 1)
            await until(lambda: {index for index, _ in controllers.beats} == {0, 1, 2})


async def test_a_connection_lost_to_a_controller_is_made_anew_without_waiting_for_the_next_beat(
    tmp_path: Path,
) -> None:
    rarely = {"broker_heartbeat_ms": 600_000, "controller_heartbeat_timeout_ms": 3_000_000}
    async with FakeControllers() as controllers, Life(tmp_path, controllers, **rarely) as life:
        await life.becomes("master", 1)
        await until(lambda: 1 in controllers.alive)
        first = controllers.alive[1]
        first.close()
        await until(lambda: controllers.alive.get(1, first) is not first)


async def test_a_dead_controller_delays_no_heartbeat_to_the_others(tmp_path: Path) -> None:
    async with FakeControllers(1) as controllers:
        addresses = f"{controllers.addresses};127.0.0.1:1"
        async with Life(tmp_path, controllers, controller_addr=addresses) as life:
            await life.becomes("master")
            before = len(controllers.beats)
            await until(lambda: len(controllers.beats) > before + 3)


async def test_a_role_is_kept_while_no_controller_answers_and_a_new_leader_is_found(tmp_path: Path) -> None:
    async with FakeControllers(3) as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        controllers.leader = -1  # nobody leads
        await until(lambda: life.role.reason is not None, "the reason is visible")
        assert life.role.role == "master"
        controllers.leader = 2
        await until(lambda: life.role.reason is None, "the new leader is found")
        assert life.role.status()["controller"] == f"127.0.0.1:{controllers.ports[2]}"
        assert life.host.calls == [("lead", 1, 1)]


async def test_controllers_that_come_late_are_waited_for(tmp_path: Path) -> None:
    controllers = FakeControllers(1)
    async with Life(tmp_path, controllers) as life:
        await until(lambda: "Controllers" in (life.role.reason or ""), "the reason is visible")
        async with controllers:
            await life.becomes("master", 1)


async def test_a_notice_makes_a_broker_look_at_once_and_a_forged_one_moves_nothing(tmp_path: Path) -> None:
    controllers = FakeControllers()
    async with controllers, Life(tmp_path, controllers, sync_broker_metadata_ms=600_000) as life:
        await life.becomes("master", 1)
        seen = controllers.count(Request.CONTROLLER_GET_REPLICA_INFO)
        await controllers.notify(masterEpoch="999", masterBrokerId="7", masterAddress="10.0.0.1:1")
        await until(lambda: controllers.count(Request.CONTROLLER_GET_REPLICA_INFO) > seen)
        assert life.role.role == "master"
        controllers.group.epoch = 2
        await controllers.notify()
        await life.becomes("master", 2)


@pytest.mark.parametrize("asked_before", [True, False])
async def test_who_tells_of_an_election_is_asked_before_a_leader_that_died_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_before: bool
) -> None:
    monkeypatch.setattr(controllers_of_broker, "CALL_S", 600.0)

    controllers = FakeControllers(2)
    keys = {"sync_broker_metadata_ms": 20 if asked_before else 600_000}
    async with controllers, Life(tmp_path, controllers, **keys) as life:
        await life.becomes("master", 1)
        controllers.mute, controllers.leader = 0, 1
        was = controllers.alive[1]
        await until(lambda: controllers.alive[1] is not was, "the new leader hears the broker")
        if asked_before:
            seen = controllers.count(Request.CONTROLLER_GET_REPLICA_INFO)
            await asyncio.sleep(0.1)  # the look that is due waits for the dead leader
            assert controllers.count(Request.CONTROLLER_GET_REPLICA_INFO) == seen
        controllers.group.epoch = 2
        await controllers.notify()
        await life.becomes("master", 2)


async def test_a_notice_from_elsewhere_moves_no_question(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        forged = {"masterEpoch": "9", "masterBrokerId": "7", "masterAddress": "127.0.0.1:1"}
        await life.role.notice(Command(Request.NOTIFY_BROKER_ROLE_CHANGED, forged), "127.0.0.1:1")
        assert life.role.status()["controller"] == controllers.addresses


async def test_a_master_elected_again_learns_its_epoch(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        controllers.group.epoch = 5
        await life.becomes("master", 5)
        assert life.host.calls == [("lead", 1, 1), ("lead", 1, 5)]
        assert life.changes[-1] == ("master", 5)


async def test_a_log_from_before_there_were_controllers_belongs_to_the_first_epoch(tmp_path: Path) -> None:
    async with FakeControllers() as controllers:
        life = Life(tmp_path, controllers)
        life.store.grow(b"0123456789")
        async with life:
            await life.becomes("master", 1)
            assert life.store.epochs.entries == [(1, 0)]


async def test_an_older_view_moves_nothing(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        controllers.group.epoch = 5
        await life.becomes("master", 5)
        controllers.group.epoch = 3  # a Controller that fell behind
        seen = controllers.count(Request.CONTROLLER_GET_REPLICA_INFO)
        await until(lambda: controllers.count(Request.CONTROLLER_GET_REPLICA_INFO) > seen + 2)
        assert life.role.epoch == 5
        assert len(life.host.calls) == 2


async def test_an_epoch_older_than_the_log_is_not_led(tmp_path: Path) -> None:
    async with FakeControllers() as controllers:
        life = Life(tmp_path, controllers)
        life.store.epochs.append(9, 0)
        async with life:
            await until(lambda: "our log has epoch 9" in (life.role.reason or ""))
            assert life.host.calls == []
            assert life.role.registration_id == -1


async def test_a_master_of_the_same_epoch_after_a_restart_asks_for_a_new_one_first(tmp_path: Path) -> None:
    async with FakeControllers() as controllers:
        async with Life(tmp_path, controllers) as life:
            await life.becomes("master", 1)
        again = Life(tmp_path, controllers)
        again.store.epochs.append(1, 0)
        async with again:
            await again.becomes("master", 1)
            asked = [r for r in controllers.requests if r.ext.get("restarted") == "true"]
            assert len(asked) == 1
            assert asked[0].code == Request.CONTROLLER_ELECT_MASTER
            assert asked[0].ext["masterEpoch"] == "1"


async def test_one_that_was_elected_before_it_started_asks_for_a_new_epoch_first(tmp_path: Path) -> None:
    async with FakeControllers() as controllers:
        async with Life(tmp_path, controllers) as life:
            await life.becomes("master", 1)
        again = Life(tmp_path, controllers)
        assert again.store.epochs.last is None, "it lost its power before it noted that epoch"
        async with again:
            await again.becomes("master", 1)
            assert [r.ext.get("restarted") for r in controllers.requests].count("true") == 1


async def test_elections_hear_of_a_synced_log_as_far_as_it_is_on_the_disk(tmp_path: Path) -> None:
    """With SYNC_FLUSH no start is suspect: one elected for more would lead without it after a power loss."""
    async with FakeControllers() as controllers:
        for mode, end in (("SYNC_FLUSH", "60"), ("ASYNC_FLUSH", "100")):
            life = Life(tmp_path / mode, controllers, flush_disk_type=mode)
            life.store.log.data = bytearray(100)
            life.store.log.flushed = 60
            fields = life.role._beats.fields(BrokerId(1))
            assert fields["maxOffset"] == end
            await life.client.close()


async def test_a_deposed_master_whose_group_has_no_other_is_fenced_until_there_is_one(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        controllers.answers[Request.CONTROLLER_ELECT_MASTER] = lambda request: request.reply(
            Response.CONTROLLER_ELECT_MASTER_FAILED, remark="no broker may become master"
        )
        controllers.group.master, controllers.group.epoch = None, 2
        await life.becomes("fenced")
        controllers.answers.clear()
        await life.becomes("master", 3)


@pytest.mark.parametrize(
    "code",
    [
        Response.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        Response.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    ],
)
async def test_a_controller_that_does_not_know_the_broker_is_told_again(
    tmp_path: Path, code: Response
) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        registered = controllers.count(Request.CONTROLLER_REGISTER_BROKER)
        controllers.answers[Request.CONTROLLER_GET_REPLICA_INFO] = lambda request: request.reply(code)
        await until(lambda: controllers.count(Request.CONTROLLER_REGISTER_BROKER) > registered)
        controllers.answers.clear()
        await until(lambda: life.role.reason is None)
        assert life.role.role == "master"


async def test_a_controller_that_lost_everything_gets_the_broker_back_under_its_id(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        controllers.table.groups.clear()
        await until(lambda: GROUP in controllers.table.groups, "it applied for its id again")
        await until(lambda: controllers.group.replicas[1].ha_address == life.config.ha_address)
        assert life.role.broker_id == 1


async def test_a_broker_whose_id_was_taken_elsewhere_while_it_stood_still_is_no_slave_and_no_master(
    tmp_path: Path,
) -> None:
    async with FakeControllers() as controllers, Life(tmp_path / "1", controllers) as first:
        await first.becomes("master", 1)
        async with Life(tmp_path / "2", controllers) as second:
            await second.becomes("slave", 1)
            controllers.answers[Request.CONTROLLER_REGISTER_BROKER] = lambda request: request.reply(
                Response.CONTROLLER_BROKER_ID_INVALID, remark="id 2 is alive at another address"
            )
            controllers.group.replicas[2].address = "127.0.0.9:1"  # a copy of its store registered
            await second.becomes("fenced")
            assert second.role.status()["registered"] is False
            await until(lambda: second.role._membership.suspect, "what the copy acknowledges is not here")
            controllers.group.members, controllers.group.members_epoch = [2], 2
            controllers.group.master, controllers.group.epoch = 2, 2  # the copy is elected
            await controllers.notify()
            await first.becomes("slave", 2)
            await until(lambda: "alive at another address" in (second.role.reason or ""))
            assert [call[0] for call in second.host.calls] == ["follow", "fence"]
            controllers.answers.clear()  # the copy is gone
            await second.becomes("master")


async def test_a_master_under_the_same_id_at_another_address_is_somebody_else(tmp_path: Path) -> None:
    """Real Controllers do not say where the asker is registered; where the master is, they do."""
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        real = {"masterBrokerId": "1", "masterAddress": "127.0.0.9:1", "masterEpoch": "2"}
        controllers.answers[Request.CONTROLLER_GET_REPLICA_INFO] = lambda request: request.reply(ext=real)
        controllers.answers[Request.CONTROLLER_REGISTER_BROKER] = lambda request: request.reply(
            Response.CONTROLLER_BROKER_ID_INVALID
        )
        await life.becomes("fenced")
        assert life.host.calls[1:] == [("fence",)]


async def test_a_broker_that_was_removed_while_it_stood_still_takes_its_place_again(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path / "1", controllers) as first:
        await first.becomes("master", 1)
        async with Life(tmp_path / "2", controllers) as second:
            await second.becomes("slave", 1)
            controllers.group.remove({2})
            await until(
                lambda: controllers.group.address(second.role.broker_id) == second.config.address,
                "it applied for a place",
            )
            await second.becomes("slave", 1)


async def test_a_broken_store_ends_the_life_of_a_master_for_the_controllers_at_once(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        await until(lambda: 1 in controllers.alive)
        for hook in life.store.on_broken:
            hook(OSError("fsync failed"))
        assert life.role.reason == "the store is broken: fsync failed", "said at once"
        await life.becomes("fenced")
        await until(lambda: not controllers.alive, "its connection ended")
        beats = len(controllers.beats)
        await asyncio.sleep(0.15)
        assert len(controllers.beats) == beats, "no heartbeat any more"
        assert "fsync failed" in (life.role.reason or "")
        assert life.host.calls[-1] == ("fence",)
        assert life.role.registration_id == -1


async def test_a_broken_promise_of_replication_ends_the_life_of_a_master_too(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        await until(lambda: 1 in controllers.alive)
        for hook in life.ha.on_broken:
            hook(MqError("a promise of replication is broken: 2 lacks it"))
        await life.becomes("fenced")
        await until(lambda: not controllers.alive, "its connection ended")
        assert life.role.reason == "replication is broken: a promise of replication is broken: 2 lacks it"


async def test_a_change_of_role_that_fails_is_made_again(tmp_path: Path) -> None:
    async with FakeControllers() as controllers:
        life = Life(tmp_path, controllers)
        life.host.fail_lead = 2
        async with life:
            await life.becomes("master", 1)


async def test_a_slave_of_a_real_controller_gets_the_ha_address_from_a_nameserver(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path / "1", controllers) as first:
        await first.becomes("master", 1)
        controllers.group.replicas[1].ha_address = ""
        async with Life(tmp_path / "2", controllers) as second:
            await second.becomes("slave", 1)
            assert second.host.calls[-1] == ("follow", 1, first.config.address, None)
            asked: list[int] = []
            second.role.on_no_ha_address.append(lambda: asked.append(1))
            await until(lambda: len(asked) >= 2, "the NameServers are asked until one knows")
            second.role.on_ha_address(first.config.address, "127.0.0.1:77")
            await until(lambda: second.host.calls[-1][-1] == "127.0.0.1:77")
            assert second.ha.next_master.rocketmq_peer, "nobody said that it is one of ours"
            asked.clear()
            controllers.group.replicas[1].ha_address = "127.0.0.1:78"
            await controllers.notify(masterEpoch="99")
            await until(lambda: second.host.calls[-1][-1] == "127.0.0.1:78")
            assert not second.ha.next_master.rocketmq_peer
            assert asked == []


def test_a_broker_goes_on_looking_whatever_went_wrong_in_one_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
            await life.becomes("master", 1)
            lead = life.host.lead
            failed: list[int] = []

            async def broken_lead(*args: Any) -> None:
                if not failed:
                    failed.append(1)
                    raise KeyError("not foreseen")
                await lead(*args)

            life.host.lead = broken_lead  # type: ignore[method-assign, assignment]
            controllers.group.epoch = 2
            await life.becomes("master", 2)
            assert failed

    asyncio.run(run())
    assert any("looking at the Controllers' view failed" in record.message for record in caplog.records)


async def test_under_controllers_that_tell_no_ha_address_the_nameservers_hear_of_a_master_first(
    tmp_path: Path,
) -> None:
    async with FakeControllers() as controllers:
        life = Life(tmp_path, controllers)
        life.host.fail_lead = 1
        apply = controllers._apply

        def as_a_real_one(request: Command) -> Any:
            answer = apply(request)
            group = controllers.table.groups.get(GROUP)
            if group is not None and 1 in group.replicas:
                group.replicas[1].ha_address = ""
            return answer

        controllers._apply = as_a_real_one  # type: ignore[method-assign]
        seen: list[tuple[str, int]] = []

        def note() -> None:
            seen.append((life.role.role, life.role.registration_id))

        life.host.on_announce = note
        life.role.on_change.append(note)
        async with life:
            await life.becomes("master", 1)
        # Announced, which came to nothing, and again; master only when it can serve.
        assert seen == [("fenced", 0), ("fenced", -1), ("fenced", 0), ("master", 0)]
        assert life.host.calls == [("announce", 1), ("announce", 1), ("lead", 1, 1)]


async def test_a_definite_no_to_a_proposal_is_none_and_silence_is_unknown(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, Life(tmp_path, controllers) as life:
        await life.becomes("master", 1)
        propose = life.host.propose
        assert propose is not None
        assert await propose(broker_ids({1, 9}), controllers.group.members_epoch) is None
        code = Request.CONTROLLER_ALTER_SYNC_STATE_SET
        controllers.answers[code] = lambda request: request.reply(1, remark="outcome not known: ...")
        with pytest.raises(Unknown):
            await propose(broker_ids({1}), 1)
        controllers.answers[code] = lambda request: request.reply(0, body=b"[]")
        with pytest.raises(Unknown, match="cannot be read"):
            await propose(broker_ids({1}), 1)
        controllers.leader = -1
        with pytest.raises(ConnectionError):
            await propose(broker_ids({1}), 1)


async def test_without_controllers_a_broker_leads_alone(tmp_path: Path) -> None:
    async with Life(tmp_path, None) as life:
        assert life.host.calls == [("lead", 0, 0)]
        assert life.role.registration_id == 0


async def test_without_controllers_a_slave_follows_the_master_a_nameserver_names(tmp_path: Path) -> None:
    async with Life(tmp_path, None, broker_role="SLAVE", broker_id=3) as life:
        assert life.role.registration_id == 3
        life.role.on_ha_address("10.0.0.1:10911", "10.0.0.1:10912")
        await until(lambda: life.role.master_address == "10.0.0.1:10911")
        life.role.on_ha_address("10.0.0.1:10911", "10.0.0.1:10912")
        life.role.on_ha_address("10.0.0.2:10911", "10.0.0.2:10912")
        await until(lambda: life.role.master_address == "10.0.0.2:10911")
        assert life.host.calls == [
            ("follow", 0, None, None),
            ("follow", 0, "10.0.0.1:10911", "10.0.0.1:10912"),
            ("follow", 0, "10.0.0.2:10911", "10.0.0.2:10912"),
        ]


def test_a_view_with_a_body_that_is_no_sync_state_set_is_refused() -> None:
    for body in (b'{"syncStateSet":["a"]}', b'{"syncStateSet":{}, "syncStateSetEpoch":1}', b"[]"):
        with pytest.raises(PeerError):
            view_of(Command(0, {}, body), 0.0)
    assert view_of(Command(0, {"masterEpoch": "3"}), 0.0).master_id is None


async def test_a_failure_that_goes_on_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    controllers = FakeControllers(1)
    with caplog.at_level(logging.WARNING, logger="broker.role.manager"):
        async with Life(tmp_path, controllers) as life:
            await until(lambda: life.role.reason is not None)
            await asyncio.sleep(0.3)
    warned = [r.message for r in caplog.records if r.name == "broker.role.manager"]
    assert len(warned) == len(set(warned)) > 0, warned
