from collections.abc import Callable, Container, Sequence
from typing import Any

from runtime.env import Buffer

SOURCE: str

def layouts() -> dict[str, Any]: ...
def clock_ms(clock: int) -> float: ...
def crc32(data: Buffer) -> int: ...
def entry_sizes(entries: Buffer, bounds: Sequence[int]) -> tuple[list[int], int]: ...
def all_taken(descriptors: list[int], parts: list[bytes]) -> tuple[int, int]: ...

class Block:
    def __init__(self, kind: Callable[..., Any]) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, at: int) -> Any: ...
    def items(self, first: int, until: int) -> list[Any]: ...
    @property
    def begin(self) -> int: ...
    def place_of(self, offset: int) -> int: ...
    def end(self, until: int) -> tuple[int, int]: ...
    def advance(self, table: dict[tuple[str, int], Any]) -> None: ...
    def enter(
        self,
        first: int,
        until: int,
        table: dict[tuple[str, int], Any],
        dirty: dict[Any, None],
        arrived: list[tuple[str, int, int, int]] | None,
        full_bytes: int,
    ) -> list[Any] | None: ...
    def index_entries(
        self,
        first: int,
        until: int,
        seen: int,
        table: Any,
        number: int,
        room: int,
        begin_ms: int,
        pages: bytearray,
        pages_shift: int,
    ) -> tuple[bytes, int, Any, int, Any, int] | None: ...

class Sends:
    last: Any
    otherwise: Callable[[Any, Any, int, int], tuple[int, list[bytes]]]
    def __init__(
        self,
        kind: Callable[..., Any],
        make_route: Callable[[str], tuple[str, int] | None],
        offsets: Any,
        host: bytes,
        extra: bytes,
        names: list[bytes],
        json: list[bytes],
        binary: list[bytes],
        plain_flags: int,
        properties_max: int,
        header_max: int,
        keys: tuple[str, str, str],
    ) -> None: ...
    @property
    def pending(self) -> int: ...
    @property
    def buffer_bytes(self) -> int: ...
    def forget_routes(self) -> None: ...
    def open(
        self,
        reads: list[tuple[Any, bytes, bytes]],
        begin: int,
        now_ms: int,
        limit: int,
        maxima: tuple[int, int, int],
        most: tuple[int, int],
        go_on: Callable[
            [Any, Any, int, int, tuple[int, int, bool, int] | None, list[bytes]], tuple[int, list[bytes]]
        ],
    ) -> None: ...
    def join(
        self, connection: Any, buffer: Buffer, start: int, end: int
    ) -> tuple[int, list[bytes]] | None: ...
    def take(self) -> tuple[bytes, Block]: ...
    def answers(self) -> bytes: ...
    def drop(self) -> None: ...
    def process(
        self,
        buffer: Buffer,
        start: int,
        end: int,
        born: bytes,
        now_ms: int,
        log_end: int,
        limit: int,
        maxima: tuple[int, int, int],
        ordered: bool,
        leave_first: bool,
        left: list[bytes],
    ) -> tuple[int, int, bool, int]: ...

class Parser:
    def __init__(self, kind: Callable[..., Any], scheduled: str) -> None: ...
    def parse(self, buffer: Buffer, offset: int, limit: int) -> tuple[Block, int]: ...

class Columns:
    def __init__(self, most: int, scheduled: str) -> None: ...
    def __len__(self) -> int: ...
    @property
    def carries_crc(self) -> bool: ...
    @property
    def full(self) -> bool: ...
    def take(self, buffer: Buffer, base: int, position: int, stop: int, packed: bool) -> int: ...
    def add(
        self,
        offset: int,
        size: int,
        topic: bytes,
        queue: int,
        place: int,
        key: bytes,
        crc: int,
        plain: int,
        flag: int,
        advance: int,
        tags: int,
    ) -> None: ...
    def taken(
        self,
    ) -> tuple[
        int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes
    ]: ...

class PullHeads:
    def __init__(self, json: tuple[bytes, ...], binary: tuple[bytes, ...]) -> None: ...
    def head(
        self,
        binary: bool,
        opaque: int,
        next_offset: int,
        least: int,
        most: int,
        topic_flag: int,
        group_flag: int,
        body_bytes: int,
    ) -> bytes: ...
    def answers(
        self,
        limit: int,
        known: tuple[dict[tuple[bytes, ...], Any], tuple[bytes, ...]],
        rules: Callable[[Any, Any], tuple[Any, ...] | None],
        buffer: Buffer,
        start: int,
        end: int,
        most: int,
        room: int,
    ) -> (
        tuple[
            int,
            Any,
            Any,
            list[bytes],
            tuple[int, list[tuple[int, int]], list[tuple[int, int]], bool, int, int, list[int]],
        ]
        | None
    ): ...

class Maps:
    @property
    def mapped(self) -> int: ...
    def forget(self, descriptor: int) -> None: ...

def read_plain(
    maps: Maps,
    queue: Any,
    log: Any,
    at: int,
    looked_at: int,
    count_max: int,
    bytes_max: int,
    codes: Container[int] | None,
) -> tuple[bytes, int, int] | None: ...
def pull_at(
    buffer: Buffer,
    start: int,
    end: int,
    limit: int,
    known: dict[tuple[bytes, ...], Any],
    marks: tuple[bytes, ...],
) -> tuple[int, Any, Any] | None: ...
def gather(
    descriptor: int,
    entries: Buffer,
    first: int,
    whole: bool,
    queue_id: int,
    span: tuple[int, int, int],
    count_max: int,
    bytes_max: int,
    codes: frozenset[int] | None,
) -> tuple[bytes, int, int] | None: ...
def cut_binary(
    frame: bytes, offset_mark: bytes, commit_mark: bytes
) -> tuple[tuple[bytes, ...], tuple[int, int, int]] | None: ...
def cut_json(
    frame: bytes, offset_mark: bytes, commit_mark: bytes, opaque_mark: bytes
) -> tuple[tuple[bytes, ...], tuple[int, int, int]] | None: ...
