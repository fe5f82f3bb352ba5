# Queue entries -> the records they name, in one piece: what a pull is answered with.

cdef extern from "unistd.h" nogil:
    ssize_t pread(int fd, void *buf, size_t count, int64_t offset)

cdef enum:
    GATHER_MAX = 1024  # records of one answer


def gather(int descriptor, const uint8_t[::1] entries, int64_t first, bint whole, int32_t queue_id,
           tuple span, int count_max, int64_t bytes_max, object codes):
    """The records that ``entries`` name, as ``store.flow.reading`` takes them: (records, how many, the queue
    offset behind the last entry looked at).

    ``first``: queue offset of the first entry; ``whole``: no entry follows them; ``span``: where the segment
    of ``descriptor`` starts, and the first and the last byte of it that may be read; ``codes``: the tags codes
    wanted, None for all. None: something is not plain, and Python's way has to look.
    """
    cdef int64_t start = span[0], low = span[1], high = span[2]
    cdef Py_ssize_t n = entries.shape[0] // ENTRY_BYTES, i, total = 0
    cdef int64_t places[GATHER_MAX]
    cdef int32_t sizes[GATHER_MAX]
    cdef int64_t offsets[GATHER_MAX]
    cdef const uint8_t *e
    cdef int count = 0, most = count_max if count_max < GATHER_MAX else GATHER_MAX
    cdef int64_t physical, left = bytes_max
    cdef int32_t size
    cdef bint full = False
    if count_max > GATHER_MAX:
        return None
    for i in range(n):
        e = &entries[0] + i * ENTRY_BYTES
        physical = <int64_t>ld64(e)
        size = <int32_t>ld32(e + 8)
        if physical < low or size < OVERHEAD_BYTES or size > high - physical:
            return None
        if codes is not None and <int64_t>ld64(e + 12) not in codes:
            continue
        if count and size > left:
            full = True
            n = i
            break
        places[count] = physical - start
        sizes[count] = size
        offsets[count] = first + i
        count += 1
        left -= size
        total += size
        if count >= most:
            full = True
            n = i + 1
            break
    if count == 0 or not (full or whole):
        return None
    cdef bytes records = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(records)
    cdef bint right
    with nogil:
        right = _fetch(descriptor, p, places, sizes, count)
    if not right:
        return None
    for i in range(count):
        if (<int32_t>ld32(p) != sizes[i] or <int32_t>ld32(p + QUEUE_AT) != queue_id
                or <int64_t>ld64(p + QUEUE_OFFSET_AT) != offsets[i]
                or <int64_t>ld64(p + OFFSET_AT) != places[i] + start):
            return None
        p += sizes[i]
    return records, count, first + n


cdef bint _fetch(int descriptor, uint8_t *p, const int64_t *places, const int32_t *sizes, int count) noexcept nogil:
    """Neighbours in one read; whether all bytes came."""
    cdef int i = 0
    cdef int64_t at, size, got
    while i < count:
        at = places[i]
        size = sizes[i]
        i += 1
        while i < count and places[i] == at + size:
            size += sizes[i]
            i += 1
        while size > 0:
            got = pread(descriptor, p, <size_t>size, at)
            if got <= 0:
                return False
            p += got
            at += got
            size -= got
    return True
