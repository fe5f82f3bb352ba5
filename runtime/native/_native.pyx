# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The work on whole buffers, compiled: sends of a read become records, answers and a packed block of
dispatches; a slave's log bytes become such a block; a block becomes queue and index entries.

It takes what is plain, and leaves the rest as it came: the Python code decides about that, and is the one
that says what is right (``tests/broker/requests/test_both_paths.py``). Nothing of the project is imported here. Layouts
are those of ``store/files`` and ``remoting/codec``; ``store/files/compiled.py`` holds ``layouts`` to them.

    text.pxi     numbers, UTF-8, Java's hash, properties        headers.pxi   JSON and ROCKETMQ headers of sends
    block.pxi    dispatches, packed; queue and index entries    sends.pxi     frames -> records and answers
    parse.pxi    log bytes -> a block                           pulls.pxi     pulls; queue entries -> records
    columns.pxi  log bytes -> columns, for the audit            maps.pxi      parts of a log's files, mapped
    sending.pxi  answers -> sockets                             heads.pxi     pulls' answers
    crc32.h      CRC-32                                         guarded.h     copies of what is mapped
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

cdef extern from "crc32.h" nogil:
    void keelmq_crc32_begin()
    uint32_t keelmq_crc32(const uint8_t *p, size_t n)

cdef extern from *:
    """
    static inline uint16_t ld16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
    static inline uint32_t ld32(const uint8_t *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline uint64_t ld64(const uint8_t *p) { return (uint64_t)ld32(p) << 32 | ld32(p + 4); }
    static inline void st16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)(v >> 8); p[1] = (uint8_t)v; }
    static inline void st32(uint8_t *p, uint32_t v) {
        p[0] = (uint8_t)(v >> 24); p[1] = (uint8_t)(v >> 16); p[2] = (uint8_t)(v >> 8); p[3] = (uint8_t)v;
    }
    static inline void st64(uint8_t *p, uint64_t v) { st32(p, (uint32_t)(v >> 32)); st32(p + 4, (uint32_t)v); }
    """
    uint16_t ld16(const uint8_t *) nogil
    uint32_t ld32(const uint8_t *) nogil
    uint64_t ld64(const uint8_t *) nogil
    void st16(uint8_t *, uint16_t) nogil
    void st32(uint8_t *, uint32_t) nogil
    void st64(uint8_t *, uint64_t) nogil

cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        int64_t tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *at)

cdef extern from *:
    """
    #ifndef KEELMQ_SOURCE
    #define KEELMQ_SOURCE ""
    #endif
    """
    const char *KEELMQ_SOURCE

cdef enum:
    # The fixed part of a record with IPv4 hosts (store/files/record.py).
    SIZE_AT = 0
    MAGIC_AT = 4
    CRC_AT = 8
    QUEUE_AT = 12
    FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    OFFSET_AT = 28
    SYS_FLAG_AT = 36
    BORN_AT = 40
    BORN_HOST_AT = 48
    STORED_AT = 56
    STORE_HOST_AT = 64
    RECONSUMED_AT = 72
    PREPARED_AT = 76
    BODY_SIZE_AT = 84
    FIXED_BYTES = 88
    OVERHEAD_BYTES = 90  # all of a record but body, topic with its length byte, and properties
    HOST_BYTES = 8
    # A message inside of a batch.
    INNER_SIZE_AT = 0
    INNER_FLAG_AT = 12
    INNER_BODY_SIZE_AT = 16
    INNER_FIXED_BYTES = 20
    # Entries of a queue and of the index.
    ENTRY_BYTES = 20
    ENTRY_SIZE_AT = 8
    PRE_BLANK_SIZE = 0x7FFFFFFF  # of a queue's entry that stands for no record
    BOUNDS_MAX = 16
    # A ROCKETMQ header.
    BINARY_OPAQUE_AT = 5
    BINARY_FLAG_AT = 9
    BINARY_REMARK_AT = 13
    BINARY_EXT_AT = 17
    BINARY_BYTES = 21
    # sysFlag
    PREPARED = 0x4
    HOSTS_V6 = 0x30
    INNER_BATCH = 0x80
    # Codes
    SEND_V1 = 10
    SEND_V2 = 310
    SEND_BATCH = 320

cdef uint32_t MAGIC_V1 = 0xDAA320A7u

SOURCE = (<bytes>KEELMQ_SOURCE).decode()
"""Of what it was compiled: ``build.source_hash``."""

keelmq_crc32_begin()


def layouts():
    """The layouts this module is compiled with, for ``store/files/compiled.py`` to compare."""
    return {
        "record": (SIZE_AT, MAGIC_AT, CRC_AT, QUEUE_AT, FLAG_AT, QUEUE_OFFSET_AT, OFFSET_AT, SYS_FLAG_AT, BORN_AT,
                   BORN_HOST_AT, STORED_AT, STORE_HOST_AT, RECONSUMED_AT, PREPARED_AT, BODY_SIZE_AT, FIXED_BYTES),
        "queue": (0, ENTRY_SIZE_AT, 12, ENTRY_BYTES),
        "blank": PRE_BLANK_SIZE,
        "index": (0, 4, 12, 16, ENTRY_BYTES),
        "magic": MAGIC_V1,
        "flags": (PREPARED, HOSTS_V6, INNER_BATCH),
        "overhead": OVERHEAD_BYTES,
    }


def clock_ms(int clock):
    """What that clock of the system says, milliseconds."""
    cdef timespec at
    if clock_gettime(clock, &at) != 0:
        raise OSError(f"the system has no clock {clock}")
    return at.tv_sec * 1000.0 + at.tv_nsec / 1e6


def crc32(const uint8_t[::1] data):
    """As zlib's."""
    return keelmq_crc32(&data[0], data.shape[0]) if data.shape[0] else 0


def entry_sizes(const uint8_t[::1] entries, bounds):
    """As store.files.entry_sizes.counted."""
    cdef int64_t most[BOUNDS_MAX]
    cdef int64_t counts[BOUNDS_MAX + 1]
    cdef Py_ssize_t n = len(bounds), at, k
    cdef int64_t size, total = 0
    if n > BOUNDS_MAX:
        raise ValueError(n)
    for k in range(n):
        most[k] = bounds[k]
    memset(counts, 0, sizeof(counts))
    for at in range(entries.shape[0] // ENTRY_BYTES):
        size = <int32_t>ld32(&entries[at * ENTRY_BYTES] + ENTRY_SIZE_AT)
        if size == 0 or size == PRE_BLANK_SIZE:
            continue
        k = 0
        while k < n and size > most[k]:
            k += 1
        counts[k] += 1
        total += size
    return [counts[k] for k in range(n + 1)], total


cdef Py_ssize_t FIRST_BYTES = 4096
cdef Py_ssize_t KEPT_BYTES = 2 << 20  # what a turn takes (broker.requests.turn) fits: such do not come and go


cdef class Bytes:
    """Bytes that grow. Holds: cleared, they take ``KEPT_BYTES`` at most."""

    cdef uint8_t *p
    cdef Py_ssize_t n, cap

    def __cinit__(self, Py_ssize_t cap=FIRST_BYTES):
        self.n = 0
        self.cap = cap
        self.p = <uint8_t *>malloc(self.cap)
        if self.p == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.p)

    cdef uint8_t *room(self, Py_ssize_t more) except NULL:
        """Where the next ``more`` bytes go; earlier pointers are void."""
        cdef Py_ssize_t cap = self.cap
        cdef uint8_t *p
        if self.n + more > cap:
            while self.n + more > cap:
                cap *= 2
            p = <uint8_t *>realloc(self.p, cap)
            if p == NULL:
                raise MemoryError
            self.p = p
            self.cap = cap
        return self.p + self.n

    cdef bytes taken(self):
        """What is there; afterwards there is nothing."""
        cdef bytes found = PyBytes_FromStringAndSize(<char *>self.p, self.n)
        self.clear()
        return found

    cdef void clear(self) noexcept:
        """There is nothing any more. What a burst took goes back: with the next one it comes again."""
        cdef uint8_t *p
        self.n = 0
        if self.cap > KEPT_BYTES:
            p = <uint8_t *>realloc(self.p, FIRST_BYTES)
            if p != NULL:
                self.p = p
                self.cap = FIRST_BYTES


include "text.pxi"
include "headers.pxi"
include "block.pxi"
include "sends.pxi"
include "parse.pxi"
include "maps.pxi"
include "pulls.pxi"
include "heads.pxi"
include "columns.pxi"
include "sending.pxi"
