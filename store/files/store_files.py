"""The files of one store, as one value: who works on several of them gets this."""

from __future__ import annotations

from dataclasses import dataclass

from model.config import StoreConfig
from runtime.env import Env
from store.files.checkpoint import CheckpointFile
from store.files.commit_log import CommitLog
from store.files.consume_queues import ConsumeQueues
from store.files.damage import DamageLedger
from store.files.epoch_file import EpochFile
from store.files.health import Health
from store.files.index import Index


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """``index`` is None with ``messageIndexEnable=false``. ``health`` says whether they may be written."""

    log: CommitLog
    queues: ConsumeQueues
    index: Index | None
    epochs: EpochFile
    checkpoint: CheckpointFile
    damage: DamageLedger
    health: Health

    @classmethod
    def of(cls, env: Env, config: StoreConfig, root: str) -> StoreFiles:
        """The files under ``root``, none opened yet."""
        disk, health = env.disk, Health()
        log = CommitLog(
            env,
            config.commit_log_path or f"{root}/commitlog",
            config.segment_bytes,
            health,
            prop_crc=config.append_prop_crc,
        )
        index = None
        if config.message_index_enable:
            index = Index(disk, f"{root}/index", config.index_slots, config.index_entries, env.now_ms)
        return cls(
            log=log,
            queues=ConsumeQueues(disk, f"{root}/consumequeue", config.queue_file_bytes),
            index=index,
            epochs=EpochFile(disk, config.epoch_file_path or f"{root}/epochFileCheckpoint"),
            checkpoint=CheckpointFile(disk, f"{root}/checkpoint"),
            damage=DamageLedger(disk, root),
            health=health,
        )

    def close(self) -> None:
        """Close what is open; nothing is written any more."""
        self.health.silent = True
        self.health.broke("the store is closed")
        self.log.close()
        self.queues.close()
        if self.index is not None:
            self.index.close()
        self.checkpoint.close()
