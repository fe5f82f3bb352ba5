"""What producers, consumers and admin clients share: ``async with`` starts them and stops them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifecycle(ABC):
    """Started by ``async with`` or by ``start``; ``stop`` ends it for good, also what a
    ``start`` that was broken off began."""

    __slots__ = ()

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()  # what it began: brokers may know this client already
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
