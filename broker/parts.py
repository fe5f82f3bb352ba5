"""Which parts of a broker do its status and its stop need? ``broker/service`` has them all."""

from __future__ import annotations

from typing import Protocol

from broker.context import BrokerContext
from broker.discovery.group_address import GroupAddress
from broker.discovery.registration import Registration
from broker.processors import Processors
from broker.requests.fast_path import FastPath
from broker.role.changes import RoleChanges
from broker.role.manager import RoleManager
from broker.tables.table_files import TableFiles
from broker.upkeep.services import Upkeep
from remoting.service import RemotingClient, RemotingServer
from runtime.tasks import Tasks


class BrokerParts(Protocol):
    """A broker, as a whole and by its parts."""

    context: BrokerContext
    started: bool
    tasks: Tasks
    client: RemotingClient
    server: RemotingServer
    role: RoleManager
    roles: RoleChanges
    registration: Registration
    group_address: GroupAddress
    processors: Processors
    upkeep: Upkeep
    tables: TableFiles
    fast: FastPath
