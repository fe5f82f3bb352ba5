"""How does a broker get its permanent id?

    brokerIdentity ── none ──► next free id ──► noted (identity.py) ──► applied for ──► kept
                                    ▲                                        │
                                    └────────── another broker has it ───────┘

Order and rules: Apache RocketMQ 5.x, ``broker/controller/ReplicasManager``.
"""

from __future__ import annotations

import logging
from typing import Final

from broker.membership.controllers import Controllers
from broker.membership.identity import Application, Identity
from model.config import BrokerConfig
from model.errors import MqError
from model.ids import BrokerId
from runtime.env import Env

log = logging.getLogger(__name__)

LOST_HELP: Final = "see 'The Controllers lost their directories' in docs/operations.md"


class BrokerIdAllocator:
    """Asks the Controllers for an id. Calls raise what those of ``Controllers`` and ``Identity`` do."""

    def __init__(self, env: Env, config: BrokerConfig, identity: Identity, controllers: Controllers) -> None:
        self._env = env
        self._config = config
        self._identity = identity
        self._controllers = controllers

    async def apply(self) -> BrokerId:
        """An id from the Controller; a crash in between costs no second one.

        Raises ConnectionError when it went to another broker: apply again.
        """
        application = self._identity.application()
        if application is None:
            application = await self._next()
        if not await self._controllers.apply_id(application.broker_id, application.check_code):
            self._identity.give_up()
            raise ConnectionError(
                f"id {application.broker_id} was given to another broker, applying for the next"
            )
        self._identity.keep(application.broker_id)
        log.info("%s: broker id %d", self._config.broker_name, application.broker_id)
        return application.broker_id

    async def apply_anew(self, broker_id: BrokerId, *, empty: bool) -> BrokerId:
        """The Controllers do not know ``broker_id``: ask for it again, or else for the next free one.

        Raises MqError when they never gave that id, unless the log is ``empty``. Ids are never given twice,
        so these Controllers lost their state: the first broker to ask would be elected, and the others cut
        to its log.
        """
        free = broker_id + 1 if empty else await self._controllers.next_id()
        if free <= broker_id:
            raise MqError(
                f"the Controllers never gave id {broker_id}, the next one is {free}:"
                f" they know nothing of this log; {LOST_HELP}"
            )
        if await self._controllers.apply_id(broker_id, self._check_code()):
            return broker_id
        log.warning(
            "%s: id %d belongs to another broker, applying for a new one", self._config.broker_name, broker_id
        )
        await self._next()
        return await self.apply()

    async def _next(self) -> Application:
        application = Application(await self._controllers.next_id(), self._check_code())
        self._identity.apply_for(application)
        return application

    def _check_code(self) -> str:
        return f"{self._config.address};{self._env.now_ms()}"
